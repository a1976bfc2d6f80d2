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
from torch.distributed import DistStoreError, HashStore, PrefixStore  # type: ignore[attr-defined]
from torch.distributed.elastic.agent.server.api import SimpleElasticAgent, WorkerSpec
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

from securetrain.core.errors import AdmissionError
from securetrain.rendezvous.member import handler as handler_module
from securetrain.rendezvous.member.patience import patiently
from securetrain.rendezvous.member.round import EpochOverError
from securetrain.rendezvous.member.store import connect_store
from securetrain.rendezvous.wire.protocol import Workers

ROLE_INFO, ASSIGNED = "torchelastic/role_info/", "torchelastic/assigned_ranks/"

SAID: dict[str, Any] = {"conf": {"local_world": "1", "role": "default"}}
SAID_TWO: dict[str, Any] = {"conf": {"local_world": "2", "role": "default"}}


class Agent(SimpleElasticAgent):
    """torch's own, without workers."""

    def _nothing(self, *_: Any, **__: Any) -> Any:
        raise AssertionError

    _start_workers = _stop_workers = _monitor_workers = _nothing

    def _shutdown(self, *_: Any, **__: Any) -> None:
        pass


class Node:
    """A node with an agent of torch's, whose ranks it asks for as torchrun does."""

    def __init__(self, job, name, nodes, *, workers=1, role="default", conf=None):
        if not job.folder(name).exists():
            job.identity(name)
        self.name, self.workers = name, workers
        self.handler: Any = get_rendezvous_handler(
            RendezvousParameters(
                "securetrain",
                f"{job.host}:{job.port}",
                job.name,
                *nodes,
                identity=str(job.folder(name)),
                **(conf or {}),
            )
        )
        self.spec = WorkerSpec(
            role=role, local_world_size=workers, rdzv_handler=self.handler, entrypoint="x"
        )
        self.agent = Agent(self.spec)

    def meet(self):
        """A round, as the agent has it; the ranks of its workers and the size of the world."""
        info = self.handler.next_rendezvous()
        self.agent._store, self.store = info.store, info.store
        self.agent._worker_group.group_world_size = info.world_size
        workers = self.agent._assign_worker_ranks(info.store, info.rank, info.world_size, self.spec)
        self.info = info
        return [worker.global_rank for worker in workers], workers[0].world_size


@pytest.fixture
def nodes(job, monkeypatch):
    made: list[Node] = []
    monkeypatch.setattr(handler_module, "LINGER_SECONDS", 0.05)

    def make(name, nodes=(2, 2), **config):
        made.append(Node(job, name, nodes, **config))
        return made[-1]

    yield make
    for node in made:
        if node.handler.member is not None:
            node.handler.member.leave()


@pytest.fixture
def pool():
    with ThreadPoolExecutor(8) as made:
        yield made


def raw(node):
    """The store as a member that follows no rule sees it."""
    where = node.info.bootstrap_store_info
    store = connect_store(where.master_addr, where.master_port, timedelta(seconds=10))
    return PrefixStore(f"securetrain/{node.store._membership.epoch}", store)


