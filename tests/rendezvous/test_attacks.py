# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Attacks on the coordinator and on members, over real sockets.

Each is the honest join of `test_an_honest_raw_node_is_admitted` with one thing wrong: that test is
their positive control. What plain torch does with a stranger is in test_torchrun and in the drills.

These are numbers 1 to 19 of the attacks that docs/explanation/attacks.md lists with their tests.
"""

import contextlib
import dataclasses
import socket
import threading
import time
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from OpenSSL import SSL

from securetrain.core.errors import AdmissionError, AttestationError, SecureTrainError
from securetrain.core.vocabulary import Boundary, NetworkProfile
from securetrain.drills.loopback_job import running_job
from securetrain.drills.tcpstore_client import HELLO, NotAStoreError, StoreClient
from securetrain.identity.cluster_ca import ClusterCA
from securetrain.identity.job_ca import JobCA
from securetrain.identity.keys import KeyKind, PrivateKey
from securetrain.identity.spiffe import Role
from securetrain.network.kernel_sockets import own_listeners
from securetrain.policy import load_policy
from securetrain.rendezvous.coordinator.standalone import Plan, Standalone
from securetrain.rendezvous.member.identity_dir import store_identity
from securetrain.rendezvous.wire.channel import Channel
from securetrain.rendezvous.wire.membership import sign_membership
from securetrain.rendezvous.wire.protocol import (
    Admit,
    Challenge,
    Close,
    Formed,
    Heartbeat,
    Ready,
    Refuse,
    Store,
    encode_frame,
)
from securetrain.rendezvous.wire.tls import PeerCheck, TlsIdentity, make_connection, make_context
from tests import vocabulary
from tests.rendezvous.worlds import meet, serve_once
from tests.tables import items


@pytest.fixture
def idle(tmp_path):
    """A job whose coordinator a test starts by itself, or never."""
    with running_job(tmp_path) as made:
        yield made


@pytest.fixture
def job(idle):
    idle.start()
    return idle


def raw_send(channel: Channel, data: bytes) -> None:
    channel._tls.sendall(data)
    channel._flush(channel._monotonic() + 10)


def careless_handshake(channel):
    """TLS as a client that checks nothing; returns how the coordinator ended it."""
    while True:
        try:
            channel._tls.do_handshake()
            break
        except SSL.WantReadError:
            channel._flush(channel._monotonic() + 10)
        channel._fill(channel._monotonic() + 10)
    with pytest.raises(AdmissionError) as caught:
        channel.receive(channel._monotonic() + 10)
    return caught.value


def frame(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def shaken(job, tools, identity=None):
    """A raw connection after its handshake."""
    channel = job.connect(identity or job.identity())
    channel.handshake(tools.soon())
    return channel


def ended(job, tools, member, code):
    """The member has ended its connection, and says why."""
    tools.wait_until(lambda: not member.connected, "the member ends the connection")
    return vocabulary.refused(AdmissionError, code, lambda: member.num_waiting)


def gone(job, tools):
    tools.wait_until(lambda: not job.coordinator._nodes, "the first one is gone")


def proof_of(job, tools, identity, channel, challenge, *, by=None):
    binding = tools.binding_of(channel, challenge, identity)
    return tools.prove(job.attester(by or identity), binding)


def hung_up(sock, data, *, last=False):
    """Send it, as the last word or not; what comes until the other end hangs up."""
    found = b""
    sock.settimeout(20)
    sock.sendall(data)
    if last:
        sock.shutdown(socket.SHUT_WR)
    with contextlib.suppress(ConnectionError):
        while piece := sock.recv(4096):
            found += piece
    return found


def refused(job, tools, channel, code):
    """The peer is told, and the ledger says so."""
    message = tools.answer(channel)
    assert isinstance(message, Refuse), message
    assert message.code == code
    channel.close()
    return job.expect(code)


def test_an_honest_raw_node_is_admitted(job, tools):
    admitted(job, tools).close()


# Who may connect.


def test_no_client_certificate(job, tools):
    context = SSL.Context(SSL.TLS_CLIENT_METHOD)
    context.set_alpn_protos([b"securetrain-rdzv/6"])
    error = careless_handshake(job.connect(job.identity(), context))
    assert "certificate required" in error.what  # the alert; nothing of ours was said
    assert "certificate" in job.expect("ST-ADMN-002").details["what"]


def complete(channel, deadline):
    """TLS 1.3 lets the client finish first: what the coordinator thinks of it comes afterwards."""
    channel.handshake(deadline)
    return channel.receive(deadline)


def stranger(job, tools, certificate, key, ca=None):
    identity = TlsIdentity(key=key, certificate=certificate, ca=ca or job.ca.certificate)
    channel = job.connect(job.identity("bystander"), make_context(identity, server=False))
    with pytest.raises(AdmissionError):
        complete(channel, tools.soon())
    channel.close()


def test_a_self_signed_certificate(job, tools):
    other = JobCA.create("securetrain.local", "job-1", tools.now())
    stranger(job, tools, other.certificate, other.key)
    job.expect("ST-ADMN-002")


def test_a_certificate_of_another_ca_with_the_same_names(job, tools):
    other = JobCA.create("securetrain.local", "job-1", tools.now())
    identity = job.identity("node-0", other)
    stranger(job, tools, identity.certificate, identity.key)
    job.expect("ST-ADMN-002")


@pytest.mark.parametrize("days", [-3, 3])
def test_an_expired_certificate_and_one_that_is_not_valid_yet(job, tools, days):
    key = PrivateKey.generate(KeyKind.P256)
    at = tools.now() + timedelta(days=days)
    leaf = job.ca.issue(Role.NODE, key.public, at, node="node-0", lifetime=timedelta(hours=1))
    stranger(job, tools, leaf, key)
    assert "valid from" in job.expect("ST-ADMN-002").details["what"]


def test_a_certificate_of_another_job_by_the_same_ca(job, tools):
    elsewhere = dataclasses.replace(job.ca, job="job-2")
    identity = job.identity("node-0", elsewhere)
    stranger(job, tools, identity.certificate, identity.key)
    assert "job-2" in job.expect("ST-ADMN-004").details["what"]


def test_a_coordinators_certificate_is_no_nodes(job, tools):
    key = PrivateKey.generate(KeyKind.P256)
    leaf = job.ca.issue(Role.COORDINATOR, key.public, tools.now(), lifetime=timedelta(hours=1))
    stranger(job, tools, leaf, key)
    job.expect("ST-ADMN-003")


def context_of(identity):
    """TLS with a node's certificate, and nothing else set."""
    context = SSL.Context(SSL.TLS_CLIENT_METHOD)
    context.use_certificate(identity.certificate)
    context.use_privatekey(identity.key.native)
    return context


