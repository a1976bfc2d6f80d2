# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Who has come to the workers' group: from a worker's eye to the coordinator's judgement.

Who is absent, by the words of all members; what no word can do; and what the user reads.
"""

import random
import time
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.agent.server.api import RunResult, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

from securetrain.launch.agent import member_agent
from securetrain.launch.agent.arrivals import NodeArrival
from securetrain.launch.agent.elastic_agent import Failure
from securetrain.launch.agent.member_agent import MemberAgent
from securetrain.launch.node.failures import as_error
from securetrain.launch.process.workerlog import GroupReport, WorkerError, WorkerReport
from securetrain.launch.worker import arrival
from securetrain.launch.worker.arrival import ArrivalWatch
from securetrain.rendezvous.coordinator.arrivals import Arrivals
from securetrain.rendezvous.wire.protocol import AnyMessage, Arrival, ArrivalState, Done, Store
from tests.own_place import ROOT
from tests.rendezvous.worlds import Scene, entry, membership_of
from tests.tables import items
from tests.waiting import until
from tools.campaigns import Missed, members

NAMES = ("a", "b", "c", "d", "e")
LIMIT = 30.0


class Epoch:
    """The words of some members of an epoch that began at time 0."""

    def __init__(self, size, *, min_nodes=2):
        self.names, self.number = NAMES[:size], 3
        self.arrivals = Arrivals(LIMIT, min_nodes)
        self.begin(0.0)

    def begin(self, now):
        self.number += 1
        self.arrivals.begin(self.number, self.names, now)
        for name in self.names:
            self.say(name, ArrivalState.WORKING, now=now)

    def say(self, name, stand, missing="", *, now=0.0, timeout=0.0, epoch=None):
        epoch = self.number if epoch is None else epoch
        said = Arrival(epoch=epoch, stand=stand, missing=tuple(missing), timeout=timeout)
        self.arrivals.hear(name, said, now)

    def wait(self, names, missing, **given):
        for name in names:
            self.say(name, ArrivalState.WAITING, missing, **given)

    def judge(self, now):
        """Who is to go, or what is to happen."""
        ruling = self.arrivals.judge(now)
        if ruling is None:
            return ""
        return "".join(sorted(ruling.absent)) or ("again" if ruling.again else "end")


@items(
    "size, waiting, missing, at_limit",
    (3, "ab", "c", "c"),  # more than half wait for it
    (5, "ab", "c", ""),  # fewer than half
    (5, "abc", "de", "de"),
    (2, "a", "b", "again"),  # word against word
    (4, "ab", "c", "again"),
    (4, "abc", "d", "d"),
    (5, "", "", ""),  # nobody waits: nobody is late, however long it takes
)
def test_whom_the_others_wait_for(size, waiting, missing, at_limit):
    epoch = Epoch(size)
    epoch.wait(waiting, missing, now=100.0)
    assert epoch.judge(99.0 + LIMIT) == ""
    assert epoch.judge(100.0 + LIMIT) == at_limit
    if not at_limit:
        assert epoch.judge(1e9) == ""


def test_its_own_word_does_not_help_it_and_silence_costs_it_the_first_accusation():
    for stand in (ArrivalState.ARRIVED, ArrivalState.WAITING, ArrivalState.UNSEEN):
        epoch = Epoch(3)
        epoch.say("c", stand, "ab")
        epoch.wait("ab", "c", now=1.0)
        assert epoch.judge(1.0 + LIMIT) == "c", stand
    silent = Epoch(5)
    silent.arrivals.begin(9, NAMES, 0.0)
    for name in "abcd":
        silent.say(name, ArrivalState.WORKING, epoch=9)
    silent.wait("a", "e", epoch=9, now=1.0, timeout=1.0)
    assert silent.judge(LIMIT - 1) == "", "a launcher has time to say its first word"
    assert silent.judge(LIMIT) == "e"


@items(
    "timeout, due",
    (0.0, LIMIT),
    (10.0, 9.0),  # before the group gives up
    (1800.0, LIMIT),
    (7200.0, 6480.0),  # the script has said that its members may be so far apart
)
def test_when_an_accusation_is_due(timeout, due):
    epoch = Epoch(3)
    epoch.wait("ab", "c", timeout=timeout)
    assert epoch.arrivals.deadline == due
    assert epoch.judge(due - 0.01) == ""
    assert epoch.judge(due) == "c"
    late = Epoch(3)
    for name in "ab":
        late.say(name, ArrivalState.FAILED, "c", now=5.0)
    assert late.judge(5.0) == "c", "the group has given up"


def test_who_has_come_after_all_is_not_absent():
    epoch = Epoch(3)
    epoch.wait("ab", "c", now=1.0)
    epoch.say("a", ArrivalState.ARRIVED, now=5.0)
    epoch.say("b", ArrivalState.ARRIVED, now=5.0)
    epoch.say("a", ArrivalState.WAITING, "c", now=6.0)  # a group that the script makes later
    epoch.say("b", ArrivalState.WAITING, "c", epoch=99, now=6.0)  # of no epoch
    assert epoch.judge(1e9) == ""
    assert epoch.arrivals.deadline is None


def test_word_against_word_twice_is_an_end_that_names_both():
    epoch = Epoch(2)
    epoch.wait("a", "b")
    assert epoch.judge(LIMIT) == "again"
    epoch.begin(50.0)
    epoch.wait("b", "a", now=50.0)
    ruling = epoch.arrivals.judge(50.0 + LIMIT)
    assert ruling is not None
    assert {"a", "b"} <= set(ruling.end.replace(",", " ").split())


def test_whose_end_counts():
    epoch = Epoch(3)
    for name in "abc":
        epoch.arrivals.finish(name)
    assert epoch.arrivals.done == set("abc"), "no member has made a group"
    epoch.wait("ab", "c")
    assert epoch.arrivals.done == set(), "they have, and none has arrived"
    epoch.say("a", ArrivalState.ARRIVED)
    assert epoch.arrivals.done == {"a"}


def test_who_has_gone_is_lost_to_those_that_need_it():
    epoch = Epoch(3)
    for name in "abc":
        epoch.say(name, ArrivalState.ARRIVED)
    epoch.arrivals.finish("c")
    epoch.arrivals.drop("c")
    assert epoch.judge(1.0) == "", "nobody needs it"
    epoch.say("a", ArrivalState.FAILED, now=2.0)
    assert epoch.arrivals.deadline == 0.0
    assert epoch.judge(2.0) == "again"
    few = Epoch(2)
    few.arrivals.drop("b")
    few.say("a", ArrivalState.FAILED, "b")
    assert few.judge(1e9) == "", "too few are left to go on"


def test_who_never_loses_the_group_that_the_others_lose_is_absent_the_fourth_time():
    epoch = Epoch(4)
    for now, ruling in ((0.0, "again"), (20.0, "again"), (40.0, "again"), (60.0, "d")):
        epoch.begin(now)
        for name in "abc":
            epoch.say(name, ArrivalState.FAILED, now=now)
        assert epoch.judge(now + 0.5) == "", "the word of the one that failed may be on its way"
        assert epoch.judge(now + 1.0) == ruling
    pair = Epoch(2)
    for now, ruling in ((0.0, "again"), (20.0, "again"), (40.0, "again"), (60.0, "")):
        pair.begin(now)
        pair.say("a", ArrivalState.FAILED, now=now)
        assert pair.judge(now + 1.0) == ruling
    assert pair.arrivals.deadline is None, "it is not judged for ever"


def test_one_for_whom_alone_the_group_breaks_gets_a_new_round_and_no_liar_gets_its_rounds():
    """Case 411 of seed 0: two of five let one arrive, broke with it, and kept two waiting."""
    epoch = Epoch(5)

    def lose(name, now):
        epoch.begin(now)
        epoch.wait("cd", "e", now=now)
        epoch.say(name, ArrivalState.ARRIVED, now=now)
        epoch.say(name, ArrivalState.FAILED, now=now)
        for late in (0.4, 0.9):  # nor does a liar put off the judgement of another
            epoch.say("b", ArrivalState.FAILED, now=now + late)
            epoch.say("b", ArrivalState.WORKING, now=now + late)
        return epoch.judge(now + 0.9), epoch.judge(now + 1.5)

    def lie(now):
        epoch.begin(now)
        epoch.say("b", ArrivalState.FAILED, now=now)
        return epoch.judge(now + 1.5)

    assert lose("a", 0.0) == ("", "again")
    assert [lie(now) for now in (10.0, 20.0, 30.0)] == ["again", "again", ""]
    assert [lose("a", now)[1] for now in (40.0, 50.0, 60.0)] == ["again", "again", ""]
    epoch.begin(1000.0)
    assert lie(2000.0) == "again", "an epoch has lasted: it is another story"


def run(numbers):
    return [members.case(random.Random(f"0:{number}"), Path()) for number in numbers]


def test_no_drawn_lie_of_fewer_than_half_ends_an_honest_member():
    """20 of `make campaign NAME=members`, which says what is drawn."""
    assert "went on" in run(range(20))


@pytest.mark.many
def test_no_drawn_lie_of_fewer_than_half_ends_an_honest_member_at_length():
    run(range(20, 300))


def test_without_the_rules_the_same_lies_do(monkeypatch):
    """The control: nobody is judged, and what a member says of its end counts."""
    monkeypatch.setattr(Arrivals, "judge", lambda *_: None)
    monkeypatch.setattr(Arrivals, "counts", lambda *_: True)
    monkeypatch.setattr(Arrivals, "deadline", None)
    missed = 0
    for number in range(20):
        try:
            run([number])
        except Missed:
            missed += 1
    assert missed >= 5


@pytest.fixture
def scene():
    return Scene()


def arrived(scene, node, stand, *missing):
    said = Arrival(epoch=7, stand=stand, missing=missing)
    scene.assembly.hear(scene.nodes[node], said)


def test_who_does_not_come_to_the_group_is_put_out_and_the_others_meet_again(scene):
    scene.form()
    scene.announce()
    for node in scene.nodes:
        arrived(scene, node, ArrivalState.WORKING)
    for node in ("node-0", "node-1"):
        arrived(scene, node, ArrivalState.WAITING, "node-2")
    assert scene.assembly.deadline == scene.time + 30.0
    scene.time += 30.0
    scene.assembly.put_out_late()
    (error,) = scene.nodes["node-2"].evicted
    assert error.code == "ST-ADMN-047"
    assert {"node-0", "node-1"} <= set(error.what.replace(",", " ").split())
    scene.assembly.remove("node-2", evicted=True)
    assert scene.assembly.status("node-0").waiting == 1


def test_two_that_contradict_each_other_meet_again_and_then_both_are_named(scene):
    for epoch in (7, 8):
        scene.form("node-0", "node-1")
        scene.announce(epoch=epoch)
        for node, other in (("node-0", "node-1"), ("node-1", "node-0")):
            said = Arrival(epoch=epoch, stand=ArrivalState.WAITING, missing=(other,))
            scene.assembly.hear(scene.nodes[node], said)
        scene.time += 30.0
        scene.assembly.put_out_late()
        assert scene.rounds.evicted == (epoch == 7)
    for node in ("node-0", "node-1"):
        (error,) = scene.nodes[node].evicted
        assert error.code == "ST-ADMN-048"
        assert {"node-0", "node-1"} <= set(error.what.replace(",", " ").split())
    assert scene.rounds.closed


def test_the_end_of_a_member_that_never_came_counts_for_nothing(scene):
    scene.form()
    scene.announce()
    for node in ("node-0", "node-1"):
        arrived(scene, node, ArrivalState.ARRIVED)
    for node in ("node-1", "node-2"):
        scene.assembly.hear(scene.nodes[node], Done())
    assert scene.rounds.done == {"node-1"}
    assert not scene.assembly.may_close("node-2")
    assert scene.assembly.may_close("node-1")


def test_the_votes_of_a_lost_round_do_not_close_the_one_that_begins():
    """Case 1148 of seed 0: a majority with a liar in it had closed the round that it broke."""
    world = members.World(random.Random(0), 1)
    rules, nodes = world.rules, world.nodes
    for name in members.NODES:
        world.assembly.join(name)
    world.assembly.advance()
    store = Store(epoch=0, host="192.0.2.0", port=1)
    world.assembly.announce(nodes["node-0"], store)
    for name in members.NODES:
        world.say(nodes[name], ArrivalState.ARRIVED)
    for name in members.NODES[:2]:
        world.assembly.hear(nodes[name], Done())
        rules.close(nodes[name])
    lost, liar = members.NODES[2:4], nodes[members.NODES[4]]
    for name in lost:
        world.say(nodes[name], ArrivalState.FAILED)
    world.now += 2
    world.assembly.put_out_late()
    rules.close(liar)
    for name in lost:
        world.ready(nodes[name])
    for name in members.NODES[:2]:
        world.leave(nodes[name], "")
    assert not world.rounds.closed, "three of five have closed it, and two wait for the next one"
    world.leave(liar, "put out")
    assert not world.rounds.closed
    world.assembly.advance()
    assert world.assembly.membership is not None
    assert [member.node for member in world.assembly.membership.members] == [*lost]


def test_no_word_of_its_end_hides_that_a_member_asks_for_another_round(scene):
    """Cases 1031 and 1887 of seed 0: who had been told to come waited alone, and was put out."""
    scene.form()
    scene.announce()
    scene.assembly.join("node-1")
    scene.assembly.hear(scene.nodes["node-0"], Done())
    assert scene.assembly.status("node-2").waiting == 1, "node-1 is no newcomer"
    arrived(scene, "node-2", ArrivalState.WAITING, "node-1")
    scene.time += 31.0
    scene.assembly.put_out_late()
    assert not scene.nodes["node-1"].evicted
    scene.form()
    scene.assembly.hear(scene.nodes["node-1"], Done())
    scene.assembly.join("node-1")
    assert scene.rounds.done == set()
    assert scene.assembly.status("node-2").waiting == 1, "who asks for another one is not done"


def test_who_stays_in_its_round_while_the_others_wait_is_put_out(scene):
    scene.form()
    scene.announce()
    scene.assembly.remove("node-2", evicted=True)
    scene.assembly.join("node-1")
    scene.assembly.tell_everybody()
    scene.time += 541.0
    scene.assembly.put_out_late()
    (error,) = scene.nodes["node-0"].evicted
    assert error.code == "ST-ADMN-005"
    assert not scene.nodes["node-1"].evicted


EPOCH = membership_of(
    *(entry(n, node=name, local_world=2, role="default") for n, name in enumerate("abc"))
)


def test_a_worker_says_for_whom_it_waits_and_that_it_has_arrived(monkeypatch):
    monkeypatch.setattr(arrival, "LOOK_SECONDS", 0.02)
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    seen: list[Any] = []
    watch = ArrivalWatch(lambda: seen.append(watch.report))

    def make_group(backend=None, init_method=None, timeout=None):
        for found, _, _ in watch.rendezvous(lambda: iter([(store, 0, 4)]))():
            found.set(f"{arrival.KEY}/2", b"1")
            until(lambda: seen and seen[-1].missing == (1, 3), "it misses two")
            assert not seen[-1].arrived
            found.set(f"{arrival.KEY}/1", b"1")
            until(lambda: seen[-1].missing == (3,), "it misses one")
        return "group"

    assert not seen, "nothing is said before a script makes a group"
    made = watch.group(make_group)
    assert made("gloo", timeout=timedelta(hours=2)) == "group"
    assert watch.report is not None
    assert (watch.report.arrived, watch.report.missing) == (True, ())
    assert watch.report.timeout == 7200.0
    assert store.check([f"{arrival.KEY}/0"])
    first = watch.report
    watch.group(lambda: "another")()
    assert watch.report is first, "later groups are the script's own business"


def test_a_group_that_is_not_made_leaves_whom_it_missed():
    watch = ArrivalWatch(lambda: None)

    def fail():
        watch._say(arrived=False, missing=(1,))
        raise RuntimeError("time-out")

    with pytest.raises(RuntimeError, match="time-out"):
        watch.group(fail)()
    assert watch.report is not None
    assert (watch.report.arrived, watch.report.missing) == (False, (1,))


class Node:
    """A launcher of the ranks 0 and 1, on node a."""

    def __init__(self):
        self.reports: dict[int, Any] = {}
        self.said: list[tuple[Any, ...]] = []
        self.arrival = NodeArrival(lambda rank, _: self.reports.get(rank))
        self.arrival.started()

    membership = EPOCH

    def say_arrival(self, *said):
        self.said.append(said)

    def report(self, rank, *, arrived=False, missing=(), error="", code="", begun=None):
        begun = time.monotonic() if begun is None else begun
        group = GroupReport(arrived=arrived, missing=missing, timeout=60.0, begun=begun)
        what = WorkerError(kind="RuntimeError", message=error, code=code) if error else None
        self.reports[rank] = WorkerReport(rank=rank, attempt=0, group=group, error=what)

    def look(self):
        self.arrival._looked = 0.0
        me: Any = self
        self.arrival.look(me, [0, 1], 0)
        return self.said[-1] if self.said else None

    def fail(self, **codes):
        me: Any = self
        failures = {int(rank[1:]): SimpleNamespace(exitcode=code) for rank, code in codes.items()}
        return self.arrival.patience(me, failures, 0)


def test_a_launcher_says_what_its_ranks_report():
    node = Node()
    node.report(0, arrived=True, begun=0.0)
    assert node.look() is None, "of workers that were started before"
    node.report(0, missing=(1, 4, 9))
    assert node.look() == (ArrivalState.WAITING, ("a", "c"), 60.0), "rank 9 is nobody's"
    node.report(0, arrived=True)
    assert node.look() == (ArrivalState.WAITING, (), 0.0), "the other one is not there yet"
    node.report(1, arrived=True)
    assert node.look() == (ArrivalState.ARRIVED, (), 0.0)
    assert node.look() == (ArrivalState.ARRIVED, (), 0.0)
    assert len(node.said) == 3, "no word is said twice"


@items(
    "error, exit_code, part, says",
    ("Connection closed by peer [10.0.0.2]:1", 1, 1.0, True),
    ("wait timeout after 60000ms, keys: /default_pg/0//cpu//0/4", 1, 1.0, True),
    ("division by zero", 1, 0.0, False),
    ("", 3, 0.25, False),
    ("", -9, 0.25, False),
)
def test_what_a_failure_is_worth(error, exit_code, part, says):
    node = Node()
    node.report(1, missing=(4,), error=error)
    assert node.fail(r1=exit_code) == part
    assert node.said == ([(ArrivalState.FAILED, ("c",), 60.0)] if says else [])
    node.report(0, arrived=True, error="Timed out waiting 1800000ms for recv operation")
    assert node.fail(r0=1) == 1.0, "the script may wait for itself: nobody is told"
    assert len(node.said) == says


def test_workers_that_end_between_two_looks_are_said_to_have_arrived_first(monkeypatch):
    """Else their end did not count, and the others waited for the join time-out's nine tenths."""
    node, me = Node(), SimpleNamespace(max_restarts=0)
    node.look()
    for rank in (0, 1):
        node.report(rank, arrived=True)
    agent: Any = object.__new__(MemberAgent)
    agent._rdzv_handler, agent._remaining_restarts = SimpleNamespace(member=node), 0
    monkeypatch.setattr(MemberAgent, "arrival", node.arrival)
    workers = [SimpleNamespace(global_rank=rank) for rank in (0, 1)]
    group: Any = SimpleNamespace(spec=me, workers=workers)
    for state, said in ((WorkerState.HEALTHY, 0), (WorkerState.SUCCEEDED, 1)):
        agent._look(group, RunResult(state=state), failed=False)
        assert [stand for stand, *_ in node.said] == [ArrivalState.ARRIVED] * said


