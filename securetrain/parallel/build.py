# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Make a model parallel: a fixed order, one module for each step.

1. pipeline split: what other stages hold is taken out; float8, which exchanges layers;
2. tensor and sequence parallelism;
3. expert parallelism;
4. context parallelism;
5. activation checkpointing;
6. compile;
7. the data-parallel wrapper, last, because it sees the final parameters.

The model is described on the meta device, so that no rank ever holds all of it; its parameters get
memory after they were cut, and then values.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from securetrain.parallel.available import check_device
from securetrain.parallel.compile import apply_compile
from securetrain.parallel.context import apply_context
from securetrain.parallel.ddp import apply_ddp
from securetrain.parallel.engine import ParallelModel, PlainEngine
from securetrain.parallel.experts import apply_experts
from securetrain.parallel.float8 import apply_float8
from securetrain.parallel.fsdp import apply_fsdp
from securetrain.parallel.kind import DataParallelism, kind_of
from securetrain.parallel.mesh import Mesh
from securetrain.parallel.pipeline import PipelineEngine
from securetrain.parallel.plan import ParallelPlan, Settings
from securetrain.parallel.recompute import apply_recompute
from securetrain.parallel.schedule import layers_of, num_stages, stages_of
from securetrain.parallel.tensor import apply_tensor, overlap_messages


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """A model that does not exist yet."""

    build: Callable[[], nn.Module]
    """Builds the module; called on the meta device, once for each stage of this rank."""
    materialize: Callable[[nn.Module], None]
    """Gives every parameter and buffer of a stage its first value, after they were cut."""
    plan: ParallelPlan
    """The model's own plan."""


def parallelize(
    model: Description, mesh: Mesh, settings: Settings, device: torch.device
) -> ParallelModel:
    """Build this rank's part of a model and make it ready to train (collective).

    Args:
        model: The model to build.
        mesh: The ranks.
        settings: The job's settings.
        device: Where it computes.

    Raises:
        UsageError: ST-USAG-004 or 007, `device` cannot do what is asked.
    """
    check_device(settings, device)
    if settings.async_tp:
        overlap_messages(mesh)
    kind = kind_of(mesh.degrees, settings)
    stages = {
        number: _prepare(part, model, mesh, settings, device)
        for number, part in _stages(model, mesh, settings).items()
    }
    engine: PlainEngine | PipelineEngine
    if mesh.degrees.pp > 1:
        engine = PipelineEngine(stages, mesh, model.plan, settings, device)
    else:
        engine = PlainEngine(stages[0], kind, mesh, settings, device)
    return ParallelModel(
        parts=tuple(stages.values()),
        mesh=mesh,
        device=device,
        engine=engine,
    )


def _stages(model: Description, mesh: Mesh, settings: Settings) -> dict[int, nn.Module]:
    """This rank's stages by number, described and not yet cut."""
    ranks = mesh.degrees.pp
    with torch.device("meta"):
        if ranks == 1:
            return {0: model.build()}
        mine = stages_of(settings.schedule, mesh.pp.get_local_rank(), ranks)
        found = {number: model.build() for number in mine}
    total = num_stages(settings.schedule, ranks)
    for number, part in found.items():
        layers = layers_of(number, total, len(model.plan.blocks(part)))
        model.plan.split_stage(part, layers, first=number == 0, last=number == total - 1)
    return found


def _prepare(
    part: nn.Module, model: Description, mesh: Mesh, settings: Settings, device: torch.device
) -> nn.Module:
    """Cut one stage in the fixed order, and give it memory and values."""
    kind = kind_of(mesh.degrees, settings)
    if settings.float8:
        apply_float8(part, model.plan)
    if mesh.degrees.tp > 1:
        apply_tensor(part, mesh, model.plan)
    apply_experts(part, mesh, model.plan)
    if mesh.degrees.cp > 1:
        apply_context(part, mesh, model.plan, settings.context)
    apply_recompute(part, model.plan, settings.recompute)
    if settings.compile:
        apply_compile(part, model.plan, device)
    if kind in {DataParallelism.FSDP, DataParallelism.HSDP}:
        apply_fsdp(part, mesh, model.plan, settings)
    part.to_empty(device=torch.device("cpu") if settings.cpu_offload else device)
    model.materialize(part)
    if settings.cpu_offload:
        move_buffers(part, device)
    if kind is DataParallelism.DDP:
        return apply_ddp(part, mesh, device, settings.compression)
    return part


def move_buffers(part: nn.Module, device: torch.device) -> None:
    """Offloaded parameters travel to the device when they are needed. Buffers stay there."""
    for module in part.modules():
        for name, buffer in list(module.named_buffers(recurse=False)):
            setattr(module, name, buffer.to(device))
