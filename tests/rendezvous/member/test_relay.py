# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The workers' store over TLS: who gets through a relay, and what is seen on the way."""

import os
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from OpenSSL import SSL

from securetrain.core.errors import AdmissionError
from securetrain.core.vocabulary import NetworkProfile, NodeTier
from securetrain.drills.loopback_job import wait_until
from securetrain.drills.tcpstore_client import StoreClient
from securetrain.identity.job_ca import JobCA
from securetrain.identity.keys import PrivateKey
from securetrain.identity.spiffe import Role
from securetrain.rendezvous.member import relay as relay_module
from securetrain.rendezvous.member.relay import Carrier, MemberCheck, Relay, require_own, role_of
from securetrain.rendezvous.wire import tls
from securetrain.rendezvous.wire.membership import Member, Membership
from tests.tables import items
from tests.vocabulary import refused

NODE_ADDRESS = "127.0.0.2"
"""Rank 0's, in this test: another address of this machine."""
CANARY = b"CANARY-STORE-VALUE-0123456789"


def clock() -> datetime:
    return datetime.now(UTC)


class Echo(socketserver.ThreadingTCPServer):
    """Stands for the store; remembers what came."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self) -> None:
        self.heard = b""
        server = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                while data := self.request.recv(65536):
                    server.heard += data
                    self.request.sendall(data)

        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self.server_address[1])


@dataclass
class Tap:
    """A wire between two relays that somebody listens to."""

    target: tuple[str, int]
    seen: bytes = b""
    ends: list[socket.socket] = field(default_factory=list)
    listener: socket.socket = field(default_factory=lambda: socket.create_server(("127.0.0.1", 0)))

    def __post_init__(self) -> None:
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        for end in self.ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _accept(self) -> None:
        self.ends.append(self.listener)
        with suppress(OSError):
            while True:
                came, _ = self.listener.accept()
                onward = socket.create_connection(self.target)
                self.ends += [came, onward]
                for a, b in ((came, onward), (onward, came)):
                    threading.Thread(target=self._copy, args=(a, b), daemon=True).start()

    def _copy(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                self.seen += data
                sink.sendall(data)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)


@dataclass
class Nodes:
    """Two members of one epoch, and whatever else a CA may certify."""

    ca: JobCA = field(default_factory=lambda: JobCA.create("securetrain.local", "job-1", clock()))
    made: list[Relay] = field(default_factory=list)

    def credentials(
        self,
        node: str,
        role: Role = Role.MEMBER,
        *,
        ca: JobCA | None = None,
        age: timedelta = timedelta(0),
    ) -> tls.TlsIdentity:
        issuer, key = ca or self.ca, PrivateKey.generate()
        begin = clock() - age
        svid = issuer.issue(role, key.public, begin, node=node, lifetime=timedelta(minutes=10))
        return tls.TlsIdentity(key=key, certificate=svid, ca=self.ca.certificate)

    def membership(self, tier: NodeTier = NodeTier.TPM) -> Membership:
        return Membership(
            job="job-1",
            coordinator=f"spiffe://securetrain.local/job/job-1/{Role.COORDINATOR}",
            epoch=3,
            round=1,
            policy="a" * 64,
            issued=clock(),
            members=tuple(
                Member(
                    rank=rank,
                    node=f"node-{rank}",
                    certificate=f"{rank:064x}",
                    tier=tier,
                    result=f"{rank:064x}",
                    address=NODE_ADDRESS if rank == 0 else "127.0.0.1",
                    local_world=1,
                )
                for rank in range(2)
            ),
        )

    def before_store(self, port: int, own: tls.TlsIdentity | None = None) -> Relay:
        shown = own or self.credentials("node-0")
        made = Relay.before_store(
            NODE_ADDRESS,
            port,
            membership=self.membership(),
            credentials=lambda: shown,
            clock=clock,
        )
        self.made.append(made)
        return made

    def to_store(
        self,
        place: tuple[str, int],
        own: tls.TlsIdentity | None = None,
        users: frozenset[int] = frozenset(),
    ) -> Relay:
        shown = own or self.credentials("node-1")
        made = Relay.to_store(
            *place,
            membership=self.membership(),
            credentials=lambda: shown,
            clock=clock,
            users=users,
        )
        self.made.append(made)
        return made


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    found = Nodes()
    yield found
    for made in found.made:
        made.close()


@pytest.fixture
def store() -> Iterator[Echo]:
    server = Echo()
    yield server
    server.shutdown()
    server.server_close()


def exchange(port: int, data: bytes) -> bytes:
    """Send all, and read as much back; empty when the connection is ended instead."""
    with socket.create_connection(("127.0.0.1", port), 10) as client:
        sender = threading.Thread(target=lambda: _send(client, data), daemon=True)
        sender.start()
        found = b""
        with suppress(OSError):
            while len(found) < len(data) and (more := client.recv(65536)):
                found += more
        sender.join(10)
        return found


def _send(client: socket.socket, data: bytes) -> None:
    with suppress(OSError):
        client.sendall(data)


def refusal(relay: Relay) -> str:
    wait_until(lambda: bool(relay.refused), "a refusal")
    return relay.refused[-1].code


def test_what_workers_say_to_the_store_is_not_seen_on_the_way(nodes, store):
    # The control: the same bytes without the relays.
    clear = Tap(("127.0.0.1", store.port))
    assert exchange(clear.listener.getsockname()[1], CANARY) == CANARY
    assert CANARY in clear.seen
    clear.close()

    tap = Tap((NODE_ADDRESS, nodes.before_store(store.port).port))
    local = nodes.to_store(("127.0.0.1", tap.listener.getsockname()[1]))
    assert exchange(local.port, CANARY) == CANARY
    long = CANARY * 50_000
    assert exchange(local.port, long) == long
    assert CANARY not in tap.seen
    assert len(tap.seen) > 2 * len(long)
    assert not local.refused
    tap.close()


WRONG: dict[str, tuple[Callable[[Nodes], tls.TlsIdentity], str]] = {
    "a node that was not admitted": (
        lambda n: n.credentials("node-1", Role.NODE), "ST-ADMN-003"
    ),
    "the coordinator": (lambda n: n.credentials("", Role.COORDINATOR), "ST-ADMN-003"),
    "another job's CA": (
        lambda n: n.credentials(
            "node-1", ca=JobCA.create("securetrain.local", "job-1", clock())
        ),
        "ST-ADMN-003",
    ),
    "another job": (
        lambda n: n.credentials(
            "node-1",
            ca=JobCA(n.ca.key, n.ca.certificate, n.ca.trust_domain, "job-2"),
        ),
        "ST-ADMN-004",
    ),
    "a lease that is over": (
        lambda n: n.credentials("node-1", age=timedelta(minutes=11)), "ST-ADMN-003"
    ),
    "no member of this epoch": (lambda n: n.credentials("node-7"), "ST-ADMN-009"),
    "a member that was never attested": (
        lambda n: n.credentials("node-1", Role.UNATTESTED), "ST-ADMN-009"
    ),
}  # fmt: skip


@pytest.mark.parametrize("who", WRONG)
def test_the_store_is_for_members_of_the_epoch(who, nodes, store):
    # The control: without a relay whoever reaches the port is answered.
    assert exchange(store.port, b"who asks?") == b"who asks?"
    make, code = WRONG[who]
    relay = nodes.before_store(store.port)
    local = nodes.to_store((NODE_ADDRESS, relay.port), make(nodes))
    store.heard = b""
    assert exchange(local.port, CANARY) == b""
    assert refusal(relay) == code
    assert store.heard == b""


@pytest.mark.parametrize("first", [b"", b"\x01ping-and-no-tls", b"GET / HTTP/1.1\r\n\r\n"])
def test_who_does_not_speak_tls_is_not_carried(first, nodes, store):
    relay = nodes.before_store(store.port)
    with socket.create_connection((NODE_ADDRESS, relay.port), 10) as client:
        client.sendall(first)
        client.shutdown(socket.SHUT_WR)
        with suppress(OSError):
            while client.recv(4096):
                pass
    assert refusal(relay) == "ST-ADMN-002"
    assert store.heard == b""


def test_a_member_of_another_protocol_is_not_carried(nodes, store):
    """The control plane's own connections do not end in the store."""
    relay = nodes.before_store(store.port)
    own = nodes.credentials("node-1")
    context = tls.make_context(own, server=False)  # its ALPN protocol is the control plane's
    check = MemberCheck(credentials=own, membership=nodes.membership(), clock=clock)
    with socket.create_connection((NODE_ADDRESS, relay.port), 10) as client:
        connection = SSL.Connection(context, client)
        connection.set_app_data(check)
        connection.set_connect_state()
        client.settimeout(None)
        with suppress(SSL.Error):
            connection.do_handshake()
            connection.sendall(CANARY)
            connection.recv(100)
    assert refusal(relay) == "ST-ADMN-002"
    assert store.heard == b""


