# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Find a mesh that fits, near to one that does not. Free of torch.

Candidates keep what is asked of the model, the rows and the number of processes. They are tried
from the cheapest change to the dearest: parameters cut at level 3, activations computed again, then
more tensor parallelism inside a node, then more pipeline ranks.
"""

from collections.abc import Iterator
from itertools import product

import msgspec

from securetrain.core.errors import UsageError
from securetrain.parallel import Degrees, Recompute, Zero
from securetrain.train.composition import check_world
from securetrain.train.config import AUTO, ComputeJob, JobConfig, ParallelJob, settings_of, shape_of
from securetrain.train.planning.memory import Workload, held, memory_of

_LIMIT = 4096
"""Candidates that are looked at."""


def suggest(job: JobConfig, world: int, per_node: int, budget: int) -> JobConfig | None:
    """A job that fits `budget` bytes a rank, or None when no candidate does."""
    for number, candidate in enumerate(_candidates(job, world, per_node)):
        if number == _LIMIT:
            break
        try:
            degrees = check_world(candidate, world, "")
        except UsageError:
            continue
        if max(totals(candidate, degrees)) <= budget:
            return candidate
    return None


def workload_of(job: JobConfig, degrees: Degrees) -> Workload:
    """Build the workload of one rank of a job."""
    settings = settings_of(job)
    return Workload(
        shape=shape_of(job),
        degrees=degrees,
        settings=settings,
        rows=job.data.batch_rows // (degrees.dp * settings.microbatches),
        length=job.data.seq_len,
    )


def totals(job: JobConfig, degrees: Degrees) -> list[int]:
    """Bytes of a rank of each pipeline rank, from the sizes alone."""
    work = workload_of(job, degrees)
    return [memory_of(work, held(work, rank)).total for rank in range(degrees.pp)]


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


def _candidates(job: JobConfig, world: int, per_node: int) -> Iterator[JobConfig]:
    asked, compute = job.parallel, job.compute
    tensor = [n for n in _powers(per_node) if n >= asked.tp]
    stages = [n for n in _powers(min(world, job.model.layers)) if n >= asked.pp]
    microbatches = list(dict.fromkeys([asked.microbatches, AUTO, *_powers(job.data.batch_rows)]))
    recompute = list(Recompute)[list(Recompute).index(compute.recompute) :]
    for pp, tp, again, pieces in product(stages, tensor, recompute, microbatches):
        yield msgspec.structs.replace(
            job,
            parallel=_changed(asked, pp, tp, pieces),
            compute=_recomputed(compute, again),
        )


def _changed(asked: ParallelJob, pp: int, tp: int, pieces: int | str) -> ParallelJob:
    changed: ParallelJob = msgspec.structs.replace(
        asked,
        pp=pp,
        tp=tp,
        dp_replicate=1,
        dp_shard=AUTO,
        microbatches=pieces,
        zero=Zero.PARAMETERS,
    )
    return changed


def _recomputed(compute: ComputeJob, again: Recompute) -> ComputeJob:
    changed: ComputeJob = msgspec.structs.replace(compute, recompute=again)
    return changed


def _powers(limit: int) -> list[int]:
    return [1 << n for n in range(limit.bit_length()) if 1 << n <= limit]