def test_agents_that_say_nothing_at_first_get_the_ranks_of_what_they_run(job, nodes, pool):
    """Plain torchrun: its agent knows, and our handler does not."""
    job.start(3, 3)
    three = [nodes(f"node-{n}", (3, 3), workers=n + 1) for n in range(3)]
    assert list(pool.map(Node.meet, three)) == [([0], 6), ([1, 2], 6), ([3, 4, 5], 6)]
    assert [m.local_world for m in job.coordinator.membership.members] == [1, 2, 3]
    assert list(pool.map(Node.meet, three)) == [([0], 6), ([1, 2], 6), ([3, 4, 5], 6)]
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
    evil, *honest = [nodes(f"node-{n}", (3, 3), **SAID) for n in range(3)][::-1]
    infos = dict(
        zip(
            ("evil", "one", "zero"),
            pool.map(lambda node: node.handler.next_rendezvous(), [evil, *honest]),
            strict=True,
        )
    )
    evil.info, evil.store = infos["evil"], infos["evil"].store
    store = raw(evil)
    for rank, said in ((0, [5, 1, 5, 1]), (1, [2, 3, 2, 3]), (2, [1, 3, 1, 3])):
        store.set(f"{ASSIGNED}{rank}", json.dumps(said))
        if not withholds:
            lie = {"role": "default", "rank": rank, "local_world_size": 99}
            store.set(f"{ROLE_INFO}{rank}", json.dumps(lie))
    found = {
        name: node.agent._assign_worker_ranks(infos[name].store, rank, 3, node.spec)
        for name, node, rank in (("zero", honest[1], 0), ("one", honest[0], 1))
    }
    assert [(w.global_rank, w.world_size) for w in found["zero"]] == [(0, 3)]
    assert [(w.global_rank, w.world_size) for w in found["one"]] == [(1, 3)]


def test_the_attack_works_on_stores_without_a_membership(job, nodes, pool):
    """The control: the same keys in a plain store are believed by torch's agent."""
    job.start()
    node = nodes("node-0", (1, 1))
    store = HashStore()
    store.set(f"{ASSIGNED}1", json.dumps([2, 3, 2, 3]))
    workers = node.agent._assign_worker_ranks(store, 1, 3, node.spec)
    assert [worker.global_rank for worker in workers] == [2], "it should be 1"


@pytest.mark.parametrize(
    ("key", "value"),
    [
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
    ],
)
def test_role_info_and_ranks_that_contradict_the_membership_are_refused(job, nodes, key, value):
    job.start()
    node = nodes("node-0", (1, 1), **SAID)
    node.meet()
    for write in (
        lambda: node.store.set(key, value),
        lambda: node.store.set(key, value.encode()),
        lambda: node.store.multi_set([key], [value]),
    ):
        with pytest.raises(AdmissionError) as caught:
            write()
        assert caught.value.code == "ST-ADMN-040"
    assert json.loads(node.store.get(f"{ASSIGNED}0")) == [0, 1, 0, 1]
    assert not raw(node).check([key])


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
            with pytest.raises(AdmissionError, match="ST-ADMN-040"):
                change(key)


def test_an_agent_that_runs_other_workers_than_it_was_said_to_is_told(job, nodes):
    job.start()
    node = nodes("node-0", (1, 1), workers=2, **SAID)
    with pytest.raises(AdmissionError, match="runs 2 workers") as caught:
        node.meet()
    assert caught.value.code == "ST-ADMN-040"
    assert "--rdzv-conf" in caught.value.fix


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
    assert raw(node).get("key") == b"value"
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


def test_a_wait_in_the_store_ends_when_a_member_goes(job, nodes, pool):
    """torch's own would last as long as its time-out, five minutes."""
    job.start(2, 2)
    both = [nodes(f"node-{n}") for n in range(2)]
    list(pool.map(Node.meet, both))
    waits = pool.submit(both[0].store.get, "what nobody writes")
    both[1].handler.member._link._channel.abort()
    with pytest.raises(EpochOverError, match="node-1 has left epoch 0"):
        waits.result(60)


def test_ranks_of_an_epoch_that_is_over_let_the_agent_find_that_out(job, nodes, pool, tools):
    """A member drops before it has said what it runs: nobody waits for it."""
    job.start(1, 2, last_call=600)
    stays, drops = nodes("node-0", (1, 2)), nodes("node-1", (1, 2))
    infos = [pool.submit(node.handler.next_rendezvous) for node in (stays, drops)]
    info = infos[0].result(60)
    infos[1].result(60)
    ranks = pool.submit(stays.agent._assign_worker_ranks, info.store, 0, 2, stays.spec)
    drops.handler.member._link._channel.abort()
    (worker,) = ranks.result(60)
    assert worker.world_size == 2, "such a world is never complete"
    tools.wait_until(stays.handler.num_nodes_waiting, "the agent restarts its workers")
    assert stays.meet() == ([0], 1), "and goes on alone, without a last call"


