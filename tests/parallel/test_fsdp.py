# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Where parameters are: sharded between steps, in host memory when a job asks for that."""

import pytest
from torch.distributed.tensor import DTensor

from securetrain.testing.processes import run_ranks
from securetrain.train.optim import optimizer_state
from tests.parallel.curves import Case, make_trainer


def sharded(case: Case) -> list[bool]:
    """Whether all parameters are shards after a step, and after an evaluation."""
    trainer = make_trainer(case)
    trainer.train_step()
    after = [all(isinstance(p, DTensor) for p in trainer.model.parameters())]
    trainer.evaluate()
    after.append(all(isinstance(p, DTensor) for p in trainer.model.parameters()))
    # What a checkpoint saves of the optimizer is what it has: none is made anew.
    count = len(trainer.optimizer.state)
    list(optimizer_state(trainer.model, trainer.optimizer))
    return [*after, count == len(trainer.optimizer.state) > 0]


@pytest.mark.dist
@pytest.mark.parametrize(
    "case",
    [
        Case("zero-2", 2, "{dp_shard: 2, zero: 2}"),
        Case("zero-3", 2, "{dp_shard: 2}"),
        Case("pipeline", 4, "{pp: 2, dp_shard: 2}"),
    ],
    ids=lambda case: case.name,
)
def test_an_evaluation_leaves_shards_behind(case):
    """A forward pass without a backward pass leaves whole parameters where levels 1 and 2 keep
    them; a checkpoint taken then had the optimizer's state of none of them.
    """
    assert run_ranks(sharded, case.ranks, case) == [[True] * 3] * case.ranks


def offloaded() -> tuple[set[str], set[str], bool]:
    trainer = make_trainer(Case("", 2, "{dp_shard: 2, cpu_offload: true}"))
    first = trainer.train_step()
    second = trainer.train_step()
    state = [s for _, s in optimizer_state(trainer.model, trainer.optimizer)]
    policies = {
        type(group.offload_policy).__name__
        for module in trainer.model._sharded()
        for group in module._get_fsdp_state()._fsdp_param_groups
    }
    places = {str(t.device) for t in (*trainer.model.parameters(), *state)}
    return places, policies, first.loss != second.loss


@pytest.mark.dist
def test_offloaded_parameters_and_optimizer_live_in_host_memory():
    for places, policies, moved in run_ranks(offloaded, 2):
        assert places == {"cpu"}
        assert policies == {"CPUOffloadPolicy"}
        assert moved
