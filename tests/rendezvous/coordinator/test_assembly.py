# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Whose store is announced, who hears how the job stands, and what becomes of a lost rank 0."""

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from securetrain.core.errors import AdmissionError, UsageError
from securetrain.core.vocabulary import NodeTier
from securetrain.identity.keys import KeyKind, PrivateKey
from securetrain.rendezvous.coordinator.assembly import Assembly
from securetrain.rendezvous.coordinator.journal import Journal
from securetrain.rendezvous.coordinator.keep import KeepNothing
from securetrain.rendezvous.coordinator.rounds import Rounds
from securetrain.rendezvous.wire.protocol import Formed, Status, Store
from tests.tables import items
from tests.vocabulary import refused

NOW = datetime(2026, 1, 1, tzinfo=UTC)


class FakeSession:
    """A node that is in, and what it was sent, told, or evicted with."""

    def __init__(self, node, *, admitted=True):
        self.node = self.subject = node
        self.certificate = "c" * 64
        self.floors = ()
        self.admitted = admitted
        self.hello = SimpleNamespace(
            address=f"192.0.2.{node[-1]}",
            local_world=1,
            role="default",
            wireguard="",
            wireguard_port=0,
        )
        self.result = SimpleNamespace(tier=NodeTier.SELF_ASSERTED, digest="d" * 64)
        self.posted: list[Any] = []
        self.told: list[Any] = []
        self.evicted: list[Any] = []
        self.post, self.tell, self.evict = (
            self.posted.append,
            self.told.append,
            self.evicted.append,
        )

    def take(self):
        """What came since the last look: the kinds of what was posted, and of what was told."""
        found = [type(m) for m in self.posted], [type(m) for m in self.told]
        self.posted.clear()
        self.told.clear()
        return found


class Scene:
    """A job of up to three nodes, whose rounds need two."""

    def __init__(self):
        self.nodes: dict[str, Any] = {f"node-{n}": FakeSession(f"node-{n}") for n in range(3)}
        self.rounds = Rounds(min_nodes=2, max_nodes=3, last_call=10)
        self.time = 0.0
        terms: Any = SimpleNamespace(
            job="job-1",
            key=PrivateKey.generate(KeyKind.P256),
            policy_digest="a" * 64,
            random=bytes,
            monotonic=lambda: self.time,
            join_timeout=600.0,
            keep=KeepNothing(),
        )
        self.assembly = Assembly(
            self.rounds,
            terms,
            self.nodes,
            Journal(None),
            coordinator="spiffe://securetrain.local/job/job-1/coordinator",
            clock=lambda: NOW,
            last_epoch=6,
            doubt_lost=True,
        )

    def form(self, *nodes):
        """A complete round of these nodes; nobody remembers what it was sent."""
        for node in nodes or self.nodes:
            self.assembly.join(node)
        self.time += 20
        self.assembly.advance()
        for session in self.nodes.values():
            session.take()

    def announce(self, node="node-0", host="192.0.2.0", epoch=7):
        self.assembly.announce(self.nodes[node], Store(epoch=epoch, host=host, port=5000))

    def posted(self):
        """What was posted to every node alike."""
        first, *others = [session.take()[0] for session in self.nodes.values()]
        assert all(other == first for other in others)
        return first


@pytest.fixture
def scene():
    return Scene()


def test_a_round_that_is_complete_is_an_epoch(scene):
    for node in scene.nodes:
        assert scene.posted() == []
        scene.assembly.advance()
        scene.assembly.join(node)
    scene.assembly.advance()
    assert scene.posted() == [Formed]
    assert scene.assembly.membership.epoch == 7, "after that of the coordinator before"


def test_the_store_of_rank_0_is_announced_to_all(scene):
    scene.form()
    scene.announce()
    assert scene.posted() == [Store]


def test_a_store_before_there_is_an_epoch(scene):
    scene.announce()
    assert scene.posted() == []


def test_the_store_of_another_epoch_is_not_announced(scene):
    scene.form()
    scene.announce("node-1", epoch=6)
    assert scene.posted() == []


@items("node, host", ("node-1", "192.0.2.0"), ("node-1", "192.0.2.1"), ("node-0", "192.0.2.1"))
def test_only_rank_0_announces_a_store_and_only_its_own(scene, node, host):
    scene.form()
    refused(AdmissionError, "ST-ADMN-001", scene.announce, node, host)
    assert scene.posted() == []


def test_a_second_store_for_an_epoch_is_refused(scene):
    scene.form()
    scene.announce()
    refused(AdmissionError, "ST-ADMN-001", scene.announce)
    scene.form()
    scene.announce(epoch=8)


def test_where_the_job_stands_is_told_and_posted_when_the_last_one_is_done(scene):
    """Told is what is news to a node; posted is what it must hear whatever it knows."""
    assembly, session = scene.assembly, scene.nodes["node-1"]
    scene.nodes["node-2"].admitted = False

    def heard():
        assembly.tell_everybody()
        return session.take()

    assert heard() == ([], [Status]), "before the first round"
    scene.form()
    assert heard() == ([], [Status])
    for node in ("node-0", "node-1"):
        scene.rounds.finish(node)
        assert heard() == ([], [Status]), "the job is closed, and not all have done so"
    scene.rounds.finish("node-2")
    assert heard() == ([Status], []), "the last one is done"
    assert heard() == ([], [Status])
    assert scene.nodes["node-2"].take() == ([], []), "who is not in yet hears nothing"


def test_when_rank_0_goes_before_its_store_is_up_the_others_start_again(scene):
    scene.form()
    scene.assembly.remove("node-0", evicted=False)
    assert not scene.rounds.complete
    assert sorted(scene.rounds.participants) == ["node-1", "node-2"]


def test_when_it_goes_from_a_job_that_is_closed_nobody_waits_for_its_store(scene):
    scene.form()
    del scene.nodes["node-2"]
    scene.rounds.finish("node-1")
    scene.rounds.close()
    scene.assembly.remove("node-0", evicted=False)
    (error,) = scene.nodes["node-1"].evicted
    assert error.code == "ST-ADMN-008"
    assert scene.nodes["node-0"].evicted == []


@pytest.mark.parametrize("what", ["another node", "its store is up", "the next round forms"])
def test_otherwise_the_round_goes_on(scene, what):
    scene.form()
    if what == "another node":
        scene.assembly.remove("node-2", evicted=False)
    elif what == "its store is up":
        scene.announce()
        scene.assembly.remove("node-0", evicted=False)
    else:
        for node in scene.nodes:
            scene.assembly.join(node)
        number, members = scene.rounds.number, list(scene.rounds.participants)
        scene.assembly.remove("node-0", evicted=False)
        assert scene.rounds.number == number
        assert scene.rounds.participants == [node for node in members if node != "node-0"]
        return
    assert scene.rounds.complete


def test_of_a_round_that_could_not_be_recorded_nobody_is_rank_0(scene):
    class Full:
        def write(self, _said):
            raise UsageError("ST-USAG-006", "the disk is full")

    scene.assembly._journal = Full()
    with pytest.raises(UsageError):
        scene.form()
    assert scene.assembly.membership is None
    scene.assembly.remove("node-0", evicted=True)
    assert sorted(scene.rounds.participants) == ["node-1", "node-2"]