class Handler:
    """A rendezvous of which the coordinator says that so many looks long it is owed members."""

    def __init__(self, owed=0):
        self.looks, self.failed, self.said = owed, False, 0
        self.member, self.away = self, False

    def num_nodes_waiting(self):
        return int(self.looks < 0)

    @property
    def owed(self):
        self.looks -= bool(self.looks)
        return self.looks > 0

    def is_closed(self):
        return False

    def say_closing(self):
        self.said += 1


@items("owed, state", (6, WorkerState.HEALTHY), (0, WorkerState.FAILED))
def test_a_failure_waits_while_members_are_owed_that_may_have_gone(monkeypatch, owed, state):
    """The coordinator is back, and another node is not yet: only it knows whether that is lost."""
    monkeypatch.setattr(member_agent, "NEWS_SECONDS", 0.1)
    failed = RunResult(state=WorkerState.FAILED)
    monkeypatch.setattr(LocalElasticAgent, "_monitor_workers", lambda *_: failed)
    agent: Any = object.__new__(MemberAgent)
    agent._rdzv_handler = handler = Handler(owed)
    agent._remaining_restarts = 0
    group: Any = SimpleNamespace(group_world_size=2)
    if owed:
        monkeypatch.setattr(Handler, "num_nodes_waiting", lambda self: int(self.looks == 1))
    assert agent._monitor_workers(group).state is state
    assert (handler.failed, handler.said) == (not owed, int(not owed)), "no vote for a good end"


