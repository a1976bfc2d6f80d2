# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Attested nodes joining a coordinator over TLS, with the forger's TPMs.

`test_an_attested_node_joins_and_renews` is the control. The same with swtpm: `test_attested`.
"""

import dataclasses
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from securetrain.attest.node.attester import sign_evidence
from securetrain.core.errors import AdmissionError, AttestationError
from securetrain.core.vocabulary import NetworkProfile, NodeTier
from securetrain.evidence.node_evidence import NODE_TYPE, parse_node
from securetrain.evidence.result import verify_result
from securetrain.identity.keys import PrivateKey
from securetrain.identity.spiffe import Role, SpiffeId
from securetrain.policy import load_policy
from securetrain.rendezvous.coordinator.renewal import Renewal
from securetrain.rendezvous.coordinator.session import Session
from securetrain.rendezvous.wire.channel import PeerClosedError
from securetrain.rendezvous.wire.protocol import Admit, Heartbeat, Leave, Proof, Refuse, Renew
from securetrain.testing.machine import write_policy
from tests.attest.worlds import Collector, Machine, reference_values, tpm
from tests.tables import items
from tests.vocabulary import refused

DAY = timedelta(days=1)


class Scene:
    """A job whose policy asks for TPMs, and two machines that have one."""

    def __init__(self, job, tools, folder):
        self.job, self.tools = job, tools
        self.machines = [Machine(name) for name in ("node-0", "node-1")]
        self.machine, other = self.machines
        self.identity = job.identity("node-0")
        self.machine.key = other.key = self.identity.key  # it signs the evidence too
        values = reference_values(
            *self.machines, issued=tools.now() - timedelta(seconds=1), expires=tools.now() + DAY
        )
        path = write_policy(folder, values, PrivateKey.generate(), tier="tpm")
        self.policy = load_policy(str(path))

    def start(self, **settings):
        self.job.start(policy=self.policy, **settings)

    def join(self, machine=None):
        collector = Collector(machine or self.machine)
        return self.job.join("node-0", identity=self.identity, attester=collector)

    def asked(self):
        """A raw connection, its challenge, and the binding as the node sees it."""
        channel, challenge = self.job.challenged(self.identity, tpm=self.machine.keys())
        binding = self.tools.binding_of(channel, challenge, self.identity)
        name = self.machine.tpm.ak.public.name
        return channel, challenge, dataclasses.replace(binding, ak_name=name)

    def say(self, channel, evidence):
        """Send evidence; what comes back."""
        proof = Proof(
            media_type=evidence.media_type,
            body=evidence.body,
            binding=evidence.binding,
            signature=evidence.signature,
        )
        channel.send(proof, self.tools.soon())
        return self.tools.answer(channel)


@pytest.fixture
def scene(job, tools, tmp_path):
    return Scene(job, tools, tmp_path)


def test_an_attested_node_joins_and_renews(scene, job, tools):
    scene.start(lease=1.5, heartbeat=0.3)
    member = scene.join()
    first = member.result
    assert first.tier is NodeTier.TPM
    svid = member._link.admitted.passport.svid
    assert SpiffeId.of_certificate(svid).role is Role.MEMBER
    assert svid.not_valid_after_utc <= first.expires
    scene.machine.execute("/usr/bin/later", b"started during the lease")
    tools.wait_until(lambda: member.result is not first, "the lease is renewed")
    assert member.result.submods["tpm"].claims["ima_entries"] == 4
    key = job.coordinator._terms.key.public
    verify_result(member._link.admitted.passport.ear, key, tools.now())


@pytest.mark.forgery
def test_a_node_is_barred_for_what_it_does_during_its_lease(scene, job, tools):
    scene.start(lease=1.5, heartbeat=0.3)
    member = scene.join()
    scene.machine.extend(4, bytes(32))
    job.expect("ST-ATTS-008", "node-evicted")
    tools.wait_until(lambda: not member.connected, "the node is out")
    tools.wait_until(lambda: not job.coordinator._nodes, "the coordinator dropped it")
    refused(AttestationError, "ST-ATTS-010", scene.join)


@pytest.mark.forgery
def test_the_tpm_of_another_node_is_not_even_challenged(scene, job):
    scene.start()
    refused(AttestationError, "ST-ATTS-012", scene.join, scene.machines[1])
    job.expect("ST-ATTS-012", "node-refused")


@pytest.mark.forgery
@items(
    "id, change",
    ("another-connection", {"exporter": bytes(32)}),
    ("another-session", {"session": bytes(16)}),
    ("another-coordinator", {"server_spki": b"another"}),
    ("another-job", {"job": "job-2"}),
    ("no-attestation-key", {"ak_name": b""}),
    ("another-wireguard-key", {"wireguard": b"w" * 44}),
)
@pytest.mark.parametrize("rebound", [False, True], ids=["as-it-was", "rebound"])
def test_evidence_of_another_connection(scene, change, rebound):
    """The node's own signature is no help: what its TPM signed was meant for somewhere else."""
    scene.start()
    channel, challenge, binding = scene.asked()
    evidence = Collector(scene.machine).collect(dataclasses.replace(binding, **change), challenge)
    if rebound:
        said = parse_node(evidence.body)
        value = binding.value(said.manifest)
        said = tpm(activation=scene.machine.open(challenge, value))(said)
        evidence = sign_evidence(NODE_TYPE, said.encode(), value, scene.identity.key)
    refusal = scene.say(channel, evidence)
    assert refusal.code == ("ST-ATTS-113" if rebound else "ST-ATTS-003")


