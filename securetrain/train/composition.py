# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Checks that a model, its rows and a mesh fit together. Free of torch.

Everything that torch would refuse in the middle of a step, or would get wrong in silence, is
refused here, before a process group exists: with the field, the reason and the nearest choice.
"""

import math
from typing import Final

from securetrain.core.errors import GuardError
from securetrain.parallel import (
    Compression,
    ContextKind,
    DataParallelism,
    Degrees,
    RequestedDegrees,
    check_microbatches,
    check_reduction,
    check_schedule,
    kind_of,
    nearest_divisor,
    num_stages,
    resolve_degrees,
    stages_per_rank,
)
from securetrain.policy.schema import Gradients, GuardMode, GuardResponse
from securetrain.train.config import AUTO, NEVER, JobConfig, bad_field, settings_of, shape_of

FLOAT8_UNIT: Final = 16
"""Sizes of matrices in float8 are multiples of this."""


def check_world(job: JobConfig, world: int, where: str) -> Degrees:
    """The mesh's degrees for `world` processes, with all that must divide by them.

    Raises:
        UsageError: ST-USAG-007 with the nearest valid choice.
    """
    asked = job.parallel
    wanted = RequestedDegrees(
        pp=asked.pp,
        dp_replicate=asked.dp_replicate,
        dp_shard=None if asked.dp_shard == AUTO else int(asked.dp_shard),
        cp=asked.cp,
        tp=asked.tp,
        ep=asked.ep,
    )
    degrees = resolve_degrees(wanted, world=world, where=where)
    check_composition(job, degrees, where)
    return degrees


def check_composition(job: JobConfig, degrees: Degrees, where: str) -> None:
    """Check a job against degrees that fit the world.

    Raises:
        UsageError: ST-USAG-007 with the nearest valid choice.
    """
    _check_rows(job, degrees, where)
    _check_tensor(job, degrees, where)
    _check_sequence(job, degrees, where)
    _check_pipeline(job, degrees, where)
    _check_experts(job, degrees, where)
    _check_choices(job, degrees, where)
    _check_float8(job, degrees, where)


def check_guard(job: JobConfig, mode: GuardMode, where: str) -> None:
    """The guard sketches what a rank sends, and its hook takes the place of one that compresses.

    Raises:
        UsageError: ST-USAG-007.
    """
    if job.parallel.compression is not Compression.NONE and mode is not GuardMode.OFF:
        raise bad_field(
            f"the policy has gradients watched ({mode}), and the guard takes them as they are",
            where,
            "parallel.compression",
            "compression: none, or gradients.mode: off in the policy",
        )


def check_rollback(settings: Gradients, *, has_launcher: bool) -> None:
    """The launcher sets checkpoints aside when a run goes back; without it nobody can.

    Raises:
        GuardError: ST-GRAD-021.
    """
    if settings.mode is GuardMode.OFF or settings.response is not GuardResponse.ROLLBACK:
        return
    if not has_launcher:
        raise GuardError(
            "ST-GRAD-021",
            "no launcher is there to set aside what was saved since an offence",
            "gradients.response",
            "start the job with securetrain train; or use exclude-rank",
        )


def _check_rows(job: JobConfig, degrees: Degrees, where: str) -> None:
    pieces = settings_of(job).microbatches
    unit = degrees.dp * pieces
    if job.data.batch_rows % unit:
        raise bad_field(
            f"{job.data.batch_rows} rows do not divide among {degrees.dp} data-parallel ranks"
            + (f" and {pieces} microbatches" if pieces > 1 else ""),
            where,
            "data.batch_rows",
            f"batch_rows: {_above(job.data.batch_rows, unit)}",
        )
    if job.eval.rows % degrees.dp:
        raise bad_field(
            f"{job.eval.rows} rows do not divide among {degrees.dp} data-parallel ranks",
            where,
            "eval.rows",
            f"rows: {_above(job.eval.rows, degrees.dp)}",
        )


def _check_sequence(job: JobConfig, degrees: Degrees, where: str) -> None:
    length = job.data.seq_len
    # Context-parallel ranks take one piece of each half; tensor-parallel ones cut what is theirs.
    unit = degrees.cp * (2 if degrees.cp > 1 else 1) * degrees.tp
    if length % unit:
        raise bad_field(
            f"{length} positions do not divide among cp {degrees.cp} and tp {degrees.tp}",
            where,
            "data.seq_len",
            f"seq_len: {_above(length, unit)}",
        )


def _check_tensor(job: JobConfig, degrees: Degrees, where: str) -> None:
    shape, tp = shape_of(job), degrees.tp
    cut = {"heads": shape.heads, "kv_heads": shape.keys, "vocab": shape.vocab}
    if not shape.experts:
        cut["ffn"] = shape.ffn
    for name, value in cut.items():
        if value % tp:
            raise bad_field(
                f"tp {tp} does not divide {name} {value}",
                where,
                "parallel.tp",
                f"tp: {nearest_divisor(math.gcd(degrees.dp_shard * tp, *cut.values()), tp)}",
            )
    if job.parallel.context is ContextKind.ULYSSES and degrees.cp > 1:
        for name, value in (("heads", shape.heads // tp), ("kv_heads", shape.keys // tp)):
            if value % degrees.cp:
                raise bad_field(
                    f"ulysses swaps positions for heads, and cp {degrees.cp} does not divide the"
                    f" {value} {name} of a rank",
                    where,
                    "parallel.context",
                    "context: ring, which needs no heads to spare",
                )
    if shape.tied and (tp > 1 or degrees.pp > 1):
        raise bad_field(
            "embedding and head are one matrix, which lies on one pipeline rank and is not cut",
            where,
            "model.tied",
            "tied: false, or pp: 1 and tp: 1",
        )


def _check_pipeline(job: JobConfig, degrees: Degrees, where: str) -> None:
    check_reduction(degrees, settings_of(job), f"{where}: parallel.reduce_each_microbatch")
    if degrees.pp == 1:
        return
    check_schedule(degrees, settings_of(job), f"{where}: compute.recompute")
    schedule = job.parallel.schedule
    stages = num_stages(schedule, degrees.pp)
    if job.model.layers < stages:
        raise bad_field(
            f"{schedule} on pp {degrees.pp} has {stages} stages, the model {job.model.layers}"
            " layers",
            where,
            "parallel.pp",
            f"pp: {max(1, job.model.layers // stages_per_rank(schedule))}",
        )
    check_microbatches(degrees, settings_of(job), f"{where}: parallel.microbatches")


def _check_experts(job: JobConfig, degrees: Degrees, where: str) -> None:
    shape = shape_of(job)
    if not shape.experts:
        if degrees.ep > 1:
            raise bad_field("the model has no experts", where, "parallel.ep", "ep: 1")
        return
    borrowed = degrees.fsdp * degrees.tp
    if shape.experts % degrees.ep:
        raise bad_field(
            f"ep {degrees.ep} does not divide {shape.experts} experts",
            where,
            "parallel.ep",
            f"ep: {nearest_divisor(math.gcd(shape.experts, borrowed), degrees.ep)}",
        )
    # FSDP cuts each expert, and evenly only.
    shards = degrees.efsdp if degrees.ep > 1 else degrees.fsdp
    for name, value in (("dim", shape.dim), ("ffn", shape.ffn)):
        if value % shards:
            raise bad_field(
                f"each expert is cut among {shards} ranks, which do not divide {name} {value}",
                where,
                f"model.{name}",
                f"{name}: {_above(value, shards)}, or more ep and dp_replicate",
            )


def _check_choices(job: JobConfig, degrees: Degrees, where: str) -> None:
    asked, kind = job.parallel, kind_of(degrees, settings_of(job))
    if asked.compression is not Compression.NONE and kind is not DataParallelism.DDP:
        raise bad_field(
            f"gradients are compressed on their way by DDP only, and this mesh is {kind}",
            where,
            "parallel.compression",
            "compression: none, or dp_replicate alone",
        )
    if asked.compression is Compression.POWERSGD and job.checkpoint.resume != NEVER:
        raise bad_field(
            "PowerSGD keeps on each rank what it has not sent yet, and no checkpoint holds that",
            where,
            "checkpoint.resume",
            "resume: never, or compression: fp16",
        )
    if asked.async_tp and not (degrees.tp > 1 and job.compute.compile):
        raise bad_field(
            "there is nothing to overlap without tp, and the compiler does it",
            where,
            "parallel.async_tp",
            "async_tp: false, or tp: 2 and compute.compile: true",
        )


def _check_float8(job: JobConfig, degrees: Degrees, where: str) -> None:
    if not job.compute.float8:
        return
    shape, unit = shape_of(job), FLOAT8_UNIT * degrees.tp
    for name, value in (
        ("dim", shape.dim), ("ffn", shape.ffn), ("heads x head_size", shape.heads * shape.head),
        ("kv_heads x head_size", shape.keys * shape.head),
    ):  # fmt: skip
        if value % unit:
            raise bad_field(
                f"float8 computes in pieces of {FLOAT8_UNIT}, and {name} is {value}"
                + (f" over tp {degrees.tp}" if degrees.tp > 1 else ""),
                where,
                "compute.float8",
                f"float8: false, or {name}: {_above(value, unit)}",
            )


def _above(value: int, unit: int) -> int:
    return -(-value // unit) * unit
