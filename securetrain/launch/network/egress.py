# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The way out of a job network: a proxy of the launcher's, to the names of ``network.egress``.

Workers in a job network reach its members and nobody else. The proxy listens on loopback inside
that network and speaks ``CONNECT`` only (RFC 9110, 9.3.6), so that what passes is the worker's own
TLS. Rules, in order:

1. a request is bounded in size and time, and exactly one: bytes before the answer, a body, a folded
   line or another ``Host`` are refused (ST-NETW-040), and so is every other method;
2. name and port stand in the policy, letter for letter; an address counts as a name;
3. names are resolved here, never by a worker, and the connection goes to the very address that was
   checked: one of the public internet, unless the policy names that address itself (ST-NETW-041);
4. connections are bounded in number and in silence, and bytes are counted;
5. the ledger has every connection and every refusal, up to `RECORDED` of each; the count of all is
   recorded at the end.
"""

import contextlib
import ipaddress
import re
import selectors
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from securetrain.core import connections
from securetrain.core.errors import NetworkError
from securetrain.ledger import Ledger, events

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolve: TypeAlias = Callable[[str, int], Iterable[str]]
Connect: TypeAlias = Callable[[tuple[str, int], float], socket.socket]

VARIABLES: Final = ("HTTPS_PROXY", "https_proxy")
EXCEPTIONS: Final = ("NO_PROXY", "no_proxy")
"""Members speak to each other without it: gRPC asks a proxy for every connection."""
RECORDED: Final = 10_000
CONNECTIONS: Final = 256
REQUEST_LIMIT: Final = 8 << 10
_CHUNK: Final = 64 << 10
_END: Final = b"\r\n\r\n"
_REQUEST: Final = re.compile(r"CONNECT (\S{1,300}) HTTP/1\.[01]")
_HEADER: Final = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\x20-\x7e\t]*)")
_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")


@dataclass(frozen=True, slots=True)
class Limits:
    """The longest that things may take, in seconds."""

    request: float = 10.0
    connect: float = 10.0
    silence: float = 300.0


@dataclass(slots=True)
class Count:
    """The traffic with one place."""

    connections: int = 0
    refused: int = 0
    sent: int = 0
    received: int = 0


def resolve(host: str, port: int) -> Iterable[str]:
    """The addresses of a name, as this machine finds them."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return dict.fromkeys(str(entry[4][0]) for entry in found)


@dataclass(slots=True, kw_only=True)
class EgressProxy:
    """The proxy of one node. `start` and `stop` are called once."""

    allowed: frozenset[str]
    """``host:port``, in lower case."""
    ledger: Ledger
    resolve: Resolve = resolve
    connect: Connect = socket.create_connection
    limits: Limits = field(default_factory=Limits)
    counts: dict[str, Count] = field(default_factory=dict)
    num_recorded: Counter[str] = field(default_factory=Counter)
    _listener: socket.socket | None = None
    _slots: threading.BoundedSemaphore = field(
        default_factory=lambda: threading.BoundedSemaphore(CONNECTIONS)
    )
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _open: set[socket.socket] = field(default_factory=set)

    def start(self, inside: contextlib.AbstractContextManager[None]) -> str:
        """Listen where `inside` leads; returns the proxy's URL.

        Raises:
            OSError: there is no loopback device.
        """
        with inside:
            listener = self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        port = listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(listener,), name="egress", daemon=True).start()
        return f"http://127.0.0.1:{port}"

    def stop(self) -> None:
        """Close every connection and record the counts; without effect the second time."""
        listener, self._listener = self._listener, None
        if listener is None:
            return
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        with self._lock:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            for place, count in sorted(self.counts.items()):
                self.ledger.write(
                    events.EgressCounted(
                        subject=place,
                        connections=count.connections,
                        refused=count.refused,
                        sent=count.sent,
                        received=count.received,
                    )
                )

    def _accept(self, listener: socket.socket) -> None:
        for client, _ in connections(listener):
            if not self._slots.acquire(blocking=False):
                with client, contextlib.suppress(OSError):
                    client.settimeout(1)
                    client.sendall(_answer(503, f"more than {CONNECTIONS} connections"))
                continue
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        self._keep(client)
        try:
            with client:
                self._handle(client)
        except OSError:
            pass
        finally:
            self._forget(client)
            self._slots.release()

    def _handle(self, client: socket.socket) -> None:
        place = ""
        try:
            head = read_request(client, self.limits.request)
            place, host, port = parse_request(head)
            if place not in self.allowed:
                raise _refuse(f"the policy does not name {place}", "network.egress")
            address = self._address(host, port)
        except NetworkError as error:
            self._refused(place, error)
            client.sendall(_answer(403, f"{error.code} {error.what}"))
            return
        try:
            upstream = self.connect((str(address), port), self.limits.connect)
        except OSError as error:
            client.sendall(_answer(502, f"{place} at {address}: {error.strerror or error}"))
            return
        self._keep(upstream)
        try:
            with upstream:
                self._connected(place, str(address))
                client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                self._relay(place, client, upstream)
        finally:
            self._forget(upstream)

    def _address(self, host: str, port: int) -> Address:
        """The one address to which the connection goes (rule 3)."""
        with contextlib.suppress(ValueError):
            return ipaddress.ip_address(host)  # the policy named it
        try:
            found = [ipaddress.ip_address(text) for text in self.resolve(host, port)]
        except (OSError, UnicodeError, ValueError) as error:
            raise _refuse(f"{host} has no address: {error}", "name lookup") from error
        if not found:
            raise _refuse(f"{host} has no address", "name lookup")
        inner = [address for address in found if not is_public(address)]
        if inner:
            # One is enough: whoever answers so has no business with this name.
            raise NetworkError(
                "ST-NETW-041", f"{host} has the address {inner[0]}, which is not public", host
            )
        return found[0]

    def _relay(self, place: str, client: socket.socket, upstream: socket.socket) -> None:
        """Carry bytes both ways until both ends have closed, or nothing moves any more."""
        count = self.counts[place]
        other = {client: upstream, upstream: client}
        deadline = time.monotonic() + self.limits.silence
        with selectors.DefaultSelector() as selector:
            for end in other:
                end.settimeout(self.limits.silence)
                selector.register(end, selectors.EVENT_READ)
            while selector.get_map() and time.monotonic() < deadline:
                for key, _ in selector.select(max(0.0, deadline - time.monotonic())):
                    end = client if key.fileobj is client else upstream
                    data = end.recv(_CHUNK)
                    if not data:
                        selector.unregister(end)
                        with contextlib.suppress(OSError):
                            other[end].shutdown(socket.SHUT_WR)
                        continue
                    other[end].sendall(data)
                    deadline = time.monotonic() + self.limits.silence
                    with self._lock:
                        if end is client:
                            count.sent += len(data)
                        else:
                            count.received += len(data)

    def _connected(self, place: str, address: str) -> None:
        with self._lock:
            self.counts.setdefault(place, Count()).connections += 1
            if self._may_record("connected"):
                self.ledger.write(events.EgressConnected(subject=place, address=address))

    def _refused(self, place: str, error: NetworkError) -> None:
        with self._lock:
            known = place if place in self.allowed else "not named"
            self.counts.setdefault(known, Count()).refused += 1
            if self._may_record("refused"):
                self.ledger.write(events.EgressRefused.of(error, place))

    def _may_record(self, kind: str) -> bool:
        self.num_recorded[kind] += 1
        return self.num_recorded[kind] <= RECORDED

    def _keep(self, connection: socket.socket) -> None:
        with self._lock:
            self._open.add(connection)

    def _forget(self, connection: socket.socket) -> None:
        with self._lock:
            self._open.discard(connection)


