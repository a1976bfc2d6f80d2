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
from dataclasses import dataclass, field

import torch
from torch import nn

from securetrain.parallel.available import check_device
from securetrain.parallel.choices import check_microbatches, check_reduction, check_schedule
from securetrain.parallel.compile import apply_compile
from securetrain.parallel.context import apply_context
from securetrain.parallel.copies import CopyCheck, plain_copies
from securetrain.parallel.ddp import apply_ddp
from securetrain.parallel.engine import ParallelModel, PlainEngine, unwrap
from securetrain.parallel.experts import apply_experts
from securetrain.parallel.fitness import check_experts, check_fitness
from securetrain.parallel.float8 import apply_float8
from securetrain.parallel.fsdp import apply_fsdp
from securetrain.parallel.kind import DataParallelism, kind_of
from securetrain.parallel.mesh import Mesh
from securetrain.parallel.objective import Objective
from securetrain.parallel.pipeline import PipelineEngine
from securetrain.parallel.plan import ParallelPlan, Settings
from securetrain.parallel.recompute import apply_recompute
from securetrain.parallel.schedule import layers_of, num_stages, stages_of
from securetrain.parallel.tensor import apply_tensor, overlap_messages
from securetrain.parallel.ties import check_stage_ties, check_unit_ties, keep_ties, tied_names
from securetrain.parallel.values import fill_values


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """A model that does not exist yet."""

    build: Callable[[], nn.Module]
    """Builds the module; called on the meta device, once for each stage of this rank."""
    materialize: Callable[[nn.Module], None]
    """Gives every parameter and buffer of a stage its first value, after they were cut."""
    plan: ParallelPlan
    """The model's own plan."""
    objective: Objective = field(default_factory=Objective)
    """What is to become small."""


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
        UsageError: ST-USAG-004 or 007, `device` or the schedule cannot do what is asked.
        RuntimeRefusal: ST-RUNT-010, the model would not train as in one process; ST-RUNT-011,
            something has no first value.
    """
    check_device(settings, device)
    check_schedule(mesh.degrees, settings)
    check_microbatches(mesh.degrees, settings)
    check_reduction(mesh.degrees, settings)
    if settings.async_tp:
        overlap_messages(mesh)
    with torch.device("meta"):
        check_experts(model.build(), mesh.degrees, model.plan)
    kind = kind_of(mesh.degrees, settings)
    stages = {
        number: _prepare(part, model, mesh, settings, device)
        for number, part in _stages(model, mesh, settings).items()
    }
    engine: PlainEngine | PipelineEngine
    if mesh.degrees.pp > 1:
        engine = PipelineEngine(
            stages, mesh, model.plan, settings, device, objective=model.objective
        )
    else:
        engine = PlainEngine(stages[0], kind, mesh, settings, device, objective=model.objective)
    parts = tuple(stages.values())
    copies = plain_copies(tuple(unwrap(part) for part in parts), mesh)
    return ParallelModel(
        parts=parts,
        mesh=mesh,
        device=device,
        engine=engine,
        copies=CopyCheck(copies, mesh, settings.precision) if copies else None,
        objective=model.objective,
    )


def _stages(model: Description, mesh: Mesh, settings: Settings) -> dict[int, nn.Module]:
    """This rank's stages by number, described and not yet cut."""
    ranks = mesh.degrees.pp
    with torch.device("meta"):
        if ranks == 1:
            return {0: model.build()}
        total = num_stages(settings.schedule, ranks)
        mine = stages_of(settings.schedule, mesh.pp.get_local_rank(), ranks)
        found = {number: _stage(model, number, total) for number in mine}
        if ties := tied_names(model.build()):
            # All stages, so that all ranks refuse.
            check_stage_ties(
                ties, {number: _stage(model, number, total) for number in range(total)}
            )
    return found


def _stage(model: Description, number: int, total: int) -> nn.Module:
    """One stage of a pipeline."""
    part = model.build()
    layers = layers_of(number, total, len(model.plan.blocks(part)))
    model.plan.split_stage(part, layers, first=number == 0, last=number == total - 1)
    return part


def _prepare(
    part: nn.Module, model: Description, mesh: Mesh, settings: Settings, device: torch.device
) -> nn.Module:
    """Cut one stage in the fixed order, and give it memory and values."""
    kind = kind_of(mesh.degrees, settings)
    check_fitness(part, mesh.degrees, model.plan)
    ties = tied_names(part)
    if settings.float8:
        apply_float8(part, model.plan)
    if mesh.degrees.tp > 1:
        apply_tensor(part, mesh, model.plan)
    apply_experts(part, mesh, model.plan)
    keep_ties(part, ties)
    if mesh.degrees.cp > 1:
        apply_context(part, mesh, model.plan, settings.context)
    apply_recompute(part, model.plan, settings.recompute)
    if settings.compile:
        apply_compile(part, model.plan, device)
    if kind in {DataParallelism.FSDP, DataParallelism.HSDP}:
        check_unit_ties(part, ties, model.plan)
        apply_fsdp(part, mesh, model.plan, settings)
    part.to_empty(device=torch.device("cpu") if settings.cpu_offload else device)
    keep_ties(part, ties)
    if device.type == "meta":
        return part  # nothing is computed: a plan
    fill_values(part, model.materialize)
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
