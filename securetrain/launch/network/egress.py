# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The way out of the workers' network: a proxy of the launcher's, to the places that are named.

Workers in a network of their own reach each other and nobody else. The proxy listens on loopback
inside that network and speaks ``CONNECT`` only (RFC 9110, 9.3.6), so that what passes is the
worker's own TLS. Places are those of ``network.egress`` and ``--egress``. Rules, in order:

1. a request is bounded in size and time, and exactly one: bytes before the answer, a body, a folded
   line or another ``Host`` are refused (ST-NETW-040), and so is every other method;
2. name and port are named, letter for letter, or ``*`` with that port; an address counts as a name;
3. names are resolved here, never by a worker, and the connection goes to the very address that was
   checked: one of the public internet, unless that address itself is named (ST-NETW-041);
4. connections are bounded in number and in silence, and bytes are counted;
5. the ledger has every connection and every refusal, up to `RECORDED` of each; the count of all is
   recorded at the end;
6. what was refused is told at the end of the run, with the option that would let it pass
   (`WayOut`). A program that asks no proxy finds no route; the kernel counts such attempts, and
   that count is told.
"""

import contextlib
import ipaddress
import re
import shlex
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from securetrain.core import connections, printable, relay
from securetrain.core.errors import NetworkError
from securetrain.ledger import Ledger, events

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolve: TypeAlias = Callable[[str, int], Iterable[str]]
Connect: TypeAlias = Callable[[tuple[str, int], float], socket.socket]
Listen: TypeAlias = Callable[[str], socket.socket]
"""Makes a socket that listens on a free port of an address in the workers' network."""

ANY: Final = "*"
"""In the place of a name: any whose addresses are public."""
VARIABLES: Final = ("HTTPS_PROXY", "https_proxy")
EXCEPTIONS: Final = ("NO_PROXY", "no_proxy")
"""Members speak to each other without it: gRPC asks a proxy for every connection."""
RECORDED: Final = 10_000
TOLD: Final = 20
CONNECTIONS: Final = 256
REQUEST_LIMIT: Final = 8 << 10
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
    refused: Counter[tuple[str, str]] = field(default_factory=Counter)
    """How often a place was refused, and what to do about it; the first `TOLD` of them."""
    num_recorded: Counter[str] = field(default_factory=Counter)
    _listener: socket.socket | None = None
    _slots: threading.BoundedSemaphore = field(
        default_factory=lambda: threading.BoundedSemaphore(CONNECTIONS)
    )
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _open: set[socket.socket] = field(default_factory=set)

    def start(self, listen: Listen) -> str:
        """Listen in the workers' network; returns the proxy's URL.

        Raises:
            OSError: there is no loopback device.
        """
        listener = self._listener = listen("127.0.0.1")
        port = listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(listener,), name="egress", daemon=True).start()
        return f"http://127.0.0.1:{port}"

    def stop(self) -> bool:
        """Close every connection and record the counts; False, without effect, the second time."""
        listener, self._listener = self._listener, None
        if listener is None:
            return False
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
        return True

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
            if place not in self.allowed and f"{ANY}:{port}" not in self.allowed:
                what, fix = f"neither policy nor --egress names {place}", _opening(place)
                raise _refuse(what, "network.egress", fix)
            address = self._address(place, host, port)
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

    def _address(self, place: str, host: str, port: int) -> Address:
        """The one address to which the connection goes (rule 3)."""
        found: list[Address] = []
        with contextlib.suppress(ValueError):
            found = [ipaddress.ip_address(host)]
            if place in self.allowed:
                return found[0]
        try:
            found = found or [ipaddress.ip_address(text) for text in self.resolve(host, port)]
        except (OSError, UnicodeError, ValueError) as error:
            what = f"{host} has no address: {error}"
            raise _refuse(what, "name lookup", "this machine finds no address of it") from error
        if not found:
            raise _refuse(f"{host} has no address", "name lookup")
        inner = [a for a in found if not (is_public(a) or join_place(a, port) in self.allowed)]
        if inner:
            # One is enough: whoever answers so has no business with this name.
            what = f"{host} has the address {inner[0]}, which is not public"
            fix = _opening(place, join_place(inner[0], port))
            raise NetworkError("ST-NETW-041", what, host, fix)
        return found[0]

    def _relay(self, place: str, client: socket.socket, upstream: socket.socket) -> None:
        """Carry bytes both ways until both ends have closed, or nothing moves any more."""
        count = self.counts[place]

        def carried(source: socket.socket, size: int) -> None:
            with self._lock:
                if source is client:
                    count.sent += size
                else:
                    count.received += size

        relay(client, upstream, silence=self.limits.silence, carried=carried)

    def _connected(self, place: str, address: str) -> None:
        with self._lock:
            self.counts.setdefault(place, Count()).connections += 1
            if self._may_record("connected"):
                self.ledger.write(events.EgressConnected(subject=place, address=address))

    def _refused(self, place: str, error: NetworkError) -> None:
        with self._lock:
            told = place, error.fix
            if told in self.refused or len(self.refused) < TOLD:
                self.refused[told] += 1
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


