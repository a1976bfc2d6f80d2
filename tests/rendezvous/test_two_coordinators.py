# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Two coordinators of one job, over copies of one folder: the later one is found, and keeps it.

Also the way to a standby: a list of endpoints.
"""

import shutil
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from securetrain.core.errors import AdmissionError
from securetrain.identity.cluster_ca import ClusterCA
from securetrain.identity.job_ca import certificate_pem
from securetrain.identity.keys import KeyKind, PrivateKey
from securetrain.identity.spiffe import Role
from securetrain.policy import load_policy
from securetrain.rendezvous.coordinator.memory import JobMemory
from securetrain.rendezvous.coordinator.standalone import Plan, Standalone
from securetrain.rendezvous.member import places as places_module
from securetrain.rendezvous.member.entry import parse_endpoints
from securetrain.rendezvous.member.reconnect import Reconnect
from securetrain.rendezvous.wire.generation import check_generation, sign_generation
from tests.rendezvous.worlds import meet
from tests.tables import items
from tests.vocabulary import free_port, refused

NODES = ["node-0", "node-1", "node-2"]


class Two:
    """A coordinator with three nodes in a round, and room for a second over a copy of its state."""

    def __init__(self, job, tools, root):
        self.job, self.tools, self.root = job, tools, root
        self.memory = JobMemory(root / "one.json", job.ledger.key)
        self.first = job.start(2, 3, memory=self.memory, last_call=0.3)
        self.one = (job.host, job.port)
        self.two = ("127.0.0.1", free_port())
        self.members = {node: self.join(node) for node in NODES}
        self.meet(NODES)

    def join(self, node):
        member = self.job.make_member(node, comes_back=True)
        member.connect(*self.one, self.two)
        return member

    def meet(self, nodes):
        return meet([self.members[node] for node in nodes])

    def start_second(self, generation=2, **settings):
        """What an operator must not do: the first one still lives."""
        copy = self.root / "two.json"
        shutil.copy(self.memory.path, copy)
        memory = JobMemory(copy, self.job.ledger.key)
        self.second = self.job.start(
            *(2, 3),
            port=self.two[1],
            memory=memory,
            last_epoch=0,
            last_call=0.3,
            generation=generation,
            **settings,
        )
        return self.second

    def lose(self, node):
        """The connection of one node to the first coordinator breaks."""
        self.first._nodes[node].channel.abort()

    def move(self, node):
        """The same, while the first one's machine takes no connections: it goes to the second."""
        member = self.members[node]
        patience, member._link._timeout = member._link._timeout, 0.5
        listener, gate = self.first._listener, threading.Event()
        begin = listener._begin
        listener._begin = lambda *given: gate.wait(self.tools.PATIENCE) and begin(*given)
        self.lose(node)
        self.tools.wait_until(lambda: node in self.at_second(), "it is at the second one")
        listener._begin = begin
        gate.set()
        member._link._timeout = patience  # what comes next may be slow

    def at_second(self):
        return {node for node, session in self.second._nodes.items() if session.admitted}

    def names(self, name):
        return [event for event in self.job.events() if event.event == name]


@pytest.fixture(autouse=True)
def hasty_herald(monkeypatch):
    monkeypatch.setattr(places_module, "HERALD_SECONDS", 0.1)


@pytest.fixture
def two(job, tools, tmp_path):
    return Two(job, tools, tmp_path)


def deaf(monkeypatch):
    """Coordinators as they were: what a node has seen of others is not looked at."""
    monkeypatch.setattr(
        "securetrain.rendezvous.coordinator.succession.Succession.check", lambda *_: None
    )


def test_without_generations_both_would_go_on(two, monkeypatch):
    """The attack: two halves of a job, each with a coordinator that believes it is the one."""
    deaf(monkeypatch)
    monkeypatch.setattr(Reconnect, "follow", lambda *_: None)
    two.start_second()
    two.lose("node-2")
    two.tools.wait_until(lambda: two.members["node-0"].num_waiting, "the first one goes on")
    two.members.pop("node-2")._link._quit.set()
    found = two.meet(["node-0", "node-1"])
    assert {one.membership.epoch for one in found} == {1}
    assert two.first.membership != two.second.membership
    assert two.first.superseded is two.second.superseded is None