@items(
    "id, tunnel",
    ("no port", {"wireguard": "Q" * 43 + "="}),
    ("no key", {"wireguard_port": 5000}),
    (
        "not a key",
        {"wireguard": "no key", "wireguard_port": 5000, "network": NetworkProfile.OVERLAY},
    ),
)
def test_a_tunnel_that_is_none(job, tools, tunnel):
    job.start()
    identity = job.identity()
    channel = job.connect(identity)
    channel.handshake(tools.soon())
    channel.send(tools.make_hello(identity, **tunnel), tools.soon())
    refusal = tools.answer(channel)
    assert (refusal.code, job.coordinator._nodes) == ("ST-ADMN-001", {})
    job.expect("ST-ADMN-001")


def test_nothing_but_a_proof_answers_a_challenge(job, tools):
    job.start()
    channel, _ = job.challenged(job.identity())
    channel.send(Heartbeat(), tools.soon())
    refusal = tools.answer(channel)
    assert refusal.code == "ST-ADMN-001"
    assert "Proof" in refusal.what + refusal.fix


@pytest.mark.forgery
def test_a_proof_twice_on_one_connection(scene):
    """A renewal without a question is out of place, however good the answer."""
    scene.start()
    channel, challenge, binding = scene.asked()
    evidence = Collector(scene.machine).collect(binding, challenge)
    assert isinstance(scene.say(channel, evidence), Admit)
    assert scene.say(channel, evidence).code == "ST-ADMN-001"


@pytest.mark.forgery
def test_the_first_proof_again_at_the_renewal(scene, tools):
    """One nonce is good for one renewal."""
    scene.start()
    channel, challenge, binding = scene.asked()
    evidence = Collector(scene.machine).collect(binding, challenge)
    assert isinstance(scene.say(channel, evidence), Admit)
    channel.send(Renew(), tools.soon())
    question = tools.answer(channel)
    assert not question.full
    assert question.nonce != challenge.nonce
    assert scene.say(channel, evidence).code == "ST-ATTS-003"


def test_a_certificate_is_renewed_from_the_latest_one(scene, job, tools, monkeypatch):
    """Not from the one of the handshake, which stays what it was for as long as the node is in."""
    made = job.identity("node-1").certificate
    answers, seen = iter([made, None, None]), []

    def renew(_self, _peer, certificate):
        seen.append(certificate)
        return next(answers)

    monkeypatch.setattr(Renewal, "renew", renew)
    scene.start()
    channel, challenge, binding = scene.asked()
    collector = Collector(scene.machine)
    assert scene.say(channel, collector.collect(binding, challenge)).certificate
    for _ in range(2):
        channel.send(Renew(), tools.soon())
        question = tools.answer(channel)
        again = tools.binding_of(channel, question, scene.identity)
        again = dataclasses.replace(again, ak_name=binding.ak_name)
        admit = scene.say(channel, collector.collect(again, question))
        assert admit.certificate == ""
    assert seen == [scene.identity.certificate, made, made]


