# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A node's side of the lease: whose admission it takes, and how it ends."""

import threading
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from securetrain.attest.session.passport import issue_passport
from securetrain.core.errors import AdmissionError, AttestationError
from securetrain.core.vocabulary import NodeTier
from securetrain.identity.keys import KeyKind, PrivateKey
from securetrain.rendezvous.coordinator import session
from securetrain.rendezvous.member.link import Link
from securetrain.rendezvous.wire.channel import PeerClosedError
from securetrain.rendezvous.wire.protocol import (
    Admit,
    Close,
    Formed,
    Heartbeat,
    Refuse,
    Renew,
    Status,
    Store,
)
from tests.tables import items
from tests.vocabulary import refused


@pytest.fixture
def misled(monkeypatch):
    """Have the coordinator send the passport of another result."""

    def mislead(change, **more):
        def issue(result, **fields):
            changed = replace(result, **change)
            return issue_passport(changed, **{**fields, **more})

        monkeypatch.setattr(session, "issue_passport", issue)

    return mislead


def test_an_admission_of_this_node(job, misled):
    """The control: the same detour, and nothing changed."""
    misled({})
    job.start()
    assert job.join().connected


@pytest.mark.forgery
@items(
    "id, change, what",
    ("another-node", {"node": "node-1"}, "node-1"),
    ("another-job", {"job": "job-2"}, "the SVID"),
    ("another-key", {"key_id": "ab" * 32}, "the SVID"),
    ("another-tier", {"tier": NodeTier.TPM}, "not this node"),
    ("another-policy", {"policy": "ab" * 32}, "not this node"),
)
def test_an_admission_that_is_not_about_this_node(job, misled, change, what):
    misled(change)
    job.start()
    refused(AdmissionError, "ST-ADMN-006", job.join, says=what)


@pytest.mark.forgery
def test_an_admission_of_another_nodes_key(job, misled):
    """Result and SVID agree with each other, and with somebody else."""
    other = PrivateKey.generate(KeyKind.P256)
    misled({"key_id": other.key_id}, node_key=other.public)
    job.start()
    refused(AdmissionError, "not this node of this job", job.join)


@pytest.mark.forgery
def test_a_renewal_that_is_about_somebody_else_ends_the_link(job, misled, tools):
    job.start(lease=0.9, heartbeat=0.2)
    member = job.join()
    misled({"node": "node-1"})
    tools.wait_until(lambda: not member.connected, "the node leaves")
    refused(AdmissionError, "ST-ADMN-006", lambda: member.num_waiting)


def test_why_a_renewal_was_refused_is_heard(job, tools):
    """The reason, not only that the connection is gone."""
    coordinator = job.start(lease=0.9, heartbeat=0.2)
    member = job.join()
    original = coordinator._verifier.policy
    node = replace(original.node, allow_self_asserted=None)
    coordinator._verifier.policy = replace(original, node=node)
    tools.wait_until(lambda: not member.connected, "the node is out")
    refused(AttestationError, "ST-ATTS-005", lambda: member.num_waiting, names="the coordinator")
    tools.wait_until(lambda: not member._link.is_open, "its thread ends")


def test_a_renewal_is_asked_for_once(job, tools, monkeypatch):
    """However slowly the verifier answers, and however often the node beats meanwhile."""
    coordinator = job.start(lease=3.0, heartbeat=0.3)
    member = job.join()
    verifier, asked = type(coordinator._verifier), []
    challenge, appraise = verifier.challenge, verifier.appraise
    answer = threading.Event()

    def counted(self, *args):
        asked.append(args)
        return challenge(self, *args)

    def late(self, *args, **more):
        answer.wait(0.7)
        return appraise(self, *args, **more)

    monkeypatch.setattr(verifier, "challenge", counted)
    monkeypatch.setattr(verifier, "appraise", late)
    first = member.result
    tools.wait_until(lambda: member.result is not first, "the lease is renewed")
    assert len(asked) == 1


def test_a_link_is_open_while_it_is(job):
    job.start()
    member = job.make_member()
    link = member._link
    assert not link.is_open, "before it was opened"
    link.leave()  # changes nothing
    member.connect(job.host, job.port)
    assert link.is_open
    member.leave()
    assert not link.is_open


def test_a_link_that_leaves_is_not_open_any_more(job, tools):
    """Also while its thread still has the goodbye to say."""
    job.start(heartbeat=0.1)
    member = job.join()
    link, seen = member._link, []

    def hear(_):
        link.leave()
        seen.append((link._thread.is_alive(), link.is_open))

    link._on_message = hear
    tools.wait_until(lambda: seen, "a status is heard")
    assert seen[0] == (True, False)


# Joining.

SOLD = AdmissionError("ST-ADMN-013", "it was sold")
GONE = PeerClosedError("ST-ADMN-007", "the peer closed the connection")
STATUS = Status(waiting=0, ready=0, closed=False)


