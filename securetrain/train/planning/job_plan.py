# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Plan a job: is its mesh valid, does it fit, who talks to whom, how much.

Rules:

1. what `check_world` refuses for a run is refused here, with the same words;
2. parameters are counted as `parallelize` cuts them, on a fake process group of the job's size;
   pipeline ranks that hold the same are laid out once;
3. a job that does not fit is a finding, with the nearest mesh that does, or none.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import msgspec

from securetrain.parallel import (
    Axis,
    Degrees,
    Settings,
    bubble,
    layers_of,
    stages_of,
    stages_per_rank,
)
from securetrain.train.composition import check_world
from securetrain.train.config import JobConfig, settings_of, shape_of
from securetrain.train.models.shape import ModelShape, flops_per_token, num_parameters
from securetrain.train.planning.axis_groups import Groups, groups_of
from securetrain.train.planning.devices import Device
from securetrain.train.planning.memory import LocalParameters, Memory, Workload, held, memory_of
from securetrain.train.planning.suggest import differing, suggest, workload_of
from securetrain.train.planning.traffic import bytes_per_step

Layout: TypeAlias = Callable[[ModelShape, Degrees, Settings, LocalParameters], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlan:
    """One pipeline rank; all ranks of it are alike."""

    pipeline_rank: int
    layers: tuple[int, ...]
    parameters: int
    """Elements that each of its ranks keeps."""
    memory: Memory
    traffic: dict[Axis, int]
    """Bytes that each of its ranks sends in a step, by axis."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlan:
    """The needs of a job."""

    name: str
    shape: ModelShape
    degrees: Degrees
    per_node: int
    parameters: int
    tokens_per_step: int
    flops_per_token: int
    microbatches: int
    bubble: float
    """The part of a step in which a pipeline rank waits."""
    ranks: tuple[RankPlan, ...]
    groups: tuple[Groups, ...]
    device: Device | None
    warnings: tuple[str, ...]
    suggestion: tuple[str, ...]
    """Fields of job.yaml that would make it fit; empty when it fits or nothing does."""
    seconds: float
    """How long planning took, without imports."""

    @property
    def fullest(self) -> RankPlan:
        """The rank that needs the most memory."""
        return max(self.ranks, key=lambda rank: rank.memory.total)

    @property
    def fits(self) -> bool | None:
        """True when every rank fits; None when no device was named."""
        if self.device is None:
            return None
        return self.fullest.memory.total <= self.device.budget

    def document(self) -> dict[str, Any]:
        """The plan as plain values."""
        values: dict[str, Any] = msgspec.to_builtins(self)
        values["fits"] = self.fits
        values["world"] = self.degrees.world
        for plain, rank in zip(values["ranks"], self.ranks, strict=True):
            plain["memory"]["total"] = rank.memory.total
        return values


def make_plan(
    job: JobConfig, where: str, *, per_node: int, nodes: int, device: Device | None
) -> JobPlan:
    """Plan a job.

    Args:
        job: The job to plan.
        where: The job file's name, for messages.
        per_node: Processes on each node.
        nodes: How many nodes.
        device: The device of each process; None compares nothing.

    Raises:
        UsageError: ST-USAG-007, the job and the number of processes do not go together.
    """
    degrees = check_world(job, per_node * nodes, where)
    # Imported here: a job that is refused need not wait for torch.
    from securetrain.train.planning.fake_mesh import local_elements  # noqa: PLC0415

    begin = time.perf_counter()
    work, settings, shape = workload_of(job, degrees), settings_of(job), shape_of(job)
    ranks = tuple(_ranks(work, local_elements))
    groups = groups_of(degrees, per_node)
    plan = JobPlan(
        name=job.name,
        shape=shape,
        degrees=degrees,
        per_node=per_node,
        parameters=num_parameters(shape),
        tokens_per_step=job.data.batch_rows * job.data.seq_len,
        flops_per_token=flops_per_token(shape, job.data.seq_len),
        microbatches=settings.microbatches,
        bubble=bubble(settings.schedule, degrees.pp, settings.microbatches),
        ranks=ranks,
        groups=groups,
        device=device,
        warnings=tuple(_warnings(work, groups)),
        suggestion=(),
        seconds=0.0,
    )
    found = None
    if plan.fits is False:
        assert device is not None
        found = suggest(job, degrees.world, per_node, device.budget)
    return replace(
        plan,
        suggestion=() if found is None else tuple(differing(job, found)),
        seconds=time.perf_counter() - begin,
    )


def _ranks(work: Workload, local_elements: Layout) -> list[RankPlan]:
    counted: dict[object, int] = {}
    plans = []
    for rank in range(work.degrees.pp):
        layers, ends = _layers(work, rank)
        found, alike = held(work, rank), (tuple(len(stage) for stage in layers), ends)
        if alike not in counted:
            counted[alike] = local_elements(work.shape, work.degrees, work.settings, found)
        found = replace(found, local=counted[alike])
        plans.append(
            RankPlan(
                pipeline_rank=rank,
                layers=tuple(layer for stage in layers for layer in stage),
                parameters=found.local,
                memory=memory_of(work, found),
                traffic=bytes_per_step(work, found),
            )
        )
    return plans


def _layers(work: Workload, rank: int) -> tuple[list[range], tuple[bool, bool]]:
    """The layers of each stage of a pipeline rank, and whether it has the first and last stage."""
    ranks, schedule = work.degrees.pp, work.settings.schedule
    if ranks == 1:
        return [range(work.shape.layers)], (True, True)
    total = ranks * stages_per_rank(schedule)
    mine = stages_of(schedule, rank, ranks)
    return [layers_of(n, total, work.shape.layers) for n in mine], (0 in mine, total - 1 in mine)


def _warnings(work: Workload, groups: tuple[Groups, ...]) -> list[str]:
    found = [
        f"{group.axis} groups reach over {group.nodes} nodes: what they send in every layer waits"
        " for the network; put them inside a node"
        for group in groups
        if group.axis in {Axis.TP, Axis.EP} and group.nodes > 1
    ]
    waiting = bubble(work.settings.schedule, work.degrees.pp, work.settings.microbatches)
    if waiting > 0.25:
        found.append(
            f"pipeline ranks wait {waiting:.0%} of the time: more microbatches, or another schedule"
        )
    return found
