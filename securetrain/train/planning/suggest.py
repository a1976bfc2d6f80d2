# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Find meshes that fit, the fastest first. Free of torch.

Rules:

1. a candidate keeps what is asked of the model, the rows, the schedule and the number of processes;
   mesh, recomputing and microbatches change together;
2. candidates are ordered by their estimated step time (`step_time`), and those within `ALIKE` of
   each other by how little they change; without a known speed, by how little they change alone;
3. what `check_world` refuses is no candidate, and one that fits does so at the upper end of the
   plan's error;
4. one suggestion for each mesh: its fastest.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Final

import msgspec

from securetrain.core.errors import UsageError
from securetrain.parallel import Degrees, Recompute, Settings, Zero, default_microbatches
from securetrain.train.composition import check_world
from securetrain.train.config import AUTO, JobConfig, settings_of, shape_of
from securetrain.train.models.shape import ModelShape
from securetrain.train.planning.devices import Device
from securetrain.train.planning.memory import ERROR, memory_of
from securetrain.train.planning.step_time import StepTime, beyond, step_time
from securetrain.train.planning.workload import Workload, held

SHOWN: Final = 3
"""Suggestions of one plan."""
ALIKE: Final = 0.02
"""Estimates no further apart than this say nothing about which is faster."""
LONG: Final = 4096
"""Positions that a context-parallel rank keeps at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """A job that fits."""

    fields: tuple[str, ...]
    """What changes in job.yaml."""
    degrees: Degrees
    recompute: Recompute
    microbatches: int
    memory: int
    """Bytes of the fullest rank."""
    time: StepTime | None
    """None where the device's speed is not known."""
    beyond: tuple[str, ...]
    """Why the estimate goes beyond what it was compared with; empty where it does not."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    """One choice, cheap to order."""

    work: Workload
    changes: tuple[int, ...]
    time: StepTime | None

    @property
    def order(self) -> tuple[int, tuple[int, ...]]:
        """Place among candidates: estimates that are alike count as one."""
        alike = 0 if self.time is None else math.floor(math.log(self.time.total) / ALIKE)
        return alike, self.changes


def suggest(job: JobConfig, world: int, per_node: int, device: Device) -> tuple[Suggestion, ...]:
    """The fastest few jobs that fit, the fastest first; empty when no candidate does."""
    found: dict[Degrees, Suggestion] = {}
    for candidate in sorted(_candidates(job, world, per_node, device), key=lambda c: c.order):
        work = candidate.work
        if work.degrees in found or (total := _fits(work, device.budget)) is None:
            continue
        changed = _changed(job, candidate)
        try:
            check_world(changed, world, "")
        except UsageError:
            continue
        found[work.degrees] = Suggestion(
            fields=tuple(differing(job, changed)),
            degrees=work.degrees,
            recompute=work.settings.recompute,
            microbatches=work.settings.microbatches,
            memory=total,
            time=candidate.time,
            beyond=beyond(work, device, per_node) if candidate.time else (),
        )
        if len(found) == SHOWN:
            break
    return tuple(found.values())


def workload_of(job: JobConfig, degrees: Degrees) -> Workload:
    """Build the workload of one rank of a job."""
    settings = settings_of(job)
    return _workload(job, shape_of(job), degrees, settings)


def differing(asked: JobConfig, found: JobConfig) -> list[str]:
    """The fields of job.yaml that a suggestion changes, as they would be written."""
    lines = []
    for section in ("parallel", "compute"):
        before, after = getattr(asked, section), getattr(found, section)
        for name in before.__struct_fields__:
            value = getattr(after, name)
            if getattr(before, name) != value:
                lines.append(f"{section}.{name}: {msgspec.json.encode(value).decode()}")
    return lines


def _workload(job: JobConfig, shape: ModelShape, degrees: Degrees, settings: Settings) -> Workload:
    return Workload(
        shape=shape,
        degrees=degrees,
        settings=settings,
        rows=job.data.batch_rows // (degrees.dp * settings.microbatches),
        length=job.data.seq_len,
    )


def _fits(work: Workload, budget: int) -> int | None:
    """Bytes of the fullest rank; None when that, with the plan's error, is more than `budget`."""
    fullest, ranks = 0, work.degrees.pp
    # The ends are nearly always the fullest: what does not fit is seen there.
    for rank in dict.fromkeys((0, ranks - 1, *range(ranks))):
        fullest = max(fullest, memory_of(work, held(work, rank)).total)
        if fullest * (1 + ERROR) > budget:
            return None
    return fullest