def test_the_first_one_stands_down_as_soon_as_a_node_has_seen_the_second(two):
    second = two.start_second()
    two.move("node-2")
    two.tools.wait_until(lambda: two.first.superseded, "the first one has heard of it")
    assert two.first.superseded.code == "ST-ADMN-041"
    two.tools.wait_until(lambda: two.at_second() == set(NODES), "all are at the second one")
    (event,) = two.names("coordinator-superseded")
    assert event.code == "ST-ADMN-041"
    assert second.superseded is None
    for member in two.members.values():
        assert member.connected


def test_a_member_that_has_seen_the_later_one_refuses_the_earlier(two, monkeypatch):
    deaf(monkeypatch)
    two.start_second()
    member = two.members["node-2"]
    two.move("node-2")
    member._link._reconnect.running = lambda: None  # else its epoch is refused before
    herald = member._link._herald
    two.tools.wait_until(lambda: herald._thread, "it has heard the answer")
    herald._thread.join(two.tools.PATIENCE)
    two.tools.wait_until(lambda: "node-2" not in two.first._nodes, "it has been there, and gone")
    refused(AdmissionError, "ST-ADMN-041", member._link._connect, two.one)
    assert member._link._reconnect.latest.number == 2


def test_two_that_were_started_at_the_same_moment_are_not_equal(two):
    """Over copies with the same number of starts; who is later, all say alike."""
    two.start_second(generation=1)
    own, other = two.first._terms.generation, two.second._terms.generation
    assert own.number == other.number == 1
    assert own.is_before(other) != other.is_before(own)
    earlier, later = (two.first, two.second) if own.is_before(other) else (two.second, two.first)
    identity = two.job.identity("node-9")
    two.job.host, two.job.port = two.one if earlier is two.first else two.two
    channel = two.job.connect(identity)
    channel.handshake(two.tools.soon())
    said = later._terms.generation.statement
    channel.send(two.tools.make_hello(identity, generation=said), two.tools.soon())
    assert two.tools.answer(channel).code == "ST-ADMN-041"
    assert earlier.superseded is not None
    assert later.superseded is None


def forged(two, how) -> Any:
    good = two.first._terms.generation.statement
    key, now = PrivateKey.generate(KeyKind.P256), two.tools.now()
    hour = timedelta(hours=1)
    match how:
        case "number":
            return replace(good, number=7)
        case "of a node":
            leaf = two.job.ca.issue(Role.NODE, key.public, now, node="node-0", lifetime=hour)
            return sign_generation(two.job.name, 7, leaf, key).statement
        case "of another CA":
            foreign = type(two.job.ca).create("securetrain.local", two.job.name, now)
            leaf = foreign.issue(Role.COORDINATOR, key.public, now, lifetime=hour)
            return sign_generation(two.job.name, 7, leaf, key).statement
        case "of another job":
            leaf = two.job.ca.issue(Role.COORDINATOR, key.public, now, lifetime=hour)
            return sign_generation("job-2", 7, leaf, key).statement
        case "another key":
            return sign_generation(
                two.job.name, 7, two.first._reception.context() and _leaf(two), key
            ).statement
        case _:
            return replace(good, certificate="-----BEGIN NONSENSE-----")


def _leaf(two):
    other = PrivateKey.generate(KeyKind.P256)
    hour = timedelta(hours=1)
    return two.job.ca.issue(Role.COORDINATOR, other.public, two.tools.now(), lifetime=hour)


@items(
    "how",
    "number",
    "of a node",
    "of another CA",
    "of another job",
    "another key",
    "no certificate",
)
def test_a_member_cannot_invent_a_later_coordinator(two, how):
    """One that could would end the coordinator for everybody."""
    identity = two.job.identity("node-9")
    channel = two.job.connect(identity)
    channel.handshake(two.tools.soon())
    hello = two.tools.make_hello(identity, generation=forged(two, how))
    channel.send(hello, two.tools.soon())
    assert two.tools.answer(channel).code == "ST-ADMN-006"
    assert two.first.superseded is None
    assert all(member.connected for member in two.members.values())


def test_a_statement_outlives_its_certificate(two):
    key, then = PrivateKey.generate(KeyKind.P256), two.tools.now() - timedelta(days=3)
    ca = type(two.job.ca).create("securetrain.local", two.job.name, then)
    leaf = ca.issue(Role.COORDINATOR, key.public, then, lifetime=timedelta(hours=1))
    said = sign_generation(two.job.name, 3, leaf, key).statement
    assert "BEGIN CERTIFICATE" in certificate_pem(ca.certificate).decode()
    assert check_generation(said, job=two.job.name, ca=ca.certificate, where="").number == 3