@pytest.mark.parametrize("ciphers", [b"DEFAULT", b"NULL-SHA256:eNULL:@SECLEVEL=0"])
def test_tls_1_2_and_null_ciphers(job, tools, ciphers):
    identity = job.identity()
    context = context_of(identity)
    context.set_min_proto_version(SSL.TLS1_2_VERSION)
    context.set_max_proto_version(SSL.TLS1_2_VERSION)
    context.set_cipher_list(ciphers)
    with pytest.raises(AdmissionError):
        job.connect(identity, context).handshake(tools.soon())
    job.expect("ST-ADMN-002")


def test_another_application_protocol(job, tools):
    identity = job.identity()
    context = context_of(identity)
    context.set_alpn_protos([b"h2"])
    careless_handshake(job.connect(identity, context))
    assert "securetrain-rdzv/6" in job.expect("ST-ADMN-002").details["what"]


def test_a_session_is_never_resumed(job, tools):
    identity = job.identity()
    context = make_context(identity.tls, server=False)
    reused = vars(SSL)["_lib"].SSL_session_reused  # pyOpenSSL has no public name for it
    sessions: list[SSL.Session] = []
    for _ in range(2):
        channel = job.connect(identity, context)
        if sessions:
            channel._tls.set_session(sessions[0])
        channel.handshake(tools.soon())
        channel.send(tools.make_hello(identity), tools.soon())
        assert isinstance(tools.answer(channel), Challenge)  # any ticket has arrived by now
        session = channel._tls.get_session()
        if session is not None:
            sessions.append(session)
        assert reused(channel._tls._ssl) == 0
        channel.close()
        tools.wait_until(lambda: not job.coordinator._nodes, "the coordinator saw the end")