def _candidates(job: JobConfig, world: int, per_node: int, device: Device) -> Iterator[_Candidate]:
    shape, settings = shape_of(job), settings_of(job)
    levels = tuple(dict.fromkeys((settings.zero, Zero.PARAMETERS)))
    for degrees in _meshes(job, world, per_node):
        rows = job.data.batch_rows // degrees.dp
        pieces = [n for n in _powers(rows, settings.microbatches) if rows % n == 0]
        # Stages keep all parameters whole, at every level.
        each = levels if degrees.pp == 1 else (settings.zero,)
        for zero, again, count in product(each, Recompute, pieces):
            chosen = replace(settings, zero=zero, recompute=again, microbatches=count)
            work = _workload(job, shape, degrees, chosen)
            yield _Candidate(work, _changes(job, work), step_time(work, device, per_node))


def _meshes(job: JobConfig, world: int, per_node: int) -> Iterator[Degrees]:
    """The meshes of so many ranks: tensor parallelism stays inside a node."""
    asked, rows = job.parallel, job.data.batch_rows
    pipelines = _powers(min(world, job.model.layers), asked.pp)
    contexts = _powers(max(1, job.data.seq_len // LONG), asked.cp)
    for pp, tp, cp in product(pipelines, _powers(per_node, asked.tp), contexts):
        left, rest = divmod(world, pp * tp * cp)
        if rest or rows % left or job.eval.rows % left:
            continue
        # Copies of what is cut over one node, and copies of a whole model.
        copies = {1, asked.dp_replicate, left // max(1, per_node // (tp * cp))}
        if pp * tp * cp == 1:
            copies.add(left)
        for replicas in sorted(copies):
            if replicas < 1 or left % replicas or left // replicas * cp * tp % asked.ep:
                continue
            yield Degrees(
                pp=pp, dp_replicate=replicas, dp_shard=left // replicas, cp=cp, tp=tp, ep=asked.ep
            )


def _changes(job: JobConfig, work: Workload) -> tuple[int, ...]:
    """The changes of a candidate as numbers, the dearest first."""
    asked, before = job.parallel, settings_of(job)
    degrees, after = work.degrees, work.settings
    moved = (degrees.pp != asked.pp, degrees.cp != asked.cp, degrees.tp != asked.tp)
    others = (degrees.dp_replicate != asked.dp_replicate, after.zero != before.zero)
    dearer = list(Recompute).index(after.recompute) - list(Recompute).index(before.recompute)
    return (
        sum(moved), degrees.pp, degrees.cp, degrees.tp, abs(dearer),
        int(after.microbatches != before.microbatches), after.microbatches, sum(others),
    )  # fmt: skip


def _changed(job: JobConfig, candidate: _Candidate) -> JobConfig:
    """The job, with the fields that a candidate changes."""
    asked, degrees = job.parallel, candidate.work.degrees
    settings = candidate.work.settings
    same = asked.microbatches == AUTO and settings.microbatches == default_microbatches(degrees.pp)
    parallel = msgspec.structs.replace(
        asked,
        pp=degrees.pp,
        dp_replicate=degrees.dp_replicate,
        dp_shard=asked.dp_shard if asked.dp_shard == degrees.dp_shard else AUTO,
        cp=degrees.cp,
        tp=degrees.tp,
        zero=settings.zero,
        microbatches=AUTO if same else settings.microbatches,
    )
    compute = msgspec.structs.replace(job.compute, recompute=settings.recompute)
    return msgspec.structs.replace(job, parallel=parallel, compute=compute)


def _powers(limit: int, asked: int) -> list[int]:
    """The powers of two up to a limit, and what was asked."""
    powers = {1 << n for n in range(limit.bit_length()) if 1 << n <= limit}
    return sorted(powers | {asked})
