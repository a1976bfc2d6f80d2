# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The workers' store over TLS, for jobs without a network of their own (profile ``store-tls``).

On rank 0's node the store listens on loopback, and a `Relay` in front of it on the node's address.
On every other node a `Relay` listens on loopback, and workers take it for the store. Between the
two is one TLS 1.3 connection for each connection of a worker.

Rules:

1. both ends present the short-lived certificate that their admission gave them (`Admit.svid`), and
   each checks the other's: issued by the job CA, of this job, of a member of this very epoch with
   the role that its tier gives, and on the way out that of rank 0. Its key is the node's own;
2. nothing is sent on before that. Handshakes have a time limit, half-open ones and connections a
   number limit;
3. on loopback only the launcher's user and the workers' are let in (the kernel's table says whose a
   connection is): whoever else is on the machine could otherwise use the node's certificate;
4. a relay is of one epoch, and is closed with everything that it carries when the epoch ends.

What is not carried: gradients. They travel in the clear, and the profile says so (DEGRADED).
"""

import logging
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from ipaddress import IPv6Address, ip_address
from typing import Final, Self

from OpenSSL import SSL, crypto

from securetrain.core import connections
from securetrain.core.errors import AdmissionError, IdentityError, SecureTrainError, os_error
from securetrain.core.vocabulary import NodeTier
from securetrain.identity import Role, SpiffeId, check_leaf
from securetrain.network import Listener, read_sockets, require_only
from securetrain.rendezvous.wire import tls
from securetrain.rendezvous.wire.membership import Membership

ALPN: Final = b"securetrain-store/1"
LOOPBACK: Final = "127.0.0.1"
HANDSHAKE_SECONDS: Final = 10.0
MAX_HALF_OPEN: Final = 64
MAX_CONNECTIONS: Final = 8192
_CHUNK: Final = 64 << 10
_BACKLOG: Final = 512
_NOBODYS: Final = "0"

log = logging.getLogger(__name__)

Credentials = Callable[[], tls.TlsIdentity]
"""This node's key and its newest short-lived certificate."""


@dataclass(slots=True, kw_only=True)
class MemberCheck:
    """Judges the peer's certificate during one handshake (rule 1), and keeps the verdict."""

    credentials: tls.TlsIdentity
    membership: Membership
    clock: Callable[[], datetime]
    only_rank: int | None = None
    """The rank that the peer must have; None: any."""
    peer: SpiffeId | None = None
    error: AdmissionError | None = None

    def judge(self, presented: crypto.X509) -> bool:
        """Tell whether the peer is a member of the epoch; never raises."""
        try:
            self.peer = self._judge(presented)
        except AdmissionError as error:
            self.error = error
        except Exception as error:  # noqa: BLE001 - parsers raise many types; each is a refusal
            self.error = tls.unauthenticated(
                f"the certificate cannot be read: {type(error).__name__}", "issue a new one"
            )
        return self.error is None

    def _judge(self, presented: crypto.X509) -> SpiffeId:
        certificate, now = presented.to_cryptography(), self.clock()
        peer: SpiffeId | None = None
        for role in (Role.MEMBER, Role.UNATTESTED):
            with suppress(IdentityError):
                peer = check_leaf(certificate, self.credentials.ca, role, now)
        if peer is None:
            raise AdmissionError(
                "ST-ADMN-003",
                "not the certificate of a node that was admitted, or not valid any more",
                "the store's relay",
                "compare the clocks of both nodes: a node gets a certificate at every admission",
            )
        own = SpiffeId.of_certificate(self.credentials.certificate)
        if (peer.trust_domain, peer.job) != (own.trust_domain, self.membership.job):
            raise AdmissionError(
                "ST-ADMN-004",
                f"{peer} is not of job {self.membership.job} in {own.trust_domain}",
                "the store's relay",
            )
        found = [m for m in self.membership.members if m.node == peer.node]
        if not found or peer.role is not role_of(found[0].tier):
            raise AdmissionError(
                "ST-ADMN-009",
                f"{peer} is not a member of epoch {self.membership.epoch}",
                "the store's relay",
                "let it join: it will be in the next epoch",
            )
        if self.only_rank is not None and found[0].rank != self.only_rank:
            raise AdmissionError(
                "ST-ADMN-009",
                f"{peer} has rank {found[0].rank}, the store is rank {self.only_rank}'s",
                "the store's relay",
                "find out who answers at that address",
            )
        return peer


def role_of(tier: NodeTier) -> Role:
    """The role that an admission gives a node of a tier."""
    return Role.UNATTESTED if tier is NodeTier.SELF_ASSERTED else Role.MEMBER