@items(
    "credentials, code",
    (lambda n: n.credentials("node-1"), "ST-ADMN-009"),  # a member, and not rank 0
    (lambda n: n.credentials("node-0", Role.NODE), "ST-ADMN-003"),
)
def test_workers_reach_the_store_of_rank_0_or_none(credentials, code, nodes, store):
    impostor = nodes.before_store(store.port, credentials(nodes))
    local = nodes.to_store((NODE_ADDRESS, impostor.port))
    assert exchange(local.port, CANARY) == b""
    assert refusal(local) == code
    assert store.heard == b""


def test_another_user_of_the_machine_cannot_use_the_nodes_certificate(nodes, store, monkeypatch):
    relay = nodes.before_store(store.port)
    local = nodes.to_store((NODE_ADDRESS, relay.port))
    assert exchange(local.port, b"mine") == b"mine"
    # The connection is this user's; the relay is told that it runs as somebody else.
    monkeypatch.setattr(relay_module, "os", SimpleNamespace(getuid=lambda: 4_000_000))
    store.heard = b""
    assert exchange(local.port, CANARY) == b""
    assert refusal(local) == "ST-ADMN-002"
    assert "another user" in local.refused[-1].what
    assert store.heard == b""


@pytest.mark.parametrize("is_workers", [True, False])
def test_workers_of_another_user_are_let_in_and_nobody_else(is_workers, nodes, store, monkeypatch):
    workers = os.getuid() + (not is_workers)
    carrier = Carrier(address=NODE_ADDRESS, clock=clock, users=frozenset({workers}))
    shown = nodes.credentials("node-1")
    place = (NODE_ADDRESS, nodes.before_store(store.port).port)
    # The connection is this user's; the launcher is somebody else.
    monkeypatch.setattr(relay_module, "os", SimpleNamespace(getuid=lambda: 4_000_000))
    _, port = carrier.to_store(place, nodes.membership(), lambda: shown)
    try:
        assert exchange(port, CANARY) == (CANARY if is_workers else b"")
        assert store.heard == (CANARY if is_workers else b"")
        assert carrier._relay is not None
        if not is_workers:
            assert refusal(carrier._relay) == "ST-ADMN-002"
            assert f"which is for uid {workers}, 4000000" in carrier._relay.refused[-1].what
    finally:
        carrier.close()


