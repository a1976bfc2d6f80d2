# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Peaks of memory that others measured on GPUs, and the jobs that they measured.

Source: the benchmark tables of torchtitan, ``benchmarks/llama3_h100_202412_torchtitan.md`` of
github.com/pytorch/torchtitan: Llama 3.1 on H100 of 96 GB, December 2024. "Memory (GiB)" there is
the most that the allocator reserved, the maximum over all ranks. The tables do not say everything;
the rest is of the commit that they name (9dec370): selective recomputation keeps every second
matrix product, a pipeline has as many microbatches as ranks, the loss is not compiled.

Left out: ``llama3-8b_h200_202506_trainy-whitefiber.md`` (47.96 and 46.97 GiB); torchtitan compiled
the loss by then, which ours does not.
"""

from dataclasses import dataclass

from securetrain.parallel.degrees import Degrees
from securetrain.parallel.plan import ContextKind, Precision, Recompute, Settings
from securetrain.parallel.schedule import Schedule
from securetrain.train.models.shape import ModelShape

B8 = ModelShape(dim=4096, layers=32, heads=32, kv_heads=8, ffn=14336, vocab=128256)
B70 = ModelShape(dim=8192, layers=80, heads=64, kv_heads=8, ffn=28672, vocab=128256)
B405 = ModelShape(dim=16384, layers=126, heads=128, kv_heads=8, ffn=53248, vocab=128256)
EACH, FULL = Recompute.ALTERNATE, Recompute.FULL


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """One line of a table."""

    name: str
    gib: float
    shape: ModelShape
    degrees: Degrees
    rows: int
    """Of one microbatch of a data-parallel rank."""
    length: int = 8192
    recompute: Recompute = FULL
    microbatches: int = 1
    schedule: Schedule = Schedule.ONE_F_ONE_B

    @property
    def settings(self) -> Settings:
        return Settings(
            precision=Precision.BF16,
            recompute=self.recompute,
            microbatches=self.microbatches,
            schedule=self.schedule,
            context=ContextKind.RING,
        )


def _eight(name: str, gib: float, ranks: int) -> Published:
    degrees = Degrees(dp_shard=ranks)
    return Published(name=name, gib=gib, shape=B8, degrees=degrees, rows=2, recompute=EACH)


def _long(gib: float, shards: int, cp: int) -> Published:
    degrees, length = Degrees(dp_shard=shards, cp=cp), 32768 * cp
    return Published(
        name=f"table 2, {length}", gib=gib, shape=B8, degrees=degrees, rows=1, length=length
    )


def _largest(
    name: str, gib: float, degrees: Degrees, rows: int, *, length: int = 8192,
    schedule: Schedule = Schedule.ONE_F_ONE_B,
) -> Published:  # fmt: skip
    return Published(
        name=name, gib=gib, shape=B405, degrees=degrees, rows=rows, length=length, microbatches=8,
        schedule=schedule,
    )  # fmt: skip


def _four(gib: float, shards: int, cp: int) -> Published:
    length = 32768 * cp
    degrees = Degrees(pp=8, dp_shard=shards, cp=cp, tp=8)
    return _largest(f"table 6, {length}", gib, degrees, 1, length=length)


CUBE = Degrees(pp=8, dp_shard=8, tp=8)
PLANE = Degrees(dp_shard=32, tp=8)
TABLES = (
    _eight("table 1, eager", 82.4, 8),
    _eight("table 1, compiled", 77.0, 8),
    _eight("table 1, float8", 76.8, 8),
    *(_long(gib, *axes) for gib, axes in (
        (83.9, (8, 1)), (84.2, (4, 2)), (84.0, (2, 4)), (84.5, (1, 8)),
    )),
    _eight("table 3, eager", 67.0, 128),
    _eight("table 3, compiled", 62.0, 128),
    _eight("table 3, float8", 61.8, 128),
    Published(name="table 4", gib=71.9, shape=B70, degrees=PLANE, rows=16),
    Published(name="table 4, async", gib=67.6, shape=B70, degrees=PLANE, rows=16),
    _largest("table 5, 1F1B", 82.5, CUBE, 4),
    _largest("table 5, interleaved", 72.7, CUBE, 4, schedule=Schedule.INTERLEAVED_1F1B),
    *(_four(gib, *axes) for gib, axes in (
        (75.3, (8, 1)), (75.9, (4, 2)), (77.1, (2, 4)), (84.9, (1, 8)),
    )),
)  # fmt: skip