@pytest.mark.parametrize("said", [SOLD, None])
def test_when_the_connection_ends_while_it_joins_the_reason_is_looked_for(job, monkeypatch, said):
    def join(*_):
        raise GONE

    monkeypatch.setattr(Link, "_join", join)
    monkeypatch.setattr(Link, "_last_word", lambda *_: said)
    job.start()
    member = job.make_member()
    with pytest.raises(AdmissionError) as caught:
        member.connect(job.host, job.port)
    assert caught.value is (said or GONE)
    assert not member._link.is_open


@pytest.mark.parametrize("place", [0, 1], ids=["instead of a challenge", "instead of an admission"])
def test_a_coordinator_that_says_something_else(job, monkeypatch, place):
    expect, heard = Link._expect, []

    def distracted(self, channel):
        heard.append(expect(self, channel))
        return heard[-1] if len(heard) <= place else STATUS

    monkeypatch.setattr(Link, "_expect", distracted)
    job.start()
    assert "a Status where" in str(refused(AdmissionError, "ST-ADMN-001", job.join))


# The lease, by a clock that moves when the node waits.

ADMIT = Admit(
    tier=NodeTier.SELF_ASSERTED,
    label="",
    result="",
    svid="",
    certificate="",
    policy="a" * 64,
    lease_seconds=30.0,
    heartbeat_seconds=4.0,
    join_timeout_seconds=60.0,
    min_nodes=1,
    max_nodes=1,
)


class Wire:
    """A coordinator that answers beats, and admits again with its answer to the next one."""

    def __init__(self, link, *, talks=True, admits=True, until=60.0):
        self.time, self.link, self.until = 0.0, link, until
        self.talks, self.admits = talks, admits
        self.sent: list[tuple[float, type]] = []
        self.answers: deque[Any] = deque()
        self.owes = False

    def monotonic(self):
        return self.time

    def send(self, message, _):
        self.sent.append((self.time, type(message)))
        if isinstance(message, Renew):
            self.owes = True
        elif isinstance(message, Heartbeat) and self.talks:
            self.answers.append(ADMIT if self.owes and self.admits else STATUS)
            self.owes = self.owes and not self.admits

    def receive(self, wake, **_):
        if self.answers:
            return self.answers.popleft()
        assert wake > self.time, "it does not wait"
        self.time = wake
        if self.time > self.until:
            self.link._leaving = True
        raise AdmissionError("ST-ADMN-005", "nothing was said")

    def times(self, kind):
        return [time for time, sent in self.sent if sent is kind]


@pytest.fixture
def linked(job, tools, monkeypatch):
    """A link whose lease of 30 s has begun, with a beat every 4 s; and its wire."""

    def accept(self, channel, _):
        self._renew_at, self._lease_end = channel.time + 10, channel.time + 30

    def make(**behaviour):
        identity = job.identity()
        link: Any = Link(
            *(identity, tools.make_hello(identity), job.attester(identity)),
            clock=tools.now,
            monotonic=lambda: wire.time,
            timeout=1.0,
            on_message=heard.append,
            on_failure=heard.append,
        )
        wire = Wire(link, **behaviour)
        link._admitted = SimpleNamespace(terms=ADMIT)
        accept(link, wire, ADMIT)
        return link, wire

    heard: list[Any] = []
    monkeypatch.setattr(Link, "_accept", accept)
    return make


def test_a_lease_is_asked_for_after_a_third_of_the_one_before(linked):
    link, wire = linked()
    link._loop(wire)
    assert wire.times(Renew) == [10, 22, 34, 46, 58], "once for each lease"
    assert wire.times(Heartbeat)[:4] == [4, 8, 12, 16]


def test_a_lease_that_nobody_renews_ends(linked):
    link, wire = linked(admits=False)
    assert "the lease ended" in str(refused(AttestationError, "ST-ATTS-007", link._loop, wire))
    assert wire.time == 30
    assert wire.times(Renew) == [10]


def test_a_coordinator_that_is_silent_for_three_beats_is_gone(linked):
    link, wire = linked(talks=False)
    error = refused(AdmissionError, "ST-ADMN-007", link._loop, wire)
    assert "was silent for 3 heart-beats" in str(error)
    assert wire.time == 12


def test_what_a_coordinator_may_say_to_a_member(linked):
    link, wire = linked()
    for message in (STATUS, Store(epoch=0, host="192.0.2.0", port=1), Formed(membership="")):
        link._handle(wire, message)
    with pytest.raises(AdmissionError, match="ST-ADMN-013: it was sold"):
        link._handle(wire, Refuse(code="ST-ADMN-013", what="it was sold", fix=""))
    error = refused(AdmissionError, "ST-ADMN-001", link._handle, wire, Close())
    assert "a Close where" in str(error)


@items("id, said, heard", ("with a reason", SOLD, SOLD), ("without", None, GONE))
def test_the_reason_that_was_said_is_the_one_that_is_heard(linked, monkeypatch, said, heard):
    link, wire = linked()
    failures: list[Any] = []

    def end(*_):
        raise GONE

    monkeypatch.setattr(link, "_loop", end)
    monkeypatch.setattr(link, "_last_word", lambda _: said)
    monkeypatch.setattr(link, "_on_failure", failures.append)
    wire.close = lambda: None
    link._run(wire)
    assert failures == [heard]
