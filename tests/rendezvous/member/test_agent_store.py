# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What torch's agent reads and writes in a round's store: ranks come from the membership."""

import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from torch.distributed import DistStoreError, HashStore  # type: ignore[attr-defined]

from securetrain.core.errors import AdmissionError
from securetrain.drills.agent_nodes import (
    ASSIGNED,
    ROLE_INFO,
    SAYS_ONE,
    AgentNode,
    ranks_after_a_drop,
    ranks_beside_a_silent_one,
    write_ranks,
)
from securetrain.drills.stock_rendezvous import ranks_of
from securetrain.rendezvous.member import handler as handler_module
from securetrain.rendezvous.member.patience import patiently
from securetrain.rendezvous.member.round import EpochOverError
from securetrain.rendezvous.member.store import connect_store
from securetrain.rendezvous.wire.protocol import Workers
from tests.tables import items
from tests.vocabulary import refused

SAID_TWO: dict[str, Any] = {"conf": {"local_world": "2", "role": "default"}}


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(handler_module, "LINGER_SECONDS", 0.05)


@pytest.fixture
def nodes(job, quick):
    made: list[AgentNode] = []

    def make(name, nodes=(2, 2), **config):
        made.append(AgentNode(job, name, nodes, **config))
        return made[-1]

    yield make
    for node in made:
        node.leave()


@pytest.fixture
def pool():
    with ThreadPoolExecutor(8) as made:
        yield made


@pytest.fixture
def both(job, nodes, pool):
    """Two nodes in one round."""
    job.start(2, 2)
    made = [nodes(f"node-{n}") for n in range(2)]
    list(pool.map(AgentNode.meet, made))
    return made


def test_agents_that_say_nothing_at_first_get_the_ranks_of_what_they_run(job, nodes, pool):
    """Plain torchrun: its agent knows, and our handler does not."""
    job.start(3, 3)
    three = [nodes(f"node-{n}", (3, 3), workers=n + 1) for n in range(3)]
    assert list(pool.map(AgentNode.meet, three)) == [([0], 6), ([1, 2], 6), ([3, 4, 5], 6)]
    assert [m.local_world for m in job.coordinator.membership.members] == [1, 2, 3]
    assert list(pool.map(AgentNode.meet, three)) == [([0], 6), ([1, 2], 6), ([3, 4, 5], 6)]
    first = [member.is_staffed for member in three[0].store._membership.members]
    assert first == [True] * 3, "the second round knows from the start"


def test_ranks_of_a_staffed_membership_need_nobody(job, nodes, pool):
    """No other node and no store is asked: a member that drops now keeps nobody waiting."""
    job.start(2, 2)
    both = [nodes(f"node-{n}", workers=2, **SAID_TWO) for n in range(2)]
    infos = list(pool.map(lambda node: node.handler.next_rendezvous(), both))
    both[1].handler.member._link._channel.abort()
    store = infos[0].store
    workers = both[0].agent._assign_worker_ranks(store, 0, 2, both[0].spec)
    assert [(worker.global_rank, worker.world_size) for worker in workers] == [(0, 4), (1, 4)]


@pytest.mark.parametrize("withholds", [True, False])
def test_a_member_that_writes_ranks_into_the_store_takes_none(job, nodes, pool, withholds):
    """It becomes rank 1 of stock agents, and the node that was rank 1 becomes rank 2."""
    job.start(3, 3)
    evil, *honest = [nodes(f"node-{n}", (3, 3), **SAYS_ONE) for n in range(3)][::-1]
    list(pool.map(AgentNode.enter, [evil, *honest]))
    write_ranks(evil.raw(), withholds=withholds)
    one, zero = honest
    assert zero.ranks() == ([0], 3)
    assert one.ranks() == ([1], 3)


def test_the_attack_works_on_stores_without_a_membership(job, nodes, pool):
    """The control: the same keys in a plain store are believed by torch's agent."""
    job.start()
    store = HashStore()
    write_ranks(store, withholds=True)
    agent = nodes("node-0", (1, 1)).agent
    assert ranks_of(agent, store, 1, 3) == ([2], 3), "it should be 1"