def test_the_same_number_of_another_epoch_is_not_the_same_epoch(two):
    """Both have formed an epoch 1; a member of the one's does not go on in the other's."""
    two.start_second()
    for member in two.members.values():
        member._link._reconnect.latest = None  # whoever it was, they do not remember it
    two.members.pop("node-2").leave()
    two.tools.wait_until(lambda: two.members["node-0"].num_waiting, "the first one goes on")
    assert {one.membership.epoch for one in two.meet(["node-0", "node-1"])} == {1}
    state = two.second._returning
    with two.second._lock:
        ours = two.second._assembly.membership
        other = replace(ours, epoch=1)
        two.second._assembly.membership, two.second._assembly._epoch = other, 1
    assert set(state.expected) == set(NODES)
    member = two.members["node-0"]
    error = refused(AdmissionError, "ST-ADMN-036", member._link._connect, two.two)
    assert "another epoch 1" in str(error)


def test_a_folder_that_was_put_back_as_a_whole_is_an_earlier_coordinators(two):
    """Its ledger has fewer starts than nodes have seen."""
    two.first.stop(for_good=False)
    two.start_second(generation=3)
    two.tools.wait_until(lambda: two.at_second() == set(NODES), "they have found it")
    two.second.stop(for_good=False)
    again = two.start_second(generation=2)
    two.tools.wait_until(lambda: again.superseded, "they have shown it the later one")
    assert again.superseded is not None
    assert again.superseded.code == "ST-ADMN-041"


def admit_of(generation) -> Any:
    return type("Admit", (), {"generation": generation})()


def test_a_coordinator_that_says_nothing_of_itself_or_what_another_said_is_refused(two):
    identity = two.job.identity("node-9")
    own = two.first._terms.generation
    with pytest.raises(AdmissionError, match="it has no generation"):
        Reconnect().follow(admit_of(None), two.first._terms.key.public, identity)
    stranger = PrivateKey.generate(KeyKind.P256).public
    with pytest.raises(AdmissionError, match="it is another coordinator's"):
        Reconnect().follow(admit_of(own.statement), stranger, identity)


def test_an_ordinary_change_to_a_standby(two):
    """The first one is dead; the nodes find the second by themselves, and nobody restarts."""
    two.first.stop(for_good=False)
    two.start_second()
    two.tools.wait_until(lambda: two.at_second() == set(NODES), "they have found it")
    assert not any(member.num_waiting for member in two.members.values())
    assert {one.membership.epoch for one in two.meet(NODES)} == {1}


def test_a_node_joins_where_somebody_answers(two):
    two.members.pop("node-2").leave()
    member = two.job.make_member("node-7")
    nobody = ("127.0.0.1", free_port())
    member.connect(*nobody, two.one)
    assert member.connected
    alone = two.job.make_member("node-8")
    error = refused(AdmissionError, "ST-ADMN-007", alone.connect, *nobody, two.two)
    assert error.where == f"127.0.0.1:{nobody[1]}, 127.0.0.1:{two.two[1]}"


def test_endpoints_are_a_list():
    assert parse_endpoints("a:1, [::1]:2,b:3") == [("a", 1), ("::1", 2), ("b", 3)]


def test_two_coordinators_over_one_folder(tmp_path: Path):
    """Not even for a moment: the folder has one writer."""
    now = datetime.now(UTC)
    cluster = ClusterCA.create(tmp_path / "ca", "securetrain.local", now)
    plan = Plan(
        job="job-1",
        min_nodes=1,
        max_nodes=1,
        policy=load_policy("dev"),
        run_dir=tmp_path / "run",
        fleet=tmp_path / "fleet",
    )

    def make():
        return Standalone(
            plan=plan, cluster=cluster, unlock=cluster.key, clock=lambda: datetime.now(UTC)
        )

    first, second = make(), make()
    first.start()
    try:
        refused(AdmissionError, "ST-ADMN-042", second.start)
        assert first.coordinator is not None
        assert first.coordinator.superseded is None
    finally:
        first.stop()
    third = make()
    third.start()
    try:
        assert third.coordinator is not None
        assert third.coordinator._terms.generation.number == 2
    finally:
        third.stop()