def read_request(client: socket.socket, seconds: float) -> bytes:
    """Read the head of a request, and no byte more: nothing may follow before the answer.

    Raises:
        NetworkError: ST-NETW-040 when it is too long, too slow, cut short or followed by bytes.
    """
    deadline = time.monotonic() + seconds
    head = b""
    while _END not in head:
        left = deadline - time.monotonic()
        if left <= 0:
            raise _refuse(f"no whole request within {seconds:g} s")
        client.settimeout(left)
        try:
            data = client.recv(REQUEST_LIMIT)
        except TimeoutError:
            data = None
        if data is None:
            continue
        if not data:
            raise _refuse("the request ends early")
        head += data
        if len(head) > REQUEST_LIMIT:
            raise _refuse(f"a request of more than {REQUEST_LIMIT} bytes")
    if not head.endswith(_END) or head.count(_END) != 1:
        raise _refuse("bytes after the request, before its answer")
    return head


def parse_request(head: bytes) -> tuple[str, str, int]:
    """The place (``host:port``), the host and the port of a ``CONNECT`` request.

    Raises:
        NetworkError: ST-NETW-040.
    """
    try:
        lines = head.removesuffix(_END).decode("ascii").split("\r\n")
    except UnicodeDecodeError as error:
        raise _refuse("a request that is not ASCII") from error
    request = _REQUEST.fullmatch(lines[0])
    if request is None:
        raise _refuse(f"not CONNECT host:port HTTP/1.1, but {lines[0][:80]!r}")
    place = request[1].lower()
    for line in lines[1:]:
        header = _HEADER.fullmatch(line)
        if header is None:
            raise _refuse(f"a malformed header line {line[:80]!r}")
        name, value = header[1].lower(), header[2].strip().lower()
        if name in {"content-length", "transfer-encoding", "upgrade"} and value != "0":
            raise _refuse(f"a request with {header[1]}")
        if name == "host" and value not in {place, place.rpartition(":")[0]}:
            raise _refuse(f"a request to {place} for the host {value[:80]}")
    host, port = split_place(place)
    return place, host, port


def split_place(place: str) -> tuple[str, int]:
    """The host and port of ``host:port`` or ``[IPV6]:port``.

    Raises:
        NetworkError: ST-NETW-040.
    """
    host, _, port = place.rpartition(":")
    is_port = port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 65536
    if not host or not is_port or str(int(port)) != port:
        raise _refuse(f"{place[:80]!r} is not host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


def is_public(address: Address) -> bool:
    """Tell whether an address is one of the public internet, also when it carries another in it."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if inner is None and address in _NAT64:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None or address.teredo is not None:
            return inner is not None and is_public(inner)
    return address.is_global and not address.is_multicast


def _answer(status: int, text: str) -> bytes:
    safe = "".join(char if char.isprintable() else "?" for char in text)[:300]
    body = f"{safe}\n".encode("ascii", "replace")
    head = f"HTTP/1.1 {status} refused\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + body


def _refuse(what: str, where: str = "egress proxy") -> NetworkError:
    return NetworkError("ST-NETW-040", what, where)
