# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What the coordinator does when its sessions call; nothing listens here.

What nodes and attackers see of it is in `test_join`, `test_attacks` and `test_evictions`.
"""

import dataclasses
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from securetrain.core.errors import AdmissionError, NetworkError, UsageError
from securetrain.core.vocabulary import NodeTier
from securetrain.identity.job_ca import check_leaf
from securetrain.identity.keys import KeyKind, PrivateKey
from securetrain.identity.spiffe import Role, SpiffeId
from securetrain.rendezvous.coordinator import admission
from securetrain.rendezvous.coordinator.coordinator import Coordinator
from securetrain.rendezvous.wire.protocol import PROTOCOL, Done, Hello
from tests.tables import items
from tests.vocabulary import refused

START = datetime(2026, 1, 1, tzinfo=UTC)
REVOKED = AdmissionError("ST-ADMN-013", "it was revoked")
UNKNOWN = AdmissionError("ST-ADMN-012", "the list cannot be read")
SILENT = AdmissionError("ST-ADMN-005", "silence")


class FakeSession:
    """A connection as the coordinator sees it, and what was done to it."""

    def __init__(self, node: str, key: str = "", *, known: bool = True, admitted: bool = True):
        self.node, self.remote, self.subject = node, "192.0.2.1:1", f"node/{node}"
        self.peer = SpiffeId("securetrain.local", "job-1", Role.NODE, node) if known else None
        certificate = SimpleNamespace(key=key or node)
        self.channel = SimpleNamespace(check=SimpleNamespace(certificate=certificate))
        self.certificate = "c" * 64
        self.hello = Hello(protocol=PROTOCOL, job="job-1", node=node, address="192.0.2.1")
        self.result = SimpleNamespace(tier=NodeTier.SELF_ASSERTED, digest="d" * 64)
        self.proven, self.floors = START, ()
        self.admitted, self.said_goodbye = admitted, False
        self.posted: list[Any] = []
        self.evictions: list[Any] = []
        self.post, self.tell, self.evict = self.posted.append, self.posted.append, self.evict_

    def evict_(self, error):
        self.evictions.append(error)

    dismiss = evict_


@pytest.fixture
def build(job, tools, monkeypatch):
    """A coordinator of the job; it is never started."""
    monkeypatch.setattr(admission, "spki_of", lambda certificate: certificate.key)

    def make(min_nodes=1, max_nodes=3, **settings) -> Any:
        settings.setdefault("policy", tools.make_policy())
        settings.setdefault("last_call", 0.0)
        return Coordinator(
            *("job-1", job.ca),
            ledger=job.ledger,
            min_nodes=min_nodes,
            max_nodes=max_nodes,
            clock=tools.now,
            **tools.in_settings(settings),
        )

    return make


def enter(coordinator, *nodes: str) -> Any:
    """Sessions of these nodes, authenticated and in one round; the last one."""
    sessions = [FakeSession(node) for node in nodes]
    for session in sessions:
        coordinator._sessions.add(session)
        coordinator.authenticated(session)
    with coordinator._lock:
        for session in sessions:
            coordinator._assembly.join(session.node)
        coordinator._advance()
    assert coordinator.membership.entry(nodes[0])
    return sessions[-1]


def names(job):
    return [event.event for event in job.events()]


# What it is made with.


def test_a_lease_is_at_most_the_policys(build, tools):
    longest = tools.make_policy().policy.node.lease_minutes * 60
    assert build(lease=1.5)._terms.lease == 1.5
    assert build()._terms.lease == longest
    assert build(lease=10 * longest)._terms.lease == longest


def test_a_given_verifier_judges(build):
    verifier = build()._verifier
    assert build(verifier=verifier)._verifier is verifier


def test_who_issues_the_next_certificates(build, job, tools):
    key = PrivateKey.generate(KeyKind.P256).public
    made = build()._terms.renewal.issue("node-0", key)
    assert check_leaf(made, job.ca.certificate, Role.NODE, tools.now()).node == "node-0"
    asked: list[Any] = []
    build(issue=lambda *wanted: asked.append(wanted))._terms.renewal.issue("node-0", key)
    assert asked == [("node-0", key)]


# Revocation.


@pytest.fixture
def told():
    return SimpleNamespace(error=None, about=[])


@pytest.fixture
def revoking(build, told):
    def check(peer, certificate):
        told.about.append((peer.node, certificate.key))
        if told.error is not None:
            raise told.error

    return build(revoked=check)


@pytest.mark.parametrize("error", [REVOKED, UNKNOWN])
def test_a_revoked_peer_is_refused_before_it_is_heard(revoking, told, error):
    session = FakeSession("node-0", "key-0")
    revoking.recognised(session)
    told.error = error
    with pytest.raises(AdmissionError) as caught:
        revoking.recognised(session)
    assert caught.value is error
    assert told.about == [("node-0", "key-0")] * 2


def result() -> Any:
    return SimpleNamespace(
        tier=NodeTier.SELF_ASSERTED,
        label="",
        evidence="e" * 64,
        digest="d" * 64,
        issued=START,
        expires=START,
    )


def test_a_revoked_nodes_lease_is_not_renewed(revoking, told, job):
    session = FakeSession("node-0")
    revoking.renewed(session, result())
    told.error = REVOKED
    refused(AdmissionError, "ST-ADMN-013", revoking.renewed, session, result())
    assert names(job) == ["lease-renewed"]


def test_when_the_list_changes_the_revoked_are_evicted(revoking, told):
    first, stranger = FakeSession("node-0"), FakeSession("", known=False)
    revoking._sessions |= {first, stranger}
    for told.error, evicted in ((None, []), (UNKNOWN, []), (REVOKED, [REVOKED])):
        revoking.recheck()
        assert first.evictions == evicted
    assert stranger.evictions == []
    assert {node for node, _ in told.about} == {"node-0"}


def test_who_cannot_be_named_cannot_be_cleared(revoking):
    """Never so: who is asked about has shown a certificate."""
    with pytest.raises(AssertionError):
        revoking.recognised(FakeSession("", known=False))


def test_without_a_list_nobody_is_revoked(build):
    build().recognised(FakeSession("node-0"))


# Who may come in.


def test_a_closed_job_takes_nobody(build):
    coordinator = build()
    coordinator._rounds.close()
    error = refused(AdmissionError, "ST-ADMN-008", coordinator.authenticated, FakeSession("node-0"))
    assert "the job is closed" in str(error)
    assert coordinator._nodes == {}


def test_a_twin_is_refused_and_both_are_noted(build, job):
    coordinator = build()
    first = enter(coordinator, "node-0")
    for twin in (FakeSession("node-0", "another"), FakeSession("node-1", "node-0")):
        refused(AdmissionError, "ST-ADMN-011", coordinator.authenticated, twin)
    assert coordinator._nodes == {"node-0": first}
    assert names(job).count("node-has-twin") == 2


def test_twice_as_many_as_are_wanted_is_the_end(build):
    coordinator = build(max_nodes=1)
    for n in range(2):
        coordinator.authenticated(FakeSession(f"node-{n}"))
    error = refused(AdmissionError, "ST-ADMN-008", coordinator.authenticated, FakeSession("node-2"))
    assert "spare ones included" in str(error)
    assert len(coordinator._nodes) == 2


def test_nodes_with_and_without_a_tunnel_do_not_mix(build):
    coordinator = build()
    coordinator.authenticated(FakeSession("node-0"))
    other = FakeSession("node-1")
    other.hello = Hello(
        *(PROTOCOL, "job-1", "node-1", "192.0.2.2"), wireguard="Q" * 43 + "=", wireguard_port=1
    )
    refused(NetworkError, "ST-NETW-001", coordinator.authenticated, other)
    assert list(coordinator._nodes) == ["node-0"]


# How a node goes.


def test_a_member_that_is_evicted_is_a_reason_to_restart(build, job):
    coordinator = build()
    coordinator.ended(enter(coordinator, "node-0", "node-1"), REVOKED)
    assert coordinator._rounds.num_waiting == 1
    assert coordinator._assembly.evictions.out == ("node-1",)
    assert names(job)[-2:] == ["node-evicted", "trust-ended"]


@items(
    "error, goodbye, restarts",
    (None, False, True),
    (None, True, True),
    (SILENT, False, True),
    (SILENT, True, True),
)
def test_a_member_that_goes(build, error, goodbye, restarts):
    coordinator = build()
    member = enter(coordinator, "node-0", "node-1")
    member.said_goodbye = goodbye
    coordinator.ended(member, error)
    assert bool(coordinator._rounds.num_waiting) is restarts


def test_a_member_whose_work_is_done_makes_nobody_restart_by_going(build):
    coordinator = build()
    member = enter(coordinator, "node-0", "node-1")
    coordinator.hear(member, Done())
    member.said_goodbye = True
    coordinator.ended(member, None)
    assert not coordinator._rounds.num_waiting
    assert coordinator._assembly.evictions.out == ("node-1",), "whatever the reason"
    assert set(coordinator._nodes) == {"node-0"}
    assert coordinator._sessions == {coordinator._nodes["node-0"]}


@pytest.mark.parametrize("error", [None, SILENT, REVOKED])
def test_who_goes_when_the_job_is_closed_is_neither_doubted_nor_replaced(build, job, error):
    coordinator = build()
    member = enter(coordinator, "node-0", "node-1")
    coordinator.close(coordinator._nodes["node-0"])
    coordinator.ended(member, error)
    assert coordinator._rounds.num_waiting == 0, "there is no round to restart for"
    assert coordinator._assembly.evictions.out == ()
    assert "trust-ended" not in names(job)


def test_a_node_that_was_not_let_in_again_is_not_doubted_for_it(build, job):
    """It had left well, and its next evidence could not be recorded: nothing was contradicted."""
    coordinator = build()
    member = enter(coordinator, "node-0", "node-1")
    member.admitted = False
    coordinator.ended(member, REVOKED)
    assert coordinator._assembly.evictions.all == ()
    assert "trust-ended" not in names(job)


def test_the_end_of_a_twin_is_not_the_end_of_the_node(build):
    coordinator = build()
    first = enter(coordinator, "node-0")
    twin = FakeSession("node-0", admitted=False)
    coordinator._sessions.add(twin)
    coordinator.ended(twin, AdmissionError("ST-ADMN-011", "it is in already"))
    assert coordinator._nodes == {"node-0": first}
    assert coordinator._sessions == {first}
    assert coordinator._rounds.participants == ["node-0"]


def test_the_first_problem_is_kept(build, monkeypatch):
    coordinator = build()
    full, later = (UsageError("ST-USAG-006", what) for what in ("the disk is full", "still"))
    errors = iter([full, later])

    def refuse(*_):
        raise next(errors)

    coordinator._journal = SimpleNamespace(refuse_stranger=refuse)
    for _ in range(2):
        coordinator.ended(FakeSession("", known=False, admitted=False), SILENT)
    assert coordinator.problem is full


# Its own end, and its own thread.


class Steps:
    """A clock that moves by its own hand, and waits that move it."""

    def __init__(self, coordinator):
        self.time, self.waits = 0.0, []
        self.coordinator = coordinator
        coordinator._monotonic = lambda: self.time
        coordinator._lock = self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def notify_all(self):
        pass

    def wait(self, seconds=None):
        self.waits.append(seconds)
        assert len(self.waits) < 10, "it waits for ever"
        self.time += 2.0 if seconds is None else min(2.0, max(seconds, 0.1))
        if seconds is None:
            self.coordinator._stopping = True


def test_a_coordinator_that_stops_waits_for_its_sessions_and_not_for_ever(build):
    empty = build()
    clock = Steps(empty)
    empty.stop()
    assert clock.waits == [], "there is nobody to wait for"
    coordinator = build()
    clock = Steps(coordinator)
    stuck = FakeSession("node-0")
    coordinator._sessions.add(stuck)
    coordinator.stop()
    (farewell,) = stuck.evictions
    assert farewell.code == "ST-ADMN-007"
    assert clock.waits == [5.0, 3.0, 1.0]


def test_rounds_are_completed_when_their_last_call_is_over_and_not_before(build):
    coordinator = build(2, 3, last_call=5.0)
    clock = Steps(coordinator)
    for n in range(2):
        coordinator.authenticated(FakeSession(f"node-{n}"))
        coordinator._assembly.join(f"node-{n}")
    looks: list[float] = []
    advance, terms = coordinator._assembly.advance, coordinator._terms

    def look():
        looks.append(clock.time)
        advance()

    coordinator._assembly.advance = look
    coordinator._assembly._terms = dataclasses.replace(terms, monotonic=lambda: clock.time)
    coordinator._rounds.deadline = 5.0
    coordinator._assembly._owing = list  # nobody is late with anything else
    coordinator._round_loop()
    assert looks == [5.0]
    assert clock.waits == [5.0, 3.0, 1.0, None]
    assert coordinator.membership.epoch == 0