def test_a_member_that_withholds_what_it_runs_is_put_out(job, nodes, pool, tools):
    job.start(1, 2, last_call=600, policy=tools.make_policy(join_timeout_seconds=2))
    stays, withholds = nodes("node-0", (1, 2)), nodes("node-1", (1, 2))
    both = [pool.submit(node.handler.next_rendezvous) for node in (stays, withholds)]
    info = both[0].result(60)
    both[1].result(60)
    stays.agent._assign_worker_ranks(info.store, 0, 2, stays.spec)
    event = job.expect("ST-ADMN-005", "node-evicted")
    assert "node-1" in event.subject
    assert stays.meet() == ([0], 1)


def test_a_rank_0_that_withholds_its_store_is_put_out(job, nodes, pool, tools, monkeypatch):
    job.start(1, 2, last_call=600, policy=tools.make_policy(join_timeout_seconds=2))
    withholds, stays = nodes("node-0", (1, 2)), nodes("node-1", (1, 2))
    over = threading.Event()
    monkeypatch.setattr(withholds.handler, "_host", lambda _: over.wait() and 1)
    asked = pool.submit(withholds.handler.next_rendezvous)
    try:
        assert pool.submit(stays.meet).result(60) == ([0], 1)
        assert "node-0" in job.expect("ST-ADMN-005", "node-evicted").subject
    finally:
        over.set()
    with pytest.raises(Exception, match="ST-ADMN"):
        asked.result(60)


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
    list(pool.map(Node.meet, three))
    ends = [pool.submit(node.agent._exit_barrier) for node in three[:2]]
    tools.wait_until(lambda: len(job.coordinator._rounds.done) == 2, "two are done")
    assert not any(end.done() for end in ends)
    ends.append(pool.submit(three[2].agent._exit_barrier))
    for end in ends:
        end.result(60)


def test_the_barrier_does_not_believe_the_store(job, nodes, pool, tools):
    """A member could end it for all, or, as one that never reaches it, for nobody."""
    job.start(2, 2)
    both = [nodes(f"node-{n}") for n in range(2)]
    list(pool.map(Node.meet, both))
    store = raw(both[1])
    store.set("torchelastic/agent/terminal_state/last_member", "x")
    store.add("torchelastic/agent/terminal_state/num_members", 1)
    end = pool.submit(both[0].agent._exit_barrier)
    tools.wait_until(lambda: job.coordinator._rounds.done == {"node-0"}, "it is done")
    assert not end.done()
    both[1].handler.member.leave()
    end.result(60)


@pytest.mark.parametrize("lost", ["a member", "the coordinator"])
def test_the_barrier_ends_without_who_is_gone(job, nodes, pool, lost, caplog):
    job.start(2, 2)
    both = [nodes(f"node-{n}") for n in range(2)]
    list(pool.map(Node.meet, both))
    end = pool.submit(both[0].agent._exit_barrier)
    if lost == "a member":
        both[1].handler.member._link._channel.abort()
    else:
        job.coordinator.stop()
    end.result(60)
    assert "Error waiting on exit barrier" not in caplog.text


def test_the_barrier_lasts_as_long_as_torch_says_and_no_longer(job, nodes, pool, caplog):
    job.start(2, 2)
    both = [nodes(f"node-{n}") for n in range(2)]
    list(pool.map(Node.meet, both))
    both[0].agent._exit_barrier_timeout = 0.2
    pool.submit(both[0].agent._exit_barrier).result(60)
    assert "other nodes' workers run on" in caplog.text


def test_a_blocking_call_is_made_elsewhere_and_given_up():
    assert patiently(lambda: threading.current_thread().name, lambda: None) == "store-call"
    with pytest.raises(ZeroDivisionError):
        patiently(lambda: 1 // 0, lambda: None)

    def look():
        raise AdmissionError("ST-ADMN-018", "enough")

    with pytest.raises(AdmissionError, match="enough"):
        patiently(threading.Event().wait, look)