@dataclass(slots=True, kw_only=True)
class Relay:
    """One listening socket and the connections that came through it. Close it when done."""

    membership: Membership
    credentials: Credentials
    clock: Callable[[], datetime]
    target: tuple[str, int]
    """Where connections go on: the store, or the relay in front of it."""
    is_entrance: bool
    """Whether peers come over TLS, and the store is behind; else workers come, and it is far."""
    listener: socket.socket
    users: frozenset[int] = frozenset()
    """Who may use an exit, but for this process's own user (rule 3)."""
    refused: list[SecureTrainError] = field(default_factory=list)
    """The last refusals, newest last; a few."""
    _sockets: set[socket.socket] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _half_open: int = 0
    _closed: bool = False

    @classmethod
    def before_store(
        cls,
        address: str,
        store_port: int,
        *,
        membership: Membership,
        credentials: Credentials,
        clock: Callable[[], datetime],
    ) -> Self:
        """On rank 0's node: let members in to the store on loopback.

        Raises:
            UsageError: ST-USAG-002 when the address is not this machine's.
            NetworkError: ST-NETW-002 when it listens anywhere else as well.
        """
        relay = cls(
            membership=membership,
            credentials=credentials,
            clock=clock,
            target=(LOOPBACK, store_port),
            is_entrance=True,
            listener=_listen(address),
        )
        relay.start()
        return relay

    @classmethod
    def to_store(
        cls,
        host: str,
        port: int,
        *,
        membership: Membership,
        credentials: Credentials,
        clock: Callable[[], datetime],
        users: frozenset[int] = frozenset(),
    ) -> Self:
        """On another node: what workers take for the store.

        Raises:
            NetworkError: ST-NETW-002 when it listens anywhere but on loopback.
        """
        relay = cls(
            membership=membership,
            credentials=credentials,
            clock=clock,
            target=(host, port),
            is_entrance=False,
            listener=_listen(LOOPBACK),
            users=users,
        )
        relay.start()
        return relay

    @property
    def port(self) -> int:
        """The port on which it listens."""
        return int(self.listener.getsockname()[1])

    def close(self) -> None:
        """End everything that it carries; may be called twice."""
        with self._lock:
            self._closed = True
            ends = [self.listener, *self._sockets]
        for end in ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self.listener.close()

    def start(self) -> None:
        """Begin to accept."""
        threading.Thread(target=self._accept, name="store-relay", daemon=True).start()

    def _accept(self) -> None:
        for came, source in connections(self.listener):
            if not self._admit(came):
                came.close()
                continue
            threading.Thread(
                target=self._serve, args=(came, source), name="store-relay", daemon=True
            ).start()

    def _admit(self, came: socket.socket) -> bool:
        """Tell whether there is room for one more (rule 2)."""
        with self._lock:
            if self._closed or self._half_open >= MAX_HALF_OPEN:
                return False
            if len(self._sockets) >= 2 * MAX_CONNECTIONS:
                return False
            self._half_open += 1
            self._sockets.add(came)
            return True

    def _serve(self, came: socket.socket, source: tuple[str, int]) -> None:
        onward: socket.socket | None = None
        is_open = False
        try:
            if not self.is_entrance:
                require_own(source, self.listener.getsockname(), self.users | {os.getuid()})
            came.settimeout(HANDSHAKE_SECONDS)
            if self.is_entrance:
                connection = self._shake_hands(came, server=True)
                onward = self._onward()
                plain, sealed = onward, came
            else:
                onward = self._onward()
                connection = self._shake_hands(onward, server=False)
                plain, sealed = came, onward
            self._opened()
            is_open = True
            carry(plain, sealed, connection)
        except SecureTrainError as error:
            self._refuse(error)
        except (OSError, SSL.Error) as error:
            self._refuse(tls.unauthenticated(f"{type(error).__name__}: {error}", "look at its log"))
        finally:
            with self._lock:
                self._half_open -= int(not is_open)
                self._sockets -= {came, onward} if onward else {came}
            for end in (came, onward):
                if end is not None:
                    end.close()

    def _opened(self) -> None:
        with self._lock:
            self._half_open -= 1

    def _onward(self) -> socket.socket:
        onward = socket.create_connection(self.target, HANDSHAKE_SECONDS)
        with self._lock:
            self._sockets.add(onward)
            if self._closed:
                onward.close()
                raise AdmissionError(
                    "ST-ADMN-008", "the epoch has ended", "the store's relay", "join again"
                )
        return onward

    def _refuse(self, error: SecureTrainError) -> None:
        with self._lock:
            if self._closed:
                return
            self.refused = [*self.refused[-15:], error]
        log.warning("the store's relay refused a connection: %s", error)

    def _shake_hands(self, sock: socket.socket, *, server: bool) -> SSL.Connection:
        """TLS with a member (rule 1).

        Raises:
            AdmissionError: ST-ADMN-002 to 005, ST-ADMN-009.
        """
        own = self.credentials()
        check = MemberCheck(
            credentials=own,
            membership=self.membership,
            clock=self.clock,
            only_rank=None if server else 0,
        )
        context = tls.make_context(own, server=server)
        tls.set_protocol(context, ALPN, server=server)
        connection = tls.make_connection(context, check, server=server)
        deadline = time.monotonic() + HANDSHAKE_SECONDS
        while True:
            try:
                connection.do_handshake()
            except SSL.WantReadError:
                _send_waiting(connection, sock)
            except SSL.Error as error:
                with suppress(OSError):
                    _send_waiting(connection, sock)
                raise tls.failed(connection, error) from error
            else:
                break
            sock.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                received = sock.recv(_CHUNK)
            except TimeoutError as error:
                raise AdmissionError(
                    "ST-ADMN-005", "the TLS handshake took too long", "the store's relay"
                ) from error
            if not received:
                raise tls.unauthenticated("the peer hung up", "look at its log")
            connection.bio_write(received)
        _send_waiting(connection, sock)
        if check.error is not None:
            raise check.error
        if check.peer is None:
            raise tls.unauthenticated("the peer presented no certificate", "join the job first")
        tls.agreed(connection, ALPN)
        return connection


