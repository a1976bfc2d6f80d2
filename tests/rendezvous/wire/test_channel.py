# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""How a connection ends: at once, and with its reason."""

import select
import socket
import struct
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial

import pytest

from securetrain.core.errors import AdmissionError
from securetrain.identity.keys import KeyKind, PrivateKey
from securetrain.identity.spiffe import Role
from securetrain.rendezvous.coordinator.reception import Reception
from securetrain.rendezvous.wire.channel import Channel, PeerClosedError, Wakeup
from securetrain.rendezvous.wire.protocol import (
    DOCUMENT_LIMIT,
    HEADER_SIZE,
    Admit,
    Heartbeat,
    Refuse,
    Status,
)
from securetrain.rendezvous.wire.tls import PeerCheck, make_connection, make_context
from tests.vocabulary import refused

_REFUSAL = Refuse(code="ST-ADMN-013", what="it was sold", fix="ask who sold it")


@pytest.fixture
def ends(job, tools):
    """Both ends of one connection, the node's first, and no coordinator behind it."""
    reception = Reception(
        ca=job.ca,
        key=PrivateKey.generate(KeyKind.P256),
        lifetime=timedelta(hours=1),
        clock=tools.now,
        make=partial(make_context, server=True),
    )
    check = PeerCheck(
        ca=job.ca.certificate,
        role=Role.NODE,
        trust_domain=job.ca.trust_domain,
        job=job.name,
        clock=tools.now,
    )
    with socket.create_server(("127.0.0.1", 0)) as listener:
        job.host, job.port = listener.getsockname()
        node = job.connect(job.identity())
        sock, _ = listener.accept()
    coordinator = Channel(sock, make_connection(reception.context(), check, server=True))
    job.channels.append(coordinator)
    with ThreadPoolExecutor(1) as pool:
        shaken = pool.submit(node.handshake, tools.soon())
        coordinator.handshake(tools.soon())
        shaken.result()
    return node, coordinator


@pytest.fixture
def admitted(job, tools):
    """A raw node that is in, and the coordinator's session for it."""
    job.start()
    identity = job.identity()
    channel, challenge = job.challenged(identity)
    binding = tools.binding_of(channel, challenge, identity)
    channel.send(tools.prove(job.attester(identity), binding), tools.soon())
    assert isinstance(tools.answer(channel), Admit)
    return channel, job.coordinator._nodes["node-0"]


def test_an_evicted_node_is_told_why(admitted, job, tools):
    channel, session = admitted
    session.evict(AdmissionError("ST-ADMN-013", "it was sold"))
    message = tools.answer(channel)
    assert isinstance(message, Refuse)
    assert (message.code, message.what) == ("ST-ADMN-013", "it was sold")
    assert isinstance(tools.answer(channel), PeerClosedError), "and that is the end"
    job.expect("ST-ADMN-013", "node-evicted")


def test_a_halted_channel_sends_one_last_message_and_nothing_else(ends, tools):
    node, coordinator = ends
    coordinator.halt()
    with pytest.raises(PeerClosedError):
        coordinator.send(Status(waiting=0, ready=0, closed=False), tools.soon())
    coordinator.send(_REFUSAL, tools.soon(), last=True)
    assert tools.answer(node) == _REFUSAL


def test_what_still_lies_in_the_socket_is_not_read_after_a_halt(ends, tools):
    node, coordinator = ends
    node.send(Heartbeat(), tools.soon())
    poller = select.poll()
    poller.register(coordinator._socket, select.POLLIN)
    assert poller.poll(60_000), "it has come"
    coordinator.halt()
    assert isinstance(tools.answer(coordinator), PeerClosedError)


def test_a_halt_after_the_end_does_nothing(ends, tools):
    node, coordinator = ends
    coordinator.close()
    coordinator.halt()
    coordinator.abort()
    assert isinstance(tools.answer(node), PeerClosedError)