# How a session ends, on a channel that does what it is told.

SOLD, SPENT = AdmissionError("ST-ADMN-013", "it was sold"), AdmissionError("ST-ADMN-010", "spent")
GONE = PeerClosedError("ST-ADMN-007", "the peer closed the connection")


class Wire:
    """A channel that hears what it is given, and remembers what was sent and done to it."""

    def __init__(self, *heard):
        self.heard, self.done = list(heard), []

    def receive(self, *_, **__):
        if not self.heard:
            pytest.fail("it listens to a connection that has ended")
        found = self.heard.pop(0)
        return found() if callable(found) else found

    def send(self, message, *_, last=False):
        assert isinstance(message, Refuse)
        assert last
        self.done.append(message.code)

    def abort(self):
        self.done.append("abort")

    def halt(self):
        self.done.append("halt")

    def close(self):
        self.done.append("close")


class Ears:
    """A hub that counts beats and remembers how sessions ended."""

    def __init__(self):
        self.beats, self.ends = 0, []

    def heard(self, *_):
        pass

    def beat(self, _):
        self.beats += 1

    def ended(self, _, error):
        self.ends.append(error)


@pytest.fixture
def serve(monkeypatch):
    """Make a session of an admitted node; run, it begins after its admission."""

    def make(*heard, known=True):
        peer = SpiffeId("securetrain.local", "job-1", Role.NODE, "node-0")
        terms: Any = SimpleNamespace(monotonic=lambda: 0.0, heartbeat=1.0, handshake_timeout=1.0)
        wire: Any = Wire(*heard)
        hub: Any = Ears()
        made = Session(channel=wire, remote="192.0.2.1", hub=hub, verifier=wire, terms=terms)
        made.admitted, made.peer = True, peer if known else None
        return made

    monkeypatch.setattr(Session, "_admit", lambda _: None)
    return make


def test_the_first_verdict_is_the_one_that_counts(serve):
    session = serve()
    for error in (SOLD, SPENT, None):
        session.evict(error)
    session.run()
    assert session.hub.ends == [SOLD]
    assert session.channel.done == ["halt", "halt", "abort", "ST-ADMN-013", "close"]


def test_only_a_known_peer_is_told_why_it_is_evicted(serve):
    stranger = serve(known=False)
    stranger.evict(SOLD)
    stranger.run()
    assert stranger.hub.ends == [SOLD]
    assert stranger.channel.done == ["abort", "close"]


def test_when_the_coordinator_stops_there_is_nothing_to_say(serve):
    session = serve()
    session.evict(None)
    session.run()
    assert session.hub.ends == [None]
    assert session.channel.done == ["abort", "close"]


def test_after_a_goodbye_nothing_is_heard(serve):
    session = serve(Heartbeat(), Leave())
    session.run()
    assert session.said_goodbye
    assert (session.hub.beats, session.hub.ends) == (1, [None])


def test_what_comes_with_the_eviction_is_not_heard_any_more(serve):
    def both():
        session.evict(SOLD)
        return Heartbeat()

    session = serve(both)
    session.run()
    assert (session.hub.beats, session.hub.ends) == (0, [SOLD])


@items(
    "error, admitted, end",
    (GONE, True, None),
    (GONE, False, GONE),
    (SPENT, True, SPENT),
    (SPENT, False, SPENT),
)
def test_a_member_that_hangs_up_is_lost_and_everything_else_is_a_refusal(
    serve, error, admitted, end
):
    def fail():
        raise error

    session = serve(fail)
    session.admitted = admitted
    session._lease_end = 1.0
    session.run()
    assert session.hub.ends == [end]
