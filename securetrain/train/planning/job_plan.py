# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Plan a job: is its mesh valid, does it fit, who talks to whom, how much.

Rules:

1. what `check_world` refuses for a run is refused here, with the same words;
2. parameters are counted as `parallelize` cuts them, on a fake process group of the job's size;
   pipeline ranks that hold the same are laid out once;
3. a job that does not fit is a finding, with the fastest meshes that do, or none; one that fits is
   told of those that are faster by more than `FASTER`.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final, TypeAlias

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
from securetrain.train.planning.cuts import Cut
from securetrain.train.planning.devices import Device
from securetrain.train.planning.memory import ERROR, Memory, memory_of
from securetrain.train.planning.step_time import ERROR as TIME_ERROR
from securetrain.train.planning.step_time import StepTime, beyond, step_time
from securetrain.train.planning.suggest import Suggestion, suggest, workload_of
from securetrain.train.planning.traffic import bytes_per_step
from securetrain.train.planning.workload import LocalParameters, Workload, held

FASTER: Final = 0.1
"""A job that fits is told of another mesh when that takes this part less."""
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


class Verdict(StrEnum):
    """The comparison of a plan and a device; the plan's error bar is `memory.ERROR`."""

    FITS = "fits"
    UNCERTAIN = "uncertain"
    """The device's memory is within the error bar."""
    TOO_MUCH = "does not fit"


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
    suggestions: tuple[Suggestion, ...]
    """The fastest few that fit: all of them when the job does not, else those faster than it."""
    time: StepTime | None
    """An estimate; None without a device whose speed is known."""
    beyond: tuple[str, ...]
    """Why that estimate goes beyond what it was compared with; empty where it does not."""
    cuts: tuple[Cut, ...]
    """How parameters are cut; empty when that was not asked for."""
    seconds: float
    """How long planning took, without imports."""

    @property
    def fullest(self) -> RankPlan:
        """The rank that needs the most memory."""
        return max(self.ranks, key=lambda rank: rank.memory.total)

    @property
    def error(self) -> float:
        """The error of the plan, either way, as a part of it."""
        return ERROR

    @property
    def time_error(self) -> float:
        """The error of estimated times, either way, as a part of them."""
        return TIME_ERROR

    @property
    def verdict(self) -> Verdict | None:
        """The answer for the fullest rank, with the plan's error; None without a device."""
        if self.device is None:
            return None
        total = self.fullest.memory.total
        if total * (1 + ERROR) <= self.device.budget:
            return Verdict.FITS
        return Verdict.UNCERTAIN if total * (1 - ERROR) <= self.device.budget else Verdict.TOO_MUCH

    @property
    def fits(self) -> bool | None:
        """True when every rank fits for sure; None when no device was named."""
        return None if self.verdict is None else self.verdict is Verdict.FITS

    def document(self) -> dict[str, Any]:
        """The plan as plain values."""
        values: dict[str, Any] = msgspec.to_builtins(self)
        values["fits"] = self.fits
        values["verdict"] = self.verdict
        values["error"] = self.error
        values["world"] = self.degrees.world
        for plain, rank in zip(values["ranks"], self.ranks, strict=True):
            plain["memory"]["total"] = rank.memory.total
        values["time_error"] = self.time_error
        if self.time is not None:
            values["time"]["total"] = self.time.total
        for plain, found in zip(values["suggestions"], self.suggestions, strict=True):
            if found.time is not None:
                plain["time"]["total"] = found.time.total
        return values


def make_plan(
    job: JobConfig,
    where: str,
    *,
    per_node: int,
    nodes: int,
    device: Device | None,
    explain: bool = False,
) -> JobPlan:
    """Plan a job.

    Args:
        job: The job to plan.
        where: The job file's name, for messages.
        per_node: Processes on each node.
        nodes: How many nodes.
        device: The device of each process; None compares nothing.
        explain: Say how each parameter is cut.

    Raises:
        UsageError: ST-USAG-007, the job and the number of processes do not go together.
    """
    degrees = check_world(job, per_node * nodes, where)
    # Imported here: a job that is refused need not wait for torch.
    from securetrain.train.planning.fake_mesh import cuts_of, local_elements  # noqa: PLC0415

    begin = time.perf_counter()
    work, settings, shape = workload_of(job, degrees), settings_of(job), shape_of(job)
    ranks = tuple(_ranks(work, local_elements))
    groups = groups_of(degrees, per_node)
    spent = None if device is None else step_time(work, device, per_node)
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
        suggestions=(),
        time=spent,
        beyond=() if device is None or spent is None else beyond(work, device, per_node),
        cuts=cuts_of(shape, degrees, settings) if explain else (),
        seconds=0.0,
    )
    found = _suggestions(plan, job)
    return replace(
        plan,
        suggestion=found[0].fields if found and not plan.fits else (),
        suggestions=found,
        seconds=time.perf_counter() - begin,
    )


def _suggestions(plan: JobPlan, job: JobConfig) -> tuple[Suggestion, ...]:
    if plan.device is None:
        return ()
    if plan.fits and plan.time is None:
        return ()
    found = suggest(job, plan.degrees.world, plan.per_node, plan.device)
    if not plan.fits or plan.time is None:
        return found
    limit = plan.time.total * (1 - FASTER)
    return tuple(each for each in found if each.time is not None and each.time.total < limit)


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
