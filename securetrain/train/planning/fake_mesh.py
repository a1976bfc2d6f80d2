# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Lay a model out over a mesh of any size in one process: torch's fake process group, and
parameters on the meta device.

This is `parallelize` itself, so that what it would refuse is refused here, and what it would cut is
counted as it is cut.
"""

import dataclasses
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from securetrain.parallel import (
    Compression,
    DataParallelism,
    Degrees,
    Description,
    ParallelPlan,
    Recompute,
    Settings,
    kind_of,
    make_mesh,
    num_stages,
    parallelize,
)
from securetrain.train.models.llama import Llama
from securetrain.train.models.llama_plan import LlamaPlan
from securetrain.train.models.shape import ModelShape
from securetrain.train.planning.cuts import Cut
from securetrain.train.planning.workload import LocalParameters

BLOCKS: Final = "layers."
"""How the names of parameters in blocks begin."""


def local_parameters(
    shape: ModelShape, degrees: Degrees, settings: Settings, pipeline_rank: int
) -> dict[str, int]:
    """Elements of every parameter that the first rank of a pipeline rank keeps, by name."""
    rank = pipeline_rank * degrees.world // degrees.pp
    with fake_group(rank, degrees.world):
        model = Description(
            build=lambda: Llama(shape), materialize=lambda _: None, plan=LlamaPlan()
        )
        parameters = _parts(model, degrees, settings)
        return {
            name: (value.to_local() if isinstance(value, DTensor) else value).numel()
            for name, value in parameters
        }


def cuts_of(shape: ModelShape, degrees: Degrees, settings: Settings) -> tuple[Cut, ...]:
    """Explain how every parameter is cut; the first block of a stage stands for all."""
    thin = dataclasses.replace(shape, layers=num_stages(settings.schedule, degrees.pp))
    return explain_cuts(lambda: Llama(thin), LlamaPlan(), degrees, settings)


def explain_cuts(
    build: Callable[[], nn.Module],
    plan: ParallelPlan,
    degrees: Degrees,
    settings: Settings | None = None,
) -> tuple[Cut, ...]:
    """Explain how a plan cuts every parameter of any model, without a job; blocks that are cut
    alike are named once.

    Args:
        build: Makes the module; called on the meta device.
        plan: What it says about itself.
        degrees: The mesh, of any size.
        settings: How it is made parallel.

    Raises:
        SecureTrainError: What `parallelize` would refuse on that mesh.
    """
    model = Description(build=build, materialize=lambda _: None, plan=plan)
    with torch.device("meta"):
        blocks = {name.rpartition(".")[0] for name in plan.blocks(build())}
    lists = "|".join(sorted(map(re.escape, blocks))) or "$"
    number, found = re.compile(rf"^({lists})\.\d+\."), dict[Cut, None]()
    for pipeline_rank in range(degrees.pp):
        with fake_group(pipeline_rank * degrees.world // degrees.pp, degrees.world):
            for name, value in _parts(model, degrees, settings or Settings()):
                found[_cut(number.sub(r"\1.*.", name), value)] = None
    return tuple(found)


def _cut(name: str, value: nn.Parameter) -> Cut:
    if not isinstance(value, DTensor):
        return Cut(name=name, whole=tuple(value.shape), axes=(), local=tuple(value.shape))
    named = zip(value.device_mesh.mesh_dim_names or (), value.placements, strict=True)
    axes = tuple(
        f"{axis} {getattr(placement, 'dim', 'whole')}"
        for axis, placement in named
        if value.device_mesh[axis].size() > 1
    )
    local = tuple(value.to_local().shape)
    return Cut(name=name, whole=tuple(value.shape), axes=axes, local=local)


def local_elements(
    shape: ModelShape, degrees: Degrees, settings: Settings, held: LocalParameters
) -> int:
    """Elements that the first rank of a pipeline rank keeps; blocks are alike, so each stage is
    laid out with one of them.

    Args:
        shape: The model's sizes.
        degrees: The mesh.
        settings: The job's settings.
        held: Which pipeline rank, and how many blocks it has.
    """
    stages = num_stages(settings.schedule, degrees.pp)
    thin = dataclasses.replace(shape, layers=stages)
    found = local_parameters(thin, degrees, settings, held.pipeline_rank)
    blocks = sum(count for name, count in found.items() if name.startswith(BLOCKS))
    return sum(found.values()) - blocks + blocks * degrees.pp // stages * held.blocks


def _parts(
    model: Description, degrees: Degrees, settings: Settings
) -> list[tuple[str, nn.Parameter]]:
    if kind_of(degrees, settings) is DataParallelism.DDP:
        with torch.device("meta"):
            return list(model.build().named_parameters())
    # Settings that need memory or a compiler do not change what is cut.
    plain = dataclasses.replace(
        settings,
        cpu_offload=False,
        recompute=Recompute.NONE,
        compile=False,
        async_tp=False,
        float8=False,
        compression=Compression.NONE,
    )
    mesh = make_mesh(degrees, "cpu")
    return list(parallelize(model, mesh, plain, torch.device("meta")).named_parameters())


@contextmanager
def fake_group(rank: int, world: int) -> Iterator[None]:
    """A process group of any size in one process; messages are not sent."""
    if dist.is_initialized():
        raise ValueError("a plan is made in a process without a process group")
    dist.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()