def test_a_node_that_is_evicted_while_it_is_judged_gets_no_passport(job, tools, monkeypatch):
    job.start()
    identity = job.identity()
    channel, challenge = job.challenged(identity)
    session = next(iter(job.coordinator._sessions))
    verifier = type(job.coordinator._verifier)
    appraise = verifier.appraise

    def slow(self, *args, **more):
        session.evict(AdmissionError("ST-ADMN-013", "it was sold"))
        return appraise(self, *args, **more)

    monkeypatch.setattr(verifier, "appraise", slow)
    binding = tools.binding_of(channel, challenge, identity)
    channel.send(tools.prove(job.attester(identity), binding), tools.soon())
    message = tools.answer(channel)
    assert isinstance(message, Refuse), message
    assert message.code == "ST-ADMN-013"


def test_a_send_that_nobody_takes_ends_with_the_verdict(ends, tools):
    """It does not wait for its time-out."""
    _, coordinator = ends
    with ThreadPoolExecutor(1) as pool:
        stuck = pool.submit(send_until_it_fails, coordinator, _REFUSAL, tools)
        tools.wait_until(lambda: coordinator._out, "the socket is full")
        coordinator.halt()
        assert isinstance(stuck.result(tools.PATIENCE / 2), PeerClosedError)


def test_a_large_message_waits_until_it_is_taken(ends, tools):
    node, coordinator = ends
    node._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    body = bytes(4 << 20)
    frame = len(body).to_bytes(HEADER_SIZE, "big") + body
    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(node.send_frame, frame, tools.soon())
        tools.wait_until(lambda: node._out, "the socket is full")
        assert coordinator.receive_frame(tools.soon(), limit=DOCUMENT_LIMIT) == body
        sent.result()


def test_a_peer_that_neither_reads_nor_will_say_any_more_is_gone(ends, tools):
    node, coordinator = ends
    node._socket.shutdown(socket.SHUT_WR)
    with ThreadPoolExecutor(1) as pool:
        stuck = pool.submit(send_until_it_fails, coordinator, _REFUSAL, tools)
        assert isinstance(stuck.result(tools.PATIENCE / 2), PeerClosedError)


def reset(channel):
    """End a connection so that the peer's next write fails."""
    channel._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    channel._socket.close()


def send_until_it_fails(channel, message, tools):
    try:
        while True:
            channel.send(message, tools.soon())
    except AdmissionError as error:
        return error


def test_the_first_message_that_cannot_be_sent_says_so(ends, tools):
    node, coordinator = ends
    reset(coordinator)
    poller = select.poll()
    poller.register(node._socket, select.POLLIN)
    assert poller.poll(60_000), "the reset has come"
    with pytest.raises(PeerClosedError):
        node.send(Heartbeat(), tools.soon())


def test_what_was_said_before_a_reset_can_still_be_read(ends, tools):
    node, coordinator = ends
    coordinator.send(_REFUSAL, tools.soon())
    reset(coordinator)
    assert isinstance(send_until_it_fails(node, Heartbeat(), tools), PeerClosedError)
    assert isinstance(send_until_it_fails(node, Heartbeat(), tools), PeerClosedError), "still"
    assert tools.answer(node) == _REFUSAL
    assert isinstance(tools.answer(node), PeerClosedError)


def test_a_member_that_was_just_sending_hears_why_too(job, tools):
    """It beats all the time: sooner or later it writes into the connection that has ended."""
    job.start(1, 2)
    for n in range(10):
        member = job.join(f"node-{n}")
        session = job.coordinator._nodes[f"node-{n}"]
        for _ in range(50):
            member._link.post(Heartbeat())
        session.evict(AdmissionError("ST-ADMN-013", "it was sold"))
        while member.connected:
            member._link.post(Heartbeat())
        refused(AdmissionError, "ST-ADMN-013", lambda m=member: m.num_waiting)
        tools.wait_until(lambda: not job.coordinator._nodes, "the coordinator dropped it")