def test_the_launcher_may_use_it_beside_its_workers(nodes, store):
    place = (NODE_ADDRESS, nodes.before_store(store.port).port)
    local = nodes.to_store(place, users=frozenset({4_000_000}))
    assert exchange(local.port, b"the agent") == b"the agent"


def test_an_end_that_was_closed_is_nobodys():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        came, source = listener.accept()
        with came:
            require_own(source, listener.getsockname(), frozenset({os.getuid()}))
            # What it sent can still be read; the kernel's table soon calls its user root.
            client.sendall(CANARY)
            client.close()
            error = refused(
                AdmissionError,
                "ST-ADMN-002",
                require_own,
                source,
                listener.getsockname(),
                frozenset({0, os.getuid()}),
            )
            assert "nobody can say" in error.what


def test_half_open_connections_have_a_limit_and_an_end(nodes, store, monkeypatch):
    monkeypatch.setattr(relay_module, "MAX_HALF_OPEN", 3)
    monkeypatch.setattr(relay_module, "HANDSHAKE_SECONDS", 2.0)
    relay = nodes.before_store(store.port)
    idle = [socket.create_connection((NODE_ADDRESS, relay.port), 10) for _ in range(3)]
    wait_until(lambda: relay._half_open == 3, "three half-open connections")
    with socket.create_connection((NODE_ADDRESS, relay.port), 10) as one_more:
        assert one_more.recv(1) == b""
    wait_until(lambda: relay._half_open == 0, "their time is over")
    assert {error.code for error in relay.refused} == {"ST-ADMN-005"}
    for client in idle:
        assert client.recv(1) == b""
        client.close()
    local = nodes.to_store((NODE_ADDRESS, relay.port))
    assert exchange(local.port, b"members still get in") == b"members still get in"