@items(
    "key, value",
    (f"{ROLE_INFO}1", '{"role": "default", "rank": 1, "local_world_size": 1}'),
    (f"{ROLE_INFO}0", '{"role": "default", "rank": 1, "local_world_size": 1}'),
    (f"{ROLE_INFO}0", '{"role": "default", "rank": 0, "local_world_size": 2}'),
    (f"{ROLE_INFO}0", '{"role": "other", "rank": 0, "local_world_size": 1}'),
    (f"{ROLE_INFO}0", '{"role": "default", "rank": 0, "local_world_size": true}'),
    (f"{ROLE_INFO}0", "[]"),
    (f"{ROLE_INFO}0", "nonsense"),
    (f"{ROLE_INFO}", '{"role": "default", "rank": 0, "local_world_size": 1}'),
    (f"{ROLE_INFO}-1", "{}"),
    (f"{ROLE_INFO}7", "{}"),
    (f"{ASSIGNED}0", "[1, 1, 1, 1]"),
    (f"{ASSIGNED}0", "nonsense"),
    (f"{ASSIGNED}1", "[0, 1, 0, 1]"),
    (f"{ASSIGNED}\u0661", "[0, 1, 0, 1]"),
)
def test_role_info_and_ranks_that_contradict_the_membership_are_refused(job, nodes, key, value):
    job.start()
    node = nodes("node-0", (1, 1), **SAYS_ONE)
    node.meet()
    for write in (
        lambda: node.store.set(key, value),
        lambda: node.store.set(key, value.encode()),
        lambda: node.store.multi_set([key], [value]),
    ):
        refused(AdmissionError, "ST-ADMN-040", write)
    assert json.loads(node.store.get(f"{ASSIGNED}0")) == [0, 1, 0, 1]
    assert not node.raw().check([key])


def test_what_the_membership_answers_cannot_be_changed_in_other_ways(job, nodes):
    job.start()
    node = nodes("node-0", (1, 1))
    node.meet()
    for change in (
        lambda key: node.store.add(key, 1),
        lambda key: node.store.append(key, "x"),
        node.store.delete_key,
        lambda key: node.store.compare_set(key, "", "x"),
    ):
        for key in (f"{ROLE_INFO}0", f"{ASSIGNED}0"):
            refused(AdmissionError, "ST-ADMN-040", change, key)


def test_an_agent_that_runs_other_workers_than_it_was_said_to_is_told(job, nodes):
    job.start()
    node = nodes("node-0", (1, 1), workers=2, **SAYS_ONE)
    error = refused(AdmissionError, "ST-ADMN-040", node.meet)
    assert "runs 2 workers" in str(error)
    assert "--rdzv-conf" in error.fix


def test_a_member_may_say_once_what_it_runs(job, nodes, tools):
    job.start()
    node = nodes("node-0", (1, 1), workers=2)
    node.meet()
    node.handler.member._link.post(Workers(epoch=0, local_world=9, role="default"))
    job.expect("ST-ADMN-040", "node-evicted")
    tools.wait_until(lambda: not node.handler.member.connected, "it is out")


def test_other_keys_are_the_stores_own(job, nodes):
    job.start()
    node = nodes("node-0", (1, 1))
    node.meet()
    store = node.store
    store.set("key", "value")
    assert store.get("key") == b"value"
    assert node.raw().get("key") == b"value"
    assert store.add("number", 2) == 2
    assert store.compare_set("key", "value", "other") == b"other"
    store.append("key", "s")
    assert store.multi_get(["key", f"{ASSIGNED}0"]) == [b"others", b"[0, 1, 0, 1]"]
    assert store.check(["key"])
    assert store.check([f"{ROLE_INFO}0"])
    assert not store.check(["none"])
    assert store.num_keys() >= 2
    assert store.delete_key("key")
    assert store.has_extended_api()
    store.set_timeout(timedelta(milliseconds=50))
    assert store.timeout == timedelta(milliseconds=50)
    with pytest.raises(DistStoreError):
        store.wait(["none"])
    with pytest.raises(DistStoreError):
        store.wait(["none"], timedelta(milliseconds=10))
    store.wait([f"{ROLE_INFO}0", "number"])


# Waits.


def test_a_wait_in_the_store_ends_when_a_member_goes(pool, both):
    """torch's own would last as long as its time-out, five minutes."""
    waits = pool.submit(both[0].store.get, "what nobody writes")
    both[1].handler.member._link._channel.abort()
    refused(EpochOverError, "node-1 has left epoch 0", waits.result, 60)


