# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A plan counts what a step holds: the storages of the step itself, on fake tensors."""

import dataclasses

import pytest

from securetrain.parallel.build import Description
from securetrain.parallel.degrees import Degrees
from securetrain.parallel.plan import ContextKind, Precision, Recompute, Settings, Zero
from securetrain.parallel.schedule import Schedule
from securetrain.train.models.llama import Llama
from securetrain.train.models.llama_plan import LlamaPlan
from securetrain.train.models.shape import ModelShape
from securetrain.train.planning.fake_step import peak_of
from securetrain.train.planning.memory import memory_of
from securetrain.train.planning.workload import Workload, held

WIDE = ModelShape(dim=1024, layers=4, heads=8, kv_heads=4, ffn=3072, vocab=1024)
"""Blocks are what is large."""
HEAVY = dataclasses.replace(WIDE, layers=2, vocab=16384)
"""The head is."""
SMALL = ModelShape(dim=256, layers=4, heads=4, kv_heads=2, ffn=768, vocab=512)
"""On real tensors."""
TALL = dataclasses.replace(WIDE, layers=8)


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """One mesh."""

    name: str
    degrees: Degrees
    shape: ModelShape = WIDE
    rows: int = 2
    settings: dict[str, object] = dataclasses.field(default_factory=dict)
    rank: int = 0
    many: bool = True


FOUR: dict[str, object] = {"microbatches": 4}
PIPE = Degrees(pp=2, dp_shard=4)
CASES = (
    Case("one rank, fp32", Degrees(), SMALL, 1, {"precision": Precision.FP32}),
    Case("fsdp", Degrees(dp_shard=8), many=False),
    Case("fsdp, a large head", Degrees(dp_shard=8), HEAVY),
    Case("fsdp, fp32", Degrees(dp_shard=8), settings={"precision": Precision.FP32}),
    Case("hsdp", Degrees(dp_replicate=2, dp_shard=4), TALL),
    Case("zero 1, accumulated", Degrees(dp_shard=4), settings={"zero": Zero.OPTIMIZER, **FOUR}),
    Case("zero 2, accumulated", Degrees(dp_shard=4), settings={"zero": Zero.GRADIENTS, **FOUR}),
    Case("recompute all", Degrees(dp_shard=8), TALL, 4, {"recompute": Recompute.FULL}),
    Case("recompute some", Degrees(dp_shard=8), settings={"recompute": Recompute.SELECTIVE}),
    Case(
        "recompute alternate", Degrees(dp_shard=8), settings={"recompute": Recompute.ALTERNATE}
    ),
    Case("tp", Degrees(tp=2), SMALL, 1, {"precision": Precision.FP32}),
    Case("fsdp x tp", Degrees(dp_shard=4, tp=2), HEAVY),
    Case("fsdp x tp, recompute", Degrees(dp_shard=4, tp=2), TALL, 4,
         {"recompute": Recompute.FULL}),
    Case("fsdp x cp", Degrees(dp_shard=4, cp=2), rows=4),
    Case("fsdp x cp, ring", Degrees(dp_shard=4, cp=2), TALL, 4, {"context": ContextKind.RING}),
    Case("fsdp x cp, ulysses", Degrees(dp_shard=4, cp=2), rows=4,
         settings={"context": ContextKind.ULYSSES}),
    Case("pp x fsdp, first", PIPE, rows=1, settings=FOUR, many=False),
    Case("pp x fsdp, reduced each", PIPE, rows=1,
         settings={"reduce_each_microbatch": True, **FOUR}),
    Case("pp x fsdp, last, a large head", PIPE, HEAVY, 1, FOUR, rank=1),
    Case("pp x fsdp, GPipe", PIPE, settings={"schedule": Schedule.GPIPE, **FOUR}, rank=1),
    Case("pp x fsdp, interleaved", PIPE, TALL,
         settings={"schedule": Schedule.INTERLEAVED_1F1B, **FOUR}),
    Case("pp x fsdp, LoopedBFS", PIPE, settings={"schedule": Schedule.LOOPED_BFS, **FOUR}),
    Case("pp x fsdp, zero bubbles", PIPE, TALL,
         settings={"schedule": Schedule.INTERLEAVED_ZERO_BUBBLE, **FOUR}, rank=1),
    Case("pp x fsdp, a V", PIPE, TALL, settings={"schedule": Schedule.ZBV_ZERO_BUBBLE, **FOUR}),
    Case("pp x fsdp x tp", Degrees(pp=2, dp_shard=2, tp=2), settings=FOUR),
    Case("pp 4 x fsdp, recompute", Degrees(pp=4, dp_shard=2), TALL, 2,
         {"recompute": Recompute.FULL, "microbatches": 8}),
)  # fmt: skip
"""Twenty and more meshes; two of them in every run."""


@pytest.mark.parametrize(
    "case",
    [pytest.param(c, id=c.name, marks=[pytest.mark.many] if c.many else []) for c in CASES],
)
def test_a_plan_counts_the_storages_of_a_step(case):
    settings = Settings(**{"precision": Precision.BF16, **case.settings})
    model = Description(
        build=lambda: Llama(case.shape), materialize=lambda _: None, plan=LlamaPlan()
    )
    measured = peak_of(
        model, case.degrees, settings, rows=case.rows * settings.microbatches, length=1024,
        pipeline_rank=case.rank,
    )  # fmt: skip
    work = Workload(
        shape=case.shape, degrees=case.degrees, settings=settings, rows=case.rows, length=1024
    )
    counted = memory_of(work, held(work, case.rank))
    assert counted.total - counted.slack == pytest.approx(measured, rel=0.1)