def test_the_end_of_an_epoch_ends_what_is_carried(nodes, store):
    relay = nodes.before_store(store.port)
    local = nodes.to_store((NODE_ADDRESS, relay.port))
    with socket.create_connection(("127.0.0.1", local.port), 10) as client:
        client.sendall(b"hello")
        assert client.recv(5) == b"hello"
        port = relay.port
        relay.close()
        relay.close()
        assert client.recv(1) == b""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((NODE_ADDRESS, port), 1)


def test_roles_follow_tiers():
    assert role_of(NodeTier.SELF_ASSERTED) is Role.UNATTESTED
    assert {role_of(t) for t in NodeTier if t is not NodeTier.SELF_ASSERTED} == {Role.MEMBER}


def test_two_agents_share_a_store_through_their_relays(job):
    from concurrent.futures import ThreadPoolExecutor

    from securetrain.rendezvous.member.handler import SecureRendezvousHandler

    job.start(2, 2)
    carriers = [Carrier(address=a, clock=clock) for a in (NODE_ADDRESS, "127.0.0.3")]

    def make(number: int) -> Any:
        member = job.make_member(
            f"node-{number}",
            address=carriers[number].address,
            network=None,
        )

        def connect() -> Any:
            member.connect(job.host, job.port)
            return member

        return SecureRendezvousHandler(
            connect, run_id=job.name, min_nodes=2, max_nodes=2, carrier=carriers[number]
        )

    handlers = [make(0), make(1)]
    with ThreadPoolExecutor() as pool:
        found = list(pool.map(lambda h: h.next_rendezvous(), handlers))
        first, second = sorted(found, key=lambda info: info.rank)
        for info in found:
            assert info.bootstrap_store_info.master_addr == "127.0.0.1"
        ports = {info.bootstrap_store_info.master_port for info in found}
        assert len(ports) == 2, "the store's own, and the relay's"
        first.store.set("weights", CANARY)
        assert second.store.get("weights") == CANARY
        second.store.set("back", b"again")
        assert first.store.get("back") == b"again"
        # What workers of the other node are told is the relay; it is the same store.
        with StoreClient("127.0.0.1", second.bootstrap_store_info.master_port) as worker:
            worker.hello()
            assert any(key.endswith("weights") for key in worker.list_keys())
        list(pool.map(lambda h: h.shutdown(), handlers))


def test_a_node_without_a_network_needs_a_policy_that_names_it(job):
    from securetrain.core.errors import SecureTrainError

    job.start(1, 2)
    refused(SecureTrainError, "ST-NETW-001", job.join, network=NetworkProfile.STORE_TLS)