@items(
    "message, missing, named",
    ("wait timeout after 40000ms, keys: /default_pg/0//cpu//0/2", (), "rank 2 is on node-2"),
    ("Gloo: Connection closed by peer [192.0.2.11]:41234", (), "192.0.2.11 is node-1"),
    ("[Rank 0]: Rank 1 failed to pass monitoredBarrier in 100 ms", (), "rank 1 is on node-1"),
    ("Timed out waiting 1800000ms for recv operation", (1, 2), "rank 1 is on node-1; rank 2 is"),
    ("Broken pipe", (), "node-2 had left the epoch"),
)
def test_a_lost_rank_is_named_with_its_node(tmp_path, message, missing, named):
    nodes = [entry(n, address=f"192.0.2.{10 + n}", role="default") for n in range(3)]
    group = GroupReport(arrived=not missing, missing=missing, timeout=1800.0, begun=0.0)
    what = WorkerError(kind="RuntimeError", message=message)
    said = WorkerReport(rank=0, attempt=0, error=what, group=group)
    failed = Failure(rank=0, local_rank=0, pid=9, exit_code=1, ending="exit code 1", timestamp=1)
    error = as_error([failed], [said], tmp_path, membership=membership_of(*nodes), lost=["node-2"])
    assert error.code == "ST-RUNT-004"
    assert named in error.what
    assert "is on" not in as_error([failed], [said], tmp_path).what


def test_the_documentation_says_of_every_message_whose_word_it_is():
    page = (ROOT / "docs/reference/rendezvous-protocol.md").read_text()
    table = page[page.index("## Whose word it is") :]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| ")]
    named = {name.strip() for row in rows for name in row.split(",")}
    assert {kind.__name__ for kind in get_args(AnyMessage)} <= named