@dataclass(slots=True)
class WayOut:
    """The workers' way out, for people."""

    label: str = ""
    """Why nothing limits it; empty when it is limited."""
    proxy: EgressProxy | None = None
    unroutable: int | None = 0
    """How often something was sent where no route leads; None when nobody can say."""

    @property
    def at_start(self) -> str:
        """The places beyond their network that workers reach, or the label."""
        if self.proxy is None:
            return self.label
        named = sorted(self.proxy.allowed)
        ports = [place.removeprefix(f"{ANY}:") for place in named if place.startswith(ANY)]
        said = [f"public addresses on port {port}" for port in ports]
        said += [place for place in named if not place.startswith(ANY)]
        how = "through the launcher's proxy"
        return f"{', '.join(said)}, {how}" if said else "closed: --egress HOST:PORT opens"

    def close(self, unroutable: Callable[[], int] | None) -> None:
        """Close it and read the counter, where there is one; without effect the second time."""
        proxy = self.proxy
        if proxy is None or not proxy.stop():
            return
        if unroutable is not None:
            try:
                self.unroutable = unroutable()
            except (OSError, ValueError):
                self.unroutable = None

    def at_end(self) -> Iterator[str]:
        """Say what workers asked for in vain, and what lets it pass (rule 6)."""
        for (place, fix), count in (self.proxy.refused if self.proxy else {}).items():
            times = f" ({count} times)" if count > 1 else ""
            what = printable(place) or "a request that is no CONNECT"
            yield f"egress       refused {what}{times}: {printable(fix)}"
        if self.unroutable is None:
            yield "egress       attempts beside the proxy could not be counted"
        elif self.unroutable:
            yield (
                f"egress       {self.unroutable} attempts beside the proxy found no route: workers"
                " reach others by HTTPS_PROXY only, and this machine's own ports not at all"
            )


def open_egress(
    places: Collection[str], members: Collection[str], ledger: Ledger, listen: Listen
) -> tuple[WayOut, dict[str, str]]:
    """Open the way out of a workers' network; returns it and the workers' variables.

    Without a place the proxy refuses everything, so that what was asked for can be told.

    Args:
        places: What is named.
        members: Who is reached without it: names, addresses or networks.
        ledger: Where what happens is recorded.
        listen: Makes a socket in that network.

    Raises:
        NetworkError: ST-NETW-011 when it has no loopback device.
    """
    proxy = EgressProxy(allowed=frozenset(places), ledger=ledger)
    try:
        url = proxy.start(listen)
    except OSError as error:
        raise NetworkError("ST-NETW-011", str(error), "network.egress") from error
    if places:
        ledger.write(events.EgressOpened(places=" ".join(sorted(places))[:2000]))
    beside = ",".join(["localhost", "127.0.0.1", *members])
    return WayOut(proxy=proxy), dict.fromkeys(VARIABLES, url) | dict.fromkeys(EXCEPTIONS, beside)


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


def join_place(address: Address, port: int) -> str:
    """Name an address and a port."""
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"


def _opening(*places: str) -> str:
    return (
        " ".join(f"--egress {shlex.quote(place)}" for place in dict.fromkeys(places)) + " opens it"
    )


def _refuse(what: str, where: str = "egress proxy", fix: str = "") -> NetworkError:
    return NetworkError("ST-NETW-040", what, where, fix)