_LIB = vars(SSL)["_lib"]  # pyOpenSSL has no public names for these


def early_data_of(address, identity):
    """How many bytes of early data a server lets a returning client send."""
    check = PeerCheck(
        ca=identity.ca,
        role=Role.COORDINATOR,
        trust_domain="securetrain.local",
        job="job-1",
        clock=lambda: datetime.now(UTC),
    )
    connection = make_connection(make_context(identity.tls, server=False), check, server=False)
    channel = Channel(socket.create_connection(address, 20), connection)
    channel.handshake(channel._monotonic() + 20)
    with contextlib.suppress(AdmissionError):
        channel.send(Ready(floors=()), channel._monotonic() + 20)
        channel.receive(channel._monotonic() + 20)  # a server's tickets come before what it says
    session = connection.get_session()
    channel.close()
    assert session is not None
    return _LIB.SSL_SESSION_get_max_early_data(session._session)


def test_no_early_data(idle, tools):
    """The positive control is the same server with OpenSSL's early data switched on."""
    coordinator = idle.start()
    identity = idle.identity()
    assert early_data_of((idle.host, idle.port), identity) == 0
    context = coordinator._reception.context()
    _LIB.SSL_CTX_set_max_early_data(context._context, 1000)
    assert early_data_of((idle.host, idle.port), identity) == 1000


# A coordinator that is none.


def impostor(job, identity):
    """Have the job's address answer TLS with `identity`; returns the thread."""
    check = PeerCheck(
        ca=job.ca.certificate,
        role=Role.NODE,
        trust_domain="securetrain.local",
        job=job.name,
        clock=lambda: identity.certificate.not_valid_before_utc + timedelta(hours=1),
    )

    def answer(sock):
        connection = make_connection(make_context(identity, server=True), check, server=True)
        return Channel(sock, connection)

    def hear(channel):
        channel.handshake(channel._monotonic() + 10)
        channel.receive(channel._monotonic() + 10)

    (job.host, job.port), thread = serve_once(answer, hear)
    return thread


def test_a_node_cannot_play_the_coordinator(idle):
    other = idle.identity("node-7")
    thread = impostor(idle, other.tls)
    with pytest.raises(AdmissionError) as caught:
        idle.join("node-0")
    thread.join()
    assert caught.value.code == "ST-ADMN-003"
    assert "node-7" in caught.value.what


def test_a_coordinator_of_another_ca(idle, tools):
    other = JobCA.create("securetrain.local", "job-1", tools.now())
    key = PrivateKey.generate(KeyKind.P256)
    leaf = other.issue(Role.COORDINATOR, key.public, tools.now(), lifetime=timedelta(hours=1))
    thread = impostor(idle, TlsIdentity(key=key, certificate=leaf, ca=other.certificate))
    vocabulary.refused(AdmissionError, "ST-ADMN-002", idle.join, "node-0")
    thread.join()


# What an authenticated node may say.


@items(
    "change, code",
    ({"job": "job-2"}, "ST-ADMN-004"),
    ({"node": "node-1"}, "ST-ADMN-009"),
    ({"protocol": "securetrain-rdzv/0"}, "ST-ADMN-001"),
    ({"address": "evil.example"}, "ST-ADMN-001"),
)
def test_a_hello_that_is_not_what_the_certificate_says(job, tools, change, code):
    identity = job.identity()
    channel = shaken(job, tools, identity)
    channel.send(tools.make_hello(identity, **change), tools.soon())
    refused(job, tools, channel, code)