def test_ranks_of_an_epoch_that_is_over_let_the_agent_find_that_out(job, quick):
    """A member drops before it has said what it runs: nobody waits for it."""
    assert ranks_after_a_drop(job) == ([0], 1), "and goes on alone, without a last call"


def test_a_member_that_withholds_what_it_runs_is_put_out(job, quick, tools):
    job.start(1, 2, last_call=600, policy=tools.make_policy(join_timeout_seconds=10))
    assert ranks_beside_a_silent_one(job) == ([0], 1)
    event = job.expect("ST-ADMN-005", "node-evicted")
    assert "node-1" in event.subject


def test_a_rank_0_that_withholds_its_store_is_put_out(job, nodes, pool, tools, monkeypatch):
    job.start(1, 2, last_call=600, policy=tools.make_policy(join_timeout_seconds=10))
    withholds, stays = nodes("node-0", (1, 2)), nodes("node-1", (1, 2))
    over = threading.Event()
    monkeypatch.setattr(withholds.handler, "_host", lambda _: over.wait() and 1)
    asked = pool.submit(withholds.handler.next_rendezvous)
    try:
        assert pool.submit(stays.meet).result(60) == ([0], 1)
        assert "node-0" in job.expect("ST-ADMN-005", "node-evicted").subject
    finally:
        over.set()
    refused(Exception, "ST-ADMN", asked.result, 60)


def test_rank_0_goes_while_the_others_connect_to_its_store(job, nodes, pool, monkeypatch):
    """It listens, and answers nobody: torch would try for five minutes."""
    job.start(1, 2, last_call=600)
    goes, stays = nodes("node-0", (1, 2)), nodes("node-1", (1, 2))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        connecting = threading.Event()

        def connect(host, port, timeout):
            connecting.set()
            return connect_store(host, silent.getsockname()[1], timeout)

        monkeypatch.setattr(handler_module, "connect_store", connect)
        both = [pool.submit(goes.handler.next_rendezvous), pool.submit(stays.meet)]
        both[0].result(60)
        assert connecting.wait(60)
        goes.handler.member._link._channel.abort()
        assert both[1].result(60) == ([0], 1)


# The barrier at the end.


def test_the_barrier_at_the_end_waits_for_everybodys_workers(job, nodes, pool, tools):
    job.start(3, 3)
    three = [nodes(f"node-{n}", (3, 3)) for n in range(3)]
    list(pool.map(AgentNode.meet, three))
    ends = [pool.submit(node.agent._exit_barrier) for node in three[:2]]
    tools.wait_until(lambda: len(job.coordinator._rounds.done) == 2, "two are done")
    assert not any(end.done() for end in ends)
    ends.append(pool.submit(three[2].agent._exit_barrier))
    for end in ends:
        end.result(60)


def test_the_barrier_does_not_believe_the_store(job, pool, tools, both):
    """A member could end it for all, or, as one that never reaches it, for nobody."""
    store = both[1].raw()
    store.set("torchelastic/agent/terminal_state/last_member", "x")
    store.add("torchelastic/agent/terminal_state/num_members", 1)
    end = pool.submit(both[0].agent._exit_barrier)
    tools.wait_until(lambda: job.coordinator._rounds.done == {"node-0"}, "it is done")
    assert not end.done()
    both[1].handler.member.leave()
    end.result(60)


@pytest.mark.parametrize("lost", ["a member", "the coordinator"])
def test_the_barrier_ends_without_who_is_gone(job, pool, lost, caplog, both):
    end = pool.submit(both[0].agent._exit_barrier)
    if lost == "a member":
        both[1].handler.member._link._channel.abort()
    else:
        job.coordinator.stop()
    end.result(60)
    assert "Error waiting on exit barrier" not in caplog.text


def test_the_barrier_lasts_as_long_as_torch_says_and_no_longer(pool, caplog, both):
    both[0].agent._exit_barrier_timeout = 0.2
    pool.submit(both[0].agent._exit_barrier).result(60)
    assert "other nodes' workers run on" in caplog.text


def test_a_blocking_call_is_made_elsewhere_and_given_up():
    assert patiently(lambda: threading.current_thread().name, lambda: None) == "store-call"
    with pytest.raises(ZeroDivisionError):
        patiently(lambda: 1 // 0, lambda: None)

    def look():
        raise AdmissionError("ST-ADMN-018", "enough")

    refused(AdmissionError, "enough", patiently, threading.Event().wait, look)
