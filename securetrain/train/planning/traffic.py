# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The bytes that a rank sends in a step, by axis. Free of torch.

A ring among n ranks sends (n-1)/n of a tensor for a gather or a reduce-scatter, and twice that for
an all-reduce (Patarasuk and Yuan 2009). The busiest pipeline rank is counted.
"""

from securetrain.parallel import (
    Axis,
    ContextKind,
    DataParallelism,
    Recompute,
    Zero,
    kind_of,
    stages_per_rank,
)
from securetrain.train.planning.workload import FP32, LocalParameters, Workload


def bytes_per_step(work: Workload, found: LocalParameters) -> dict[Axis, int]:
    """Bytes that one rank sends along each axis of the mesh in one step."""
    counted = {
        Axis.PP: pipeline(work),
        Axis.DP_REPLICATE: replicas(work, found),
        Axis.DP_SHARD: shards(work, found),
        Axis.CP: context(work, found),
        Axis.TP: tensor(work, found),
        Axis.EP: experts(work, found),
    }
    if work.degrees.dp_shard == 1:
        # Parameters are cut over the context-parallel ranks alone.
        counted[Axis.CP] += counted.pop(Axis.DP_SHARD)
    return {axis: int(n) for axis, n in counted.items() if work.degrees.degree(axis) > 1}


def _share(ranks: int) -> float:
    return (ranks - 1) / ranks


def _passes(work: Workload) -> int:
    """Forward and backward, and forward again with recomputation."""
    return 3 if work.settings.recompute is Recompute.FULL else 2


def replicas(work: Workload, found: LocalParameters) -> float:
    """An all-reduce of the gradients that a rank keeps."""
    return 2 * _share(work.degrees.dp_replicate) * found.local * FP32


def shards(work: Workload, found: LocalParameters) -> float:
    """FSDP over dp_shard x cp: gather parameters, scatter gradients."""
    if kind_of(work.degrees, work.settings) is DataParallelism.DDP:
        return 0.0
    ranks = work.degrees.fsdp
    whole = found.blocks * found.block + found.rest
    settings = work.settings
    again = settings.zero is Zero.PARAMETERS and work.degrees.pp == 1
    gathers = 2 * settings.microbatches if again else 1
    scatters = 1 if settings.zero is Zero.OPTIMIZER else settings.microbatches
    if work.degrees.pp > 1 and not settings.reduce_each_microbatch:
        scatters = 1
    return _share(ranks) * whole * (gathers * work.element + scatters * FP32)


def tensor(work: Workload, found: LocalParameters) -> float:
    """Two gathers and two scatters a block and pass (Korthikanti et al. 2022)."""
    stream = work.tokens * work.shape.dim * work.element
    each = 4 * _share(work.degrees.tp) * stream * _passes(work)
    return each * found.blocks * work.settings.microbatches


def context(work: Workload, found: LocalParameters) -> float:
    """Keys and values of the others forward, their gradients back; or four all-to-alls."""
    shape, cp = work.shape, work.degrees.cp
    keys = 2 * shape.keys * shape.head * work.tokens * work.element / work.degrees.tp
    if work.settings.context is ContextKind.ULYSSES:
        queries = 2 * shape.heads * shape.head * work.tokens * work.element / work.degrees.tp
        each = _share(cp) * (keys + queries)
    else:
        each = (cp - 1) * keys
    return each * _passes(work) * found.blocks * work.settings.microbatches


def experts(work: Workload, found: LocalParameters) -> float:
    """There and back again, for each chosen expert."""
    shape = work.shape
    tokens = work.tokens / work.degrees.tp * shape.experts_per_token
    each = 2 * _share(work.degrees.ep) * tokens * shape.dim * work.element
    return each * _passes(work) * found.blocks * work.settings.microbatches


def pipeline(work: Workload) -> float:
    """Hidden states forward and their gradients back, once for each stage of a rank."""
    stream = work.tokens * work.shape.dim * work.element / work.degrees.tp
    return 2 * stream * work.settings.microbatches * stages_per_rank(work.settings.schedule)