@items(
    "id, data",
    ("oversize", (64 * 1024 + 1).to_bytes(4, "big") + b"{" * 100000),
    ("4 GiB", b"\xff\xff\xff\xff"),
    ("empty frame", bytes(4)),
    ("not json", frame(b"not json")),
    ("duplicate key", frame(b'{"type":"ready","type":"ready"}')),
    ("unknown field", frame(b'{"type":"ready","more":1}')),
    ("unknown type", frame(b'{"type":"reboot"}')),
    ("not canonical", frame(b'{"type": "ready"}')),
    ("NaN", frame(b'{"type":"hello","local_world":NaN}')),
    ("deep", frame(b"[" * 60000)),
    ("pickle", frame(b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00.")),
    ("ready before hello", encode_frame(Ready(floors=()))),
    ("close before hello", encode_frame(Close())),
)
def test_bad_frames_after_authentication(job, tools, data):
    channel = shaken(job, tools)
    raw_send(channel, data)
    event = refused(job, tools, channel, "ST-ADMN-001")
    assert event.subject.endswith("/node/node-0"), "an authenticated peer is named"


def test_nobody_can_claim_a_rank(job, tools):
    """There is no field for it, in any message that a node sends."""
    channel = shaken(job, tools)
    honest = encode_frame(tools.make_hello(job.identity()))[4:]
    raw_send(channel, frame(honest.replace(b'"resume":null', b'"rank":0,"resume":null')))
    assert "rank" in refused(job, tools, channel, "ST-ADMN-001").details["what"]


def test_messages_that_only_the_coordinator_sends(job, tools):
    member = job.join()
    member._link.post(Formed(membership="{}"))
    event = job.expect("ST-ADMN-001", "node-evicted")
    assert "Formed" in event.details["what"]


def test_a_pickle_bomb_in_a_frame_runs_nowhere(job, tools, tmp_path):
    import pickle

    marker = tmp_path / "marker"

    class Bomb:
        def __reduce__(self):
            return marker.touch, ()

    bomb = pickle.dumps(Bomb())
    pickle.loads(bomb)
    assert marker.exists(), "the bomb works"
    marker.unlink()
    channel = shaken(job, tools)
    raw_send(channel, frame(bomb))
    refused(job, tools, channel, "ST-ADMN-001")
    assert not marker.exists()


def test_evidence_may_be_large_but_nothing_else(job, tools):
    identity = job.identity()
    channel, _ = job.challenged(identity)
    raw_send(channel, ((4 << 20) + 1).to_bytes(4, "big"))
    refused(job, tools, channel, "ST-ADMN-001")
    gone(job, tools)
    channel, challenge = job.challenged(identity)
    proof = proof_of(job, tools, identity, channel, challenge)
    channel.send(msgspec.structs.replace(proof, body=bytes(2 << 20)), tools.soon())
    refused(job, tools, channel, "ST-ATTS-003")  # it was read, and judged


# Evidence.


def test_evidence_of_another_session_is_refused(job, tools):
    """A relay: the node is honest, but another connection presents its evidence."""
    identity = job.identity()
    first, challenge = job.challenged(identity)
    stolen = proof_of(job, tools, identity, first, challenge)
    first.close()
    gone(job, tools)
    second, _ = job.challenged(identity)
    second.send(stolen, tools.soon())
    event = refused(job, tools, second, "ST-ATTS-003")
    assert event.boundary is Boundary.NODE


def recorded_join(job, tools, identity):
    """An honest join, and every byte that the node's socket sent."""
    sent: list[bytes] = []
    channel = job.connect(identity)
    channel._socket = _Recorder(channel._socket, sent)
    channel.handshake(tools.soon())
    hello = tools.make_hello(identity)
    channel.send(hello, tools.soon())
    challenge = tools.answer(channel)
    proof = proof_of(job, tools, identity, channel, challenge)
    channel.send(proof, tools.soon())
    assert isinstance(tools.answer(channel), Admit)
    channel.close()
    gone(job, tools)
    return b"".join(sent), hello, proof


class _Recorder:
    """A socket that keeps what it sends."""

    def __init__(self, sock, sent):
        self._sock, self._sent = sock, sent

    def __getattr__(self, name):
        return getattr(self._sock, name)

    def send(self, data):
        number = self._sock.send(data)
        self._sent.append(bytes(data[:number]))
        return number


def test_a_recorded_join_is_worth_nothing_as_bytes(job, tools):
    """Somebody on the wire sends it all again: another handshake has other keys."""
    recording, _, _ = recorded_join(job, tools, job.identity())
    assert len(recording) > 2000
    with socket.create_connection((job.host, job.port)) as sock:
        hung_up(sock, recording, last=True)
    job.expect("ST-ADMN-002", "connection-refused")
    assert [e.event for e in job.events()].count("node-admitted") == 1


def test_a_recorded_join_is_worth_nothing_as_messages(job, tools):
    """Even for the node itself, on a connection of its own: the nonce and session are others."""
    identity = job.identity()
    _, hello, proof = recorded_join(job, tools, identity)
    channel = shaken(job, tools, identity)
    channel.send(hello, tools.soon())
    assert isinstance(tools.answer(channel), Challenge)
    channel.send(proof, tools.soon())
    refused(job, tools, channel, "ST-ATTS-003")


def test_evidence_for_another_wireguard_key_is_refused(job, tools):
    identity = job.identity()
    tunnel = {"wireguard": "B" * 42 + "A=", "wireguard_port": 1, "network": NetworkProfile.OVERLAY}
    channel, challenge = job.challenged(identity, **tunnel)
    binding = tools.binding_of(channel, challenge, identity)  # without the WireGuard key
    channel.send(tools.prove(job.attester(identity), binding), tools.soon())
    refused(job, tools, channel, "ST-ATTS-003")


def test_evidence_signed_by_another_key_is_refused(job, tools):
    identity, other = job.identity(), job.identity("node-9")
    channel, challenge = job.challenged(identity)
    channel.send(proof_of(job, tools, identity, channel, challenge, by=other), tools.soon())
    refused(job, tools, channel, "ST-ATTS-003")


def test_a_second_proof_for_one_challenge_is_refused(job, tools):
    identity = job.identity()
    channel, challenge = job.challenged(identity)
    proof = proof_of(job, tools, identity, channel, challenge)
    channel.send(proof, tools.soon())
    assert isinstance(tools.answer(channel), Admit)
    channel.send(proof, tools.soon())
    refused(job, tools, channel, "ST-ADMN-001")


def test_more_unattested_nodes_than_the_policy_allows(idle, tools):
    idle.start(2, 2, policy=tools.make_policy(max_nodes=1))
    first = idle.join("node-0")
    vocabulary.refused(AttestationError, "ST-ATTS-005", idle.join, "node-1")
    idle.expect("ST-ATTS-005", "node-refused")
    first.leave()
    gone(idle, tools)
    idle.join("node-1")


def test_a_node_that_the_policy_does_not_let_in(idle):
    """A good certificate of this job is not enough: the policy asks for a TPM."""
    idle.start(policy=load_policy("baseline"))
    vocabulary.refused(AttestationError, "ST-ATTS-005", idle.join)
    idle.expect("ST-ATTS-005", "node-refused")
    assert idle.coordinator.admissions == []


def test_nobody_is_in_whom_the_ledger_does_not_know(job, tools):
    """The disk is full, the ledger a directory: whatever it is, the node stays out."""
    job.ledger.path.unlink()
    job.ledger.path.mkdir()
    vocabulary.refused(AdmissionError, "ST-ADMN-012", job.join)
    assert job.coordinator.admissions == []
    tools.wait_until(lambda: job.coordinator.problem, "the problem is kept")
    job.coordinator._problem = None
    job.ledger.path.rmdir()


def admitted(job, tools, node="node-0"):
    identity = job.identity(node)
    channel, challenge = job.challenged(identity)
    channel.send(proof_of(job, tools, identity, channel, challenge), tools.soon())
    assert isinstance(tools.answer(channel), Admit)
    return channel


def test_beating_is_not_renewing(idle, tools):
    """A node that is alive but does not answer a challenge in time is out."""
    idle.start(lease=0.4)
    channel = admitted(idle, tools)
    message = None
    while not isinstance(message, Refuse):
        channel.send(Heartbeat(), tools.soon())
        message = tools.answer(channel)
        assert not isinstance(message, SecureTrainError), message
        time.sleep(0.01)  # more in a second would be its end for another reason
    assert message.code == "ST-ATTS-007"
    event = idle.expect("ST-ATTS-007", "node-evicted")
    assert event.boundary is Boundary.NODE


def test_a_lease_also_ends_for_a_node_that_says_nothing(idle, tools):
    idle.start(lease=0.2)
    channel = admitted(idle, tools)
    message = tools.answer(channel)
    assert isinstance(message, Refuse)
    assert message.code == "ST-ATTS-007"


def test_a_node_that_goes_before_it_has_proven_anything_is_a_refusal(job, tools):
    channel, _ = job.challenged(job.identity())
    channel.close()
    job.expect("ST-ADMN-007", "node-refused")


def test_the_first_verdict_stands(job, tools):
    job.join()
    session = job.coordinator._nodes["node-0"]
    halt, session.channel.halt = session.channel.halt, lambda: None
    session.evict(AdmissionError("ST-ADMN-010", "first"))
    session.channel.halt = halt
    session.evict(AdmissionError("ST-ADMN-005", "second"))
    job.expect("ST-ADMN-010", "node-evicted")


# Twins, rank 0, other people's stores.


def test_the_same_node_twice_is_refused_and_both_are_noted(idle, tools):
    idle.start(2, 2)
    identity = idle.identity()
    first = idle.join(identity=identity)
    vocabulary.refused(AdmissionError, "ST-ADMN-011", idle.join, identity=identity)
    idle.expect("ST-ADMN-011", "node-refused")
    assert "node-has-twin" in [e.event for e in idle.events()]
    assert first.connected, "the one that was there first stays"


def same_key(job, tools, node, key):
    leaf = job.ca.issue(Role.NODE, key.public, tools.now(), node=node, lifetime=timedelta(hours=1))
    return store_identity(job.folder(node), key, leaf, job.ca.certificate, tools.now())


def test_what_only_one_node_can_have(idle, tools):
    """Another name does not help: the key and the WireGuard key are one node's, too."""
    idle.start(1, 8)
    key = PrivateKey.generate(KeyKind.P256)
    first = same_key(idle, tools, "node-0", key)
    member = idle.join(identity=first, wireguard="Q" * 43 + "=")
    with pytest.raises(AdmissionError, match="with the same key") as caught:
        idle.join(identity=same_key(idle, tools, "node-1", key))
    assert caught.value.code == "ST-ADMN-011"
    with pytest.raises(AdmissionError, match="with the same WireGuard key") as caught:
        idle.join("node-2", wireguard="Q" * 43 + "=")
    assert caught.value.code == "ST-ADMN-011"
    twins = [e for e in idle.events() if e.event == "node-has-twin"]
    assert [e.details["shared"] for e in twins] == ["key", "WireGuard key"]
    assert member.connected
    idle.join("node-3", wireguard="g" * 43 + "=")


def test_who_loses_its_lease_is_in_no_later_membership(idle, tools):
    """The next epoch is without it, so nobody gives it a tunnel any more."""
    idle.start(1, 2, last_call=0.2, lease=1.5)
    mute = admitted(idle, tools, "node-9")
    mute.send(Ready(floors=()), tools.soon())
    member = idle.join("node-0")
    round_of = member.next_round(lambda membership: 20000)
    assert {m.node for m in round_of.membership.members} == {"node-0", "node-9"}
    idle.expect("ST-ATTS-007", "node-evicted")
    tools.wait_until(lambda: member.num_waiting, "the others are told")
    after = member.next_round(lambda membership: 20001)
    assert [m.node for m in after.membership.members] == ["node-0"]
    assert after.membership.epoch > round_of.membership.epoch


def formed_pair(job, **keys):
    job.start(2, 2)
    members = [job.join(f"node-{n}", wireguard=keys.get(f"wg{n}", "")) for n in range(2)]
    return members, meet(members)[0].membership.epoch


def test_only_rank_0_may_announce_the_store(idle):
    members, epoch = formed_pair(idle)
    members[1]._link.post(Store(epoch=epoch, host="127.0.0.1", port=666))
    event = idle.expect("ST-ADMN-001", "node-evicted")
    assert "node-1 announced a store" in event.details["what"]


def test_rank_0_may_not_redirect_the_workers(idle, tools, monkeypatch):
    idle.start(1, 1)
    member = idle.join()
    monkeypatch.setattr("securetrain.rendezvous.member.client.store_host", lambda _: "192.0.2.7")
    with pytest.raises(AdmissionError):
        member.next_round(lambda membership: 20000, 5)
    idle.expect("ST-ADMN-001", "node-evicted")


def test_a_member_refuses_a_store_that_is_not_rank_0s(idle, tools):
    """Even from the coordinator: the membership is what is signed."""
    members, epoch = formed_pair(idle)
    session = idle.coordinator._nodes["node-1"]
    session.post(Store(epoch=epoch, host="192.0.2.7", port=666))
    ended(idle, tools, members[1], "ST-ADMN-009")


def test_an_old_membership_comes_back(idle, tools, monkeypatch):
    idle.start(1, 1)
    sent = []
    member = idle.join()
    session = idle.coordinator._nodes["node-0"]
    post = type(session).post

    def listen(self, message):
        sent.append(message)
        post(self, message)

    monkeypatch.setattr(type(session), "post", listen)
    member.next_round(lambda membership: 20000)
    member.next_round(lambda membership: 20001)
    old = next(m for m in sent if isinstance(m, Formed))
    session.post(old)
    assert "goes back" in ended(idle, tools, member, "ST-ADMN-006").what


@pytest.mark.parametrize("who", ["the network", "the coordinator itself"])
def test_a_membership_that_was_changed(idle, tools, who):
    """Two members' WireGuard keys swapped: then one would get what is meant for the other."""
    members, epoch = formed_pair(idle, wg0="Q" * 43 + "=", wg1="g" * 43 + "=")
    honest = idle.coordinator.membership
    replace = msgspec.structs.replace
    first, second = honest.members
    swapped = replace(
        honest,
        epoch=epoch + 1,
        members=(
            replace(first, wireguard=second.wireguard),
            replace(second, wireguard=first.wireguard),
        ),
    )
    key = idle.coordinator._terms.key
    code = "ST-ADMN-009"
    if who == "the network":
        key, code = PrivateKey.generate(KeyKind.P256), "ST-ADMN-006"
    idle.coordinator._nodes["node-1"].post(Formed(membership=sign_membership(swapped, key)))
    ended(idle, tools, members[1], code)


# Strangers who waste our time.


def is_a_store(host, port):
    with contextlib.suppress(NotAStoreError, OSError), StoreClient(host, port) as client:
        client.hello()
        return client.ping()
    return False


def test_no_port_of_the_coordinator_is_a_store(idle, tools, tmp_path):
    """Every port that the process opens is tried; torch's own store, beside them, answers."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    before = {(entry.address, entry.port) for entry in own_listeners()}
    cluster = ClusterCA.create(tmp_path / "ca", "securetrain.local", tools.now())
    plan = Plan(
        job=idle.name,
        min_nodes=1,
        max_nodes=1,
        policy=tools.make_policy(),
        run_dir=tmp_path / "run",
        fleet=tmp_path / "fleet",
        enroll_port=0,
    )
    running = Standalone(plan=plan, cluster=cluster, unlock=cluster.key, clock=tools.now)
    running.start()
    try:
        opened = {(entry.address, entry.port) for entry in own_listeners()} - before
        assert opened == {running.address, running.enrollment}
        assert not any(is_a_store(*address) for address in opened)
        stock = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        assert is_a_store("127.0.0.1", stock.port)
    finally:
        running.stop()
        cluster.close()


def test_the_bytes_of_a_tcpstore_client(job):
    """The attack on stock torchrun begins like this; see test_torchrun for how it ends there."""
    with StoreClient(job.host, job.port) as client:
        client.hello()
        with pytest.raises(NotAStoreError):
            client.ping()
    event = job.expect("ST-ADMN-002", "connection-refused")
    assert event.boundary is Boundary.RENDEZVOUS
    assert event.subject.startswith("127.0.0.1:")


@items("data", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff" + bytes(70000), HELLO, b"\x00")
def test_garbage(job, tools, data):
    with socket.create_connection((job.host, job.port)) as sock:
        hung_up(sock, data, last=True)
    job.expect("ST-ADMN-002")


def test_a_connection_that_says_nothing_times_out(idle, tools):
    idle.start(policy=tools.make_policy(handshake_timeout_seconds=1))
    with socket.create_connection((idle.host, idle.port)) as sock:
        sock.settimeout(20)
        assert sock.recv(1) == b""
    idle.expect("ST-ADMN-005", "connection-refused")


def test_a_byte_now_and_then_does_not_move_the_deadline(idle, tools):
    idle.start(policy=tools.make_policy(handshake_timeout_seconds=1))
    with socket.create_connection((idle.host, idle.port)) as sock:
        sock.sendall(b"\x16\x03\x01\x02\x00")
        sock.settimeout(0.1)
        for _ in range(100):
            try:
                sock.sendall(b"\x01")
                if sock.recv(1) == b"":
                    break
            except TimeoutError:
                continue
            except ConnectionError:
                break
        else:
            pytest.fail("still open")
    assert idle.expect("ST-ADMN-005")


def test_idle_connections_cannot_keep_a_member_out(idle, tools):
    idle.start(policy=tools.make_policy(max_unauthenticated=4))
    quiet = [socket.create_connection((idle.host, idle.port)) for _ in range(30)]
    member = idle.join()
    assert member.connected
    assert idle.coordinator._listener.num_strangers <= 4
    event = idle.expect("ST-ADMN-010", "connection-refused")
    assert event.boundary is Boundary.RENDEZVOUS
    tools.wait_until(
        lambda: sum(t.name.startswith("session-") for t in threading.enumerate()) <= 6,
        "threads of evicted strangers end",
    )
    for sock in quiet:
        sock.close()


def test_an_authenticated_node_that_never_proves_counts_as_a_stranger(idle, tools):
    idle.start(1, 8, policy=tools.make_policy(max_unauthenticated=2))
    held = [idle.challenged(idle.identity(f"node-{n}"))[0] for n in range(3)]
    idle.expect("ST-ADMN-010", "node-refused")
    assert idle.coordinator._listener.num_strangers <= 2
    for channel in held:
        channel.close()


def test_a_flood_does_not_fill_the_ledger(idle, tools):
    coordinator = idle.start()
    for _ in range(70):
        with StoreClient(idle.host, idle.port) as client:
            client.hello()
            with pytest.raises(NotAStoreError):
                client.ping()
    tools.wait_until(lambda: not coordinator._sessions, "all of them are judged")
    coordinator.stop()
    events = idle.events()
    assert sum(e.code == "ST-ADMN-002" for e in events) == 50
    (rest,) = (e for e in events if e.event == "refusals-not-listed")
    assert (rest.subject, rest.details["count"]) == ("ST-ADMN-002", 20)


def test_a_bad_connection_does_not_disturb_a_member(job, tools):
    member = job.join()
    with socket.create_connection((job.host, job.port)) as sock:
        sock.sendall(HELLO)
    job.expect("ST-ADMN-002")
    member._link.post(Heartbeat())
    assert member.next_round(lambda membership: 20000).rank == 0


def test_nothing_is_said_to_a_stranger(job):
    """Before TLS is done the coordinator sends TLS records only, no text of ours."""
    with socket.create_connection((job.host, job.port)) as sock:
        data = hung_up(sock, HELLO)
    assert b"securetrain" not in data
    assert len(data) <= 7  # one TLS alert
