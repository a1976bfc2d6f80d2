# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The guard on meshes: every rank's gradient before it is reduced, one decision for all ranks.

One rank sends a poisoned gradient: the buffer that FSDP2 is about to reduce is changed on that rank
alone. Without the guard the model learns it; with the guard the step is refused on every rank and
the rank is named, and a guard that has nothing to refuse changes no bit.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp._fully_shard import _fsdp_collectives as collectives
from torch.distributed.tensor import DTensor

from securetrain.testing.processes import run_ranks
from securetrain.train.trainer import Trainer
from tests.parallel.curves import Case, make_trainer

Poison = Callable[[torch.Tensor], object]
POISONS: tuple[Poison, ...] = (
    lambda g: g.mul_(50.0),
    lambda g: g.mul_(-20.0),
    lambda g: g[3:4].fill_(float("nan")),
)
"""One a step, in the last steps of a training."""
SMALL = "{dim: 16, layers: 2, heads: 2, ffn: 32}"
FOUR = (
    Case("hsdp 2x2", 4, "{dp_replicate: 2, dp_shard: 2}", SMALL),
    Case("fsdp x tp", 4, "{dp_shard: 2, tp: 2}", SMALL),
    Case("pp x fsdp", 4, "{pp: 2, dp_shard: 2}", SMALL),
    Case("pp x replicas", 4, "{pp: 2, dp_replicate: 2, schedule: Interleaved1F1B}"),
    Case("fsdp 4, zero-2", 4, "{dp_shard: 4, zero: 2, microbatches: 2}", SMALL),
)
WITH_TP = (
    Case("replicas x tp", 4, "{dp_replicate: 2, tp: 2}", SMALL),
    Case("cp x tp, ring", 4, "{cp: 2, tp: 2, context: ring}", SMALL),
)
"""Pieces of two ranks that a tensor dimension makes, as "fsdp x tp" has them."""
SPARSE = SMALL.replace("}", ", experts: 4, experts_per_token: 2}")
EXPERTS = (
    Case("ep x fsdp", 4, "{dp_shard: 4, ep: 2}", SPARSE),
    Case("ep 4", 4, "{dp_shard: 4, ep: 4}", SPARSE),
)
ALIKE = {"hsdp 2x2", "fsdp 4, zero-2", "ep x fsdp", "ep 4"}
"""Meshes on which all four ranks hold equal pieces: they are compared from the first step on."""
ALIKE_FIRST, PAIRS_FIRST = 5, 24
"""The first poisoned step, counted from 1. Two ranks have a past by the later one."""
CONTROL_FIRST = 5
"""The same without the guard, which needs no past."""


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


def first_poison(case: Case) -> int:
    return ALIKE_FIRST if case.name in ALIKE else PAIRS_FIRST


def train(case: Case, culprit: int, first: int, *, guard: bool) -> dict[str, Any]:
    """Losses, and what was refused; one rank is poisoned at the end."""
    trainer = make_trainer(dataclasses.replace(case, guard=guard))
    losses, refused = [], {}
    poisons = dict(enumerate(POISONS, first))
    for step in range(1, first + len(POISONS)):
        with poisoned(culprit if step in poisons else None, poisons.get(step, id)):
            result = trainer.train_step()
        losses.append(result.loss)
        if result.refusal is not None:
            refused[step] = (result.refusal.code, result.refusal.what)
    return {"losses": losses, "refused": refused}


