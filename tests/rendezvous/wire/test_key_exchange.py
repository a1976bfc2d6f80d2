# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The keys of control connections, and what travels under them."""

import contextlib
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from msgspec.structs import replace
from OpenSSL import SSL

from securetrain.core.errors import AdmissionError
from securetrain.core.vocabulary import KeyExchange
from securetrain.network.wireguard import WireGuardKey, decode_key, encode_key, pairwise_psk
from securetrain.policy import LoadedPolicy, load_policy
from securetrain.policy.load import digest_of
from securetrain.rendezvous.wire.protocol import Formed
from securetrain.rendezvous.wire.tls import HYBRID, make_context, require_hybrid

GROUP = 0x11EC
"""X25519MLKEM768's number (draft-ietf-tls-ecdhe-mlkem)."""
CLIENT_SHARE, SERVER_SHARE = 1184 + 32, 1088 + 32
"""Bytes of an encapsulation key and of a ciphertext of ML-KEM-768, each with a point of X25519."""


def hybrid_only(tools):
    policy = tools.make_policy().policy
    strict = replace(policy.rendezvous, key_exchange=KeyExchange.HYBRID)
    policy = replace(policy, rendezvous=strict)
    return LoadedPolicy(policy=policy, digest=digest_of(policy))


def only(context: SSL.Context, group: bytes) -> SSL.Context:
    """A context that offers one group; pyOpenSSL has no call for that."""
    library: Any = SSL
    assert library._lib.SSL_CTX_set1_curves_list(context._context, group) == 1
    return context


def test_both_ends_agree_on_the_hybrid_group(job):
    job.start()
    member = job.join()
    assert member.key_exchange == HYBRID
    (admitted,) = [event for event in job.events() if event.event == "node-admitted"]
    assert admitted.details["key_exchange"] == member.key_exchange


def test_another_group_is_recorded_as_what_it_is(job, tools):
    job.start()
    identity = job.identity()
    channel = job.connect(identity, only(make_context(identity.tls, server=False), b"X25519"))
    channel.handshake(tools.soon())
    assert channel.key_exchange.upper() == "X25519"


def test_a_policy_may_refuse_every_other_group(job, tools):
    job.start(policy=hybrid_only(tools))
    identity = job.identity()
    channel = job.connect(identity, only(make_context(identity.tls, server=False), b"X25519"))
    channel.handshake(tools.soon())
    message = tools.answer(channel)
    assert message.code == "ST-ADMN-039"
    job.expect("ST-ADMN-039")
    assert job.join("node-1").key_exchange == HYBRID


def test_hardened_refuses_them():
    assert load_policy("hardened").policy.rendezvous.key_exchange is KeyExchange.HYBRID
    assert load_policy("baseline").policy.rendezvous.key_exchange is KeyExchange.ANY


class Wiretap:
    """Passes one connection on to the coordinator, and keeps what it sees."""

    def __init__(self, host: str, port: int) -> None:
        self.seen = {"to": bytearray(), "from": bytearray()}
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port = self.server.getsockname()[1]
        self.target = host, port
        self.sockets = [self.server]
        self.threads = [threading.Thread(target=self._accept, daemon=True)]
        self.threads[0].start()

    def close(self) -> None:
        """End it, with everything that it holds."""
        for sock in self.sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self.threads:
            thread.join()
        for sock in self.sockets:
            sock.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self.server.accept()
            except OSError:
                return
            far = socket.create_connection(self.target)
            self.sockets += [near, far]
            for one, other, way in ((near, far, "to"), (far, near, "from")):
                thread = threading.Thread(target=self._pass, args=(one, other, way), daemon=True)
                self.threads.append(thread)
                thread.start()

    def _pass(self, one: socket.socket, other: socket.socket, way: str) -> None:
        try:
            while data := one.recv(1 << 16):
                self.seen[way] += data
                other.sendall(data)
            other.shutdown(socket.SHUT_WR)
        except OSError:
            return


def extensions(hello: bytes, *, server: bool) -> dict[int, bytes]:
    """The extensions of a recorded ClientHello or ServerHello (RFC 8446, 4.1)."""
    assert hello[0] == 22, "a handshake record"
    body = hello[5 + 4 :]
    at = 2 + 32
    at += 1 + body[at]
    if server:
        at += 2 + 1
    else:
        at += 2 + int.from_bytes(body[at : at + 2], "big")
        at += 1 + body[at]
    end = at + 2 + int.from_bytes(body[at : at + 2], "big")
    at += 2
    found = {}
    while at < end:
        kind, size = (int.from_bytes(body[at + n : at + n + 2], "big") for n in (0, 2))
        found[kind] = body[at + 4 : at + 4 + size]
        at += 4 + size
    return found


def shares(data: bytes, *, server: bool) -> dict[int, int]:
    """The key shares (extension 51): groups and sizes."""
    rest = data if server else data[2:]
    found = {}
    while rest:
        group, size = (int.from_bytes(rest[n : n + 2], "big") for n in (0, 2))
        found[group] = size
        rest = rest[4 + size :]
    return found


@pytest.fixture
def tapped(job):
    """Listen in on connections to the job's coordinator."""
    made = []

    def listen():
        made.append(Wiretap(job.host, job.port))
        return made[0]

    yield listen
    for tap in made:
        tap.close()


def test_the_hybrid_key_share_is_on_the_wire(job, tapped):
    job.start()
    tap = tapped()
    member = job.make_member()
    member.connect("127.0.0.1", tap.port)
    offered = shares(extensions(bytes(tap.seen["to"]), server=False)[51], server=False)
    chosen = shares(extensions(bytes(tap.seen["from"]), server=True)[51], server=True)
    assert offered[GROUP] == CLIENT_SHARE
    assert chosen == {GROUP: SERVER_SHARE}


def test_the_tunnels_keys_travel_under_it_and_nowhere_else(job, tapped):
    """A recording of everything, with both WireGuard private keys, lacks the pre-shared key.

    It is drawn for the epoch and mixed into every handshake of the tunnel (Noise, psk2).
    """
    job.start(2, 2)
    tap = tapped()
    keys = [WireGuardKey.generate() for _ in range(2)]
    heard: list[Formed] = []
    members = [
        job.make_member(f"node-{n}", wireguard=encode_key(key.public)) for n, key in enumerate(keys)
    ]
    for member in members:
        hear = member._link._on_message

        def note(message, hear=hear):
            if isinstance(message, Formed):
                heard.append(message)
            hear(message)

        member._link._on_message = note
        member.connect("127.0.0.1", tap.port)
        assert member.key_exchange == HYBRID
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda member: member.next_round(lambda _: 4000), members))
    one, other = (formed.preshared for formed in heard)
    (key,) = {*one.values(), *other.values()}
    recorded = bytes(tap.seen["to"] + tap.seen["from"]) + job.ledger.path.read_bytes()
    assert key.encode() not in recorded
    assert decode_key(key) not in recorded
    public = [key.public for key in keys]
    assert decode_key(key) != pairwise_psk(b"\x01" * 32, *public), "another secret, another key"


def test_a_certificate_is_classical(job):
    """Said so in limits.md."""
    assert job.ca.certificate.signature_algorithm_oid.dotted_string.startswith("1.2.840.10045.4")


def test_the_refusal_names_the_group():
    with pytest.raises(AdmissionError, match="agreed on with x25519, not with X25519MLKEM768"):
        require_hybrid("x25519", "node-0")
    require_hybrid(HYBRID, "node-0")