@dataclass(slots=True, kw_only=True)
class Carrier:
    """This node's relay, epoch after epoch, as a `rendezvous.member.handler` uses it."""

    address: str
    """This node's own, where the others reach it."""
    clock: Callable[[], datetime]
    users: frozenset[int] = frozenset()
    """This node's workers', where they are not this process's own."""
    _relay: Relay | None = None

    def before_store(
        self, port: int, membership: Membership, credentials: Credentials
    ) -> tuple[str, int]:
        """On rank 0: where the other nodes find the store that listens on loopback.

        Raises:
            UsageError: ST-USAG-002.
            NetworkError: ST-NETW-002.
        """
        self.close()
        self._relay = Relay.before_store(
            self.address, port, membership=membership, credentials=credentials, clock=self.clock
        )
        return self.address, self._relay.port

    def to_store(
        self, place: tuple[str, int], membership: Membership, credentials: Credentials
    ) -> tuple[str, int]:
        """On the others: where the store is for the workers of this node.

        Raises:
            NetworkError: ST-NETW-002.
        """
        self.close()
        self._relay = Relay.to_store(
            *place,
            membership=membership,
            credentials=credentials,
            clock=self.clock,
            users=self.users,
        )
        return LOOPBACK, self._relay.port

    def close(self) -> None:
        """The epoch is over."""
        if self._relay is not None:
            self._relay.close()
            self._relay = None


def require_own(source: tuple[str, int], listens: tuple[str, int], users: frozenset[int]) -> None:
    """Refuse a connection on loopback that none of these users made (rule 3).

    An end that nobody holds any more is nobody's: the kernel soon says root, whoever closed it.

    Raises:
        AdmissionError: ST-ADMN-002; also when nobody can say whose it is.
        NetworkError: ST-NETW-002 when the kernel's tables cannot be read.
    """
    ends = [
        found
        for found in read_sockets()
        if _place(found.local) == source and _place(found.remote) == listens
    ]
    if not ends or any(found.inode == _NOBODYS for found in ends):
        raise tls.unauthenticated(
            "nobody can say which user's process asks for the store", "look at its log"
        )
    strangers = sorted({found.uid for found in ends} - users)
    if strangers:
        raise tls.unauthenticated(
            f"a process of another user (uid {', '.join(map(str, strangers))}) asks for the store,"
            f" which is for uid {', '.join(map(str, sorted(users)))}",
            "let nothing but the job's workers connect to it",
        )


def _place(end: Listener) -> tuple[str, int]:
    """An end of a socket; torch connects by sockets of IPv6 to addresses of IPv4."""
    address = ip_address(end.address)
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address), end.port


def carry(plain: socket.socket, sealed: socket.socket, connection: SSL.Connection) -> None:
    """Move bytes both ways until one side is done."""
    plain.settimeout(None)
    sealed.settimeout(None)
    for end in (plain, sealed):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with selectors.DefaultSelector() as selector:
        selector.register(plain, selectors.EVENT_READ)
        selector.register(sealed, selectors.EVENT_READ)
        # A client may have sent together with the end of its handshake.
        if not _open_received(connection, plain):
            return
        while True:
            ready = {key.fileobj for key, _ in selector.select()}
            if plain in ready:
                data = plain.recv(_CHUNK)
                if not data:
                    with suppress(SSL.Error, OSError):
                        connection.shutdown()
                        _send_waiting(connection, sealed)
                    return
                connection.sendall(data)
                _send_waiting(connection, sealed)
            if sealed in ready:
                data = sealed.recv(_CHUNK)
                if not data:
                    return
                connection.bio_write(data)
                if not _open_received(connection, plain):
                    return


def _open_received(connection: SSL.Connection, plain: socket.socket) -> bool:
    """Pass on what can be decrypted; False when the peer has ended the connection."""
    while True:
        try:
            plain.sendall(connection.recv(_CHUNK))
        except SSL.WantReadError:
            return True
        except SSL.ZeroReturnError:
            return False


def _send_waiting(connection: SSL.Connection, sock: socket.socket) -> None:
    while True:
        try:
            data = connection.bio_read(_CHUNK)
        except SSL.WantReadError:
            return
        sock.sendall(data)


def _listen(address: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        listener = socket.create_server((address, 0), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise os_error(error, f"the store's relay at {address}") from error
    require_only(address, int(listener.getsockname()[1]))
    return listener
