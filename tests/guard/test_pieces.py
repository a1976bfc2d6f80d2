# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The guard on meshes: every rank's gradient before it is reduced, one decision for all ranks.

One rank sends a poisoned gradient: the buffer that FSDP2 is about to reduce is changed on that rank
alone. Without the guard the model learns it; with the guard the step is refused on every rank and
the rank is named, and a guard that has nothing to refuse changes no bit.
"""

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp._fully_shard import _fsdp_collectives as collectives

from securetrain.testing.processes import run_ranks
from tests.parallel.curves import Case, make_trainer

STEPS = 11
Poison = Callable[[torch.Tensor], object]
POISONS: dict[int, Poison] = {
    8: lambda g: g.mul_(50.0),
    9: lambda g: g.mul_(-8.0),
    10: lambda g: g[3:4].fill_(float("nan")),
}
"""Steps in which the rank is poisoned, counted from 1."""
SMALL = "{dim: 16, layers: 2, heads: 2, ffn: 32}"
FOUR = (
    Case("hsdp 2x2", 4, "{dp_replicate: 2, dp_shard: 2}", SMALL),
    Case("fsdp x tp", 4, "{dp_shard: 2, tp: 2}", SMALL),
    Case("pp x fsdp", 4, "{pp: 2, dp_shard: 2}", SMALL),
    Case("replicas x tp", 4, "{dp_replicate: 2, tp: 2}", SMALL),
    Case("pp x replicas", 4, "{pp: 2, dp_replicate: 2, schedule: Interleaved1F1B}"),
    Case("cp x tp, ring", 4, "{cp: 2, tp: 2, context: ring}", SMALL),
    Case("fsdp 4, zero-2", 4, "{dp_shard: 4, zero: 2, microbatches: 2}", SMALL),
)
SPARSE = SMALL.replace("}", ", experts: 4, experts_per_token: 2}")
EXPERTS = (
    Case("ep x fsdp", 4, "{dp_shard: 4, ep: 2}", SPARSE),
    Case("ep 4", 4, "{dp_shard: 4, ep: 4}", SPARSE),
)


@contextmanager
def poisoned(rank: int | None, poison: Poison) -> Iterator[None]:
    """What this rank sends is changed, if it is the one."""
    real = collectives.foreach_reduce_scatter_copy_in

    def copy_in(grads: list[torch.Tensor], sent: torch.Tensor, world_size: int) -> None:
        real(grads, sent, world_size)
        poison(sent)

    if rank == dist.get_rank():
        collectives.foreach_reduce_scatter_copy_in = copy_in  # type: ignore[assignment]
    try:
        yield
    finally:
        collectives.foreach_reduce_scatter_copy_in = real


def train(case: Case, culprit: int, *, guard: bool) -> dict[str, Any]:
    """Losses, and what was refused; one rank is poisoned at the end."""
    trainer = make_trainer(dataclasses.replace(case, guard=guard))
    losses, refused = [], {}
    for step in range(1, STEPS + 1):
        with poisoned(culprit if step in POISONS else None, POISONS.get(step, id)):
            result = trainer.train_step()
        losses.append(result.loss)
        if result.refusal is not None:
            refused[step] = (result.refusal.code, result.refusal.what)
    return {"losses": losses, "refused": refused}


def scenarios(cases: list[Case], culprit: int) -> dict[str, Any]:
    return {
        case.name: [train(case, culprit, guard=False), train(case, culprit, guard=True)]
        for case in cases
    }


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.parametrize("cases", [FOUR, EXPERTS], ids=["dense", "experts"])
def test_a_poisoned_rank_is_refused_by_all_and_named(cases):
    culprit = 3
    seen = run_ranks(scenarios, 4, list(cases), culprit, timeout=200)
    for case in cases:
        for rank, (plain, guarded) in enumerate(result[case.name] for result in seen):
            where = (case.name, rank, guarded["refused"])
            # The guard looks and does not touch: to the last bit, until there is something to see.
            assert guarded["losses"][:8] == plain["losses"][:8], where
            assert plain["losses"][8] != guarded["losses"][8], "the control learned the poison"
            assert set(plain["refused"]) == {10}, "only what is not finite at all is noticed"
            assert "(ranks:" not in plain["refused"][10][1], "and nobody is named"
            assert sorted(guarded["refused"]) == sorted(POISONS), where
            for step, (code, what) in guarded["refused"].items():
                assert code == ("ST-GRAD-001" if step == 10 else "ST-GRAD-002"), where
                assert f"(ranks: {culprit})" in what, where