def test_a_joining_node_that_was_still_proving_hears_why(job, tools, monkeypatch):
    """The refusal comes while it collects evidence, and the connection is gone when it answers."""
    job.start()
    identity = job.identity()
    honest = job.attester(identity)

    class Slow:
        def keys(self):
            return None

        def collect(self, binding, ask):
            session = job.coordinator._nodes["node-0"]
            session.evict(AdmissionError("ST-ADMN-010", "too many"))
            tools.wait_until(lambda: not job.coordinator._sessions, "it is over")
            return honest.collect(binding, ask)

    refused(AdmissionError, "ST-ADMN-010", job.join, identity=identity, attester=Slow())


def test_the_end_that_a_peer_announces_counts_while_its_socket_is_open(ends, tools):
    node, coordinator = ends
    node.connection.shutdown()
    node._flush(tools.soon())
    with pytest.raises(PeerClosedError):
        coordinator.receive(tools.soon())


def test_a_message_that_tls_does_not_take_is_not_lost_in_silence(ends, tools):
    node, _ = ends
    node.connection.shutdown()
    refused(AdmissionError, "ST-ADMN-002", node.send, Heartbeat(), tools.soon())


def test_a_deadline_holds_although_there_is_always_more_to_read(ends, tools):
    node, coordinator = ends
    node.send(Heartbeat(), tools.soon())
    refused(AdmissionError, "ST-ADMN-005", coordinator.receive, 0.0)


def test_a_message_comes_before_a_wakeup_that_does_not(ends, tools):
    node, coordinator = ends
    wakeup = Wakeup()
    with ThreadPoolExecutor(1) as pool:
        heard = pool.submit(coordinator.receive, tools.soon(), wakeup=wakeup)
        node.send(Heartbeat(), tools.soon())
        assert heard.result() == Heartbeat()
        woken = pool.submit(coordinator.receive, tools.soon(), wakeup=wakeup)
        wakeup.set()
        assert woken.result() is None
    wakeup.close()


def test_who_goes_on_talking_does_not_keep_a_closed_channel(ends):
    """The moment that is left for what the peer still sends is over by the clock."""
    node, coordinator = ends
    times = iter(range(100))
    coordinator._monotonic = lambda: float(next(times))
    node._socket.sendall(bytes(64 << 10))
    coordinator.close()
    assert next(times) < 10


def test_a_peer_that_has_not_ended_yet_is_listened_to_for_a_moment(ends, tools, monkeypatch):
    """What it still sends would reset the connection, and with that take back the last word."""
    monkeypatch.setattr("securetrain.rendezvous.wire.channel._LINGER_SECONDS", tools.PATIENCE)
    node, coordinator = ends
    with ThreadPoolExecutor(1) as pool:
        closing = pool.submit(coordinator.close)
        assert isinstance(tools.answer(node), PeerClosedError)
        with pytest.raises(TimeoutError):
            closing.result(0.2)
        node._socket.sendall(bytes(1000))
        node._socket.shutdown(socket.SHUT_WR)
        closing.result(tools.PATIENCE)


@pytest.mark.parametrize(("asked", "kept"), [(4.0, 4000), (0.1, 2000)])
def test_a_machine_that_answers_nothing_is_noticed_by_the_kernel(ends, asked, kept):
    """Never sooner than in two seconds: a busy network is no reason."""
    _, coordinator = ends
    coordinator.expect_answers(asked)
    options = [socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_USER_TIMEOUT]
    found = [coordinator._socket.getsockopt(socket.IPPROTO_TCP, option) for option in options]
    assert found == [1, 1, kept]
    assert coordinator._socket.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


def test_a_connection_of_another_kind_is_left_to_its_owners_clock(ends):
    """As in tests, where both ends are one process."""
    _, coordinator = ends
    ours, theirs = socket.socketpair()
    with theirs:
        Channel(ours, coordinator.connection).expect_answers(4.0)
        ours.send(b"x")
        assert theirs.recv(1) == b"x"
        ours.close()