def scenarios(cases: list[Case], culprit: int) -> dict[str, Any]:
    return {
        case.name: [
            train(case, culprit, CONTROL_FIRST, guard=False),
            train(case, culprit, first_poison(case), guard=True),
        ]
        for case in cases
    }


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.parametrize(
    "cases",
    [
        pytest.param(FOUR, id="dense", marks=pytest.mark.many),
        pytest.param(WITH_TP, id="with tp", marks=pytest.mark.many),
        pytest.param(EXPERTS, id="experts"),
    ],
)
def test_a_poisoned_rank_is_refused_by_all_and_named(cases):
    culprit = 3
    seen = run_ranks(scenarios, 4, list(cases), culprit, timeout=200)
    for case in cases:
        for rank, (plain, guarded) in enumerate(result[case.name] for result in seen):
            where = (case.name, rank, guarded["refused"])
            # The guard looks and does not touch: to the last bit, until there is something to see.
            assert guarded["losses"][:CONTROL_FIRST] == plain["losses"][:CONTROL_FIRST], where
            # The guard's run had no such step, or refused it.
            assert guarded["losses"][CONTROL_FIRST] != plain["losses"][CONTROL_FIRST], (
                "the control learned the poison"
            )
            nan = len(POISONS) - 1
            assert set(plain["refused"]) == {CONTROL_FIRST + nan}, (
                "only what is not finite at all is noticed"
            )
            assert "(ranks:" not in plain["refused"][CONTROL_FIRST + nan][1], "nobody is named"
            # Four ranks that can be compared go on without the one; of two nobody can be excluded
            # by statistics, and the steps are dropped.
            first = first_poison(case)
            refused = [first] if case.name in ALIKE else list(range(first, first + len(POISONS)))
            assert sorted(guarded["refused"]) == refused, where
            assert math.isfinite(guarded["losses"][-1])
            for step, (code, what) in guarded["refused"].items():
                assert code == ("ST-GRAD-001" if step == first + nan else "ST-GRAD-002"), where
                assert f"(ranks: {culprit})" in what, where


FORWARD_BACKWARD = Trainer._forward_backward
LONE = (Case("pp", 2, "{pp: 2}", SMALL), Case("tp", 2, "{tp: 2}", SMALL))


def alone_with_their_pieces() -> dict[str, Any]:
    """Nobody to compare with: what is not finite is refused by all ranks, and whose it was is said.

    The gradient of rank 1 is changed before anybody looks: first in a matrix that it alone holds,
    then, under tensor parallelism, in a norm's pending sum, which ends up in everybody's gradient.
    """
    found = {}
    for case in LONE:
        plain, trainer = make_trainer(case), make_trainer(dataclasses.replace(case, guard=True))
        steps = [plain.train_step().loss for _ in range(3)]
        assert steps == [trainer.train_step().loss for _ in range(3)]
        refused = []
        for name in ("layers.1.feed_forward.w1.weight", "layers.1.ffn_norm.weight"):

            def spoiled(self: Trainer, step: int, name: str = name) -> torch.Tensor:
                loss = FORWARD_BACKWARD(self, step)
                grad = dict(self.model.named_parameters())[name].grad if dist.get_rank() else None
                if grad is not None:
                    (grad.to_local() if isinstance(grad, DTensor) else grad).fill_(math.nan)
                return loss

            Trainer._forward_backward = spoiled  # type: ignore[method-assign]
            try:
                refusal = trainer.train_step().refusal
            finally:
                Trainer._forward_backward = FORWARD_BACKWARD  # type: ignore[method-assign]
            assert refusal is not None
            refused.append((refusal.code, refusal.what.rsplit("(ranks: ")[-1]))
        assert trainer.train_step().refusal is None
        state = trainer.guard.state_dict() if trainer.guard is not None else {}
        found[case.name] = [refused, state["pieces"]]
    return found


@pytest.mark.dist
def test_ranks_that_are_alone_with_their_piece_decide_together():
    first, second = run_ranks(alone_with_their_pieces, 2, timeout=100)
    assert first == second, "the state is the same everywhere: every piece's"
    assert first["pp"][0] == [("ST-GRAD-001", "1)"), ("ST-GRAD-001", "1)")]
    assert first["tp"][0] == [("ST-GRAD-001", "1)"), ("ST-GRAD-001", "0, 1)")]
    assert [piece["ranks"] for piece in first["pp"][1]] == [(0,), (1,)]
    assert len({piece["piece"] for piece in first["pp"][1]}) == 2
