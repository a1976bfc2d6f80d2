# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Ranks are a function of the membership, and the one that torch's agents compute."""

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from torch.distributed import HashStore  # type: ignore[attr-defined]
from torch.distributed.elastic.agent.server.api import (
    SimpleElasticAgent,
    WorkerSpec,
    _RoleInstanceInfo,
)

from securetrain.rendezvous.wire.membership import Membership
from securetrain.rendezvous.wire.ranks import node_of, node_ranks, ranks_of
from tests.rendezvous.worlds import entry, membership_of
from tests.tables import each
from tests.vocabulary import refused


def membership(*staff: tuple[int, str]) -> Membership:
    entries = [entry(n, local_world=num, role=role) for n, (num, role) in enumerate(staff)]
    return membership_of(*entries, epoch=3)


class Agent(SimpleElasticAgent):
    """torch's own, as far as it computes ranks."""

    def _nothing(self, *_: Any, **__: Any) -> Any:
        raise AssertionError

    _start_workers = _stop_workers = _monitor_workers = _shutdown = _nothing


def as_torch_does(staff: list[tuple[int, str]]) -> list[tuple[list[int], int, list[int], int]]:
    """What its agents make of what each of them writes into one store."""
    nobody: Any = SimpleNamespace()
    store, found = HashStore(), []
    for rank, (number, role) in enumerate(staff):
        said = _RoleInstanceInfo(role, rank, number)
        store.set(f"torchelastic/role_info/{rank}", said.serialize().decode())
    for rank, (number, role) in enumerate(staff):
        spec = WorkerSpec(role=role, local_world_size=number, rdzv_handler=nobody, entrypoint="x")
        workers = Agent(spec)._assign_worker_ranks(store, rank, len(staff), spec)
        found.append(
            (
                [worker.global_rank for worker in workers],
                workers[0].world_size,
                [worker.role_rank for worker in workers],
                workers[0].role_world_size,
            )
        )
    return found


@given(
    st.lists(
        st.tuples(st.integers(1, 9), st.sampled_from(["default", "a", "b"])), min_size=1, max_size=6
    )
)
def test_they_are_those_that_torchs_agents_compute(staff):
    ours = [
        (
            list(found.ranks),
            found.world_size,
            list(range(found.role_first, found.role_first + found.num_workers)),
            found.role_world_size,
        )
        for found in node_ranks(membership(*staff))
    ]
    assert ours == as_torch_does(staff)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_every_rank_has_one_node_and_back(numbers):
    epoch = membership(*((number, "default") for number in numbers))
    for rank in range(sum(numbers)):
        assert rank in ranks_of(epoch, node_of(epoch, rank))
    assert sum(len(ranks_of(epoch, member.node)) for member in epoch.members) == sum(numbers)


@each("rank", -1, 5, 1 << 40)
def test_a_rank_that_nobody_has(rank):
    refused(LookupError, str(rank), node_of, membership((2, "default"), (3, "default")), rank)
    refused(LookupError, "node-9", ranks_of, membership((2, "default")), "node-9")


def test_until_a_node_has_said_what_it_runs_the_membership_is_not_staffed():
    assert membership((2, "default"), (1, "a")).is_staffed
    for unknown in [(0, "default"), (1, ""), (0, "")]:
        assert not membership((2, "default"), unknown).is_staffed
    found = node_ranks(membership((0, ""), (2, "a")))
    assert [list(ranks.ranks) for ranks in found] == [[0], [1, 2]]
