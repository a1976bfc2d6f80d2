# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The listening socket, and the connections that have not been admitted yet.

Strangers are limited in number. When one more comes, the oldest of the address that has the most of
them goes: a member needs a few milliseconds to authenticate, so connections that only sit there
cannot keep it out, as they would if newcomers were turned away instead; and whoever opens many from
one address pushes out only its own. An address may have all the places only while nobody else
wants one. Where each address has one
place only, nobody is pushed out before it has had `STAY` seconds, and newcomers wait at the socket
until then: hundreds of addresses that come back at once when they are pushed out make an honest one
wait for its turn, and no more. An IPv6 network of 64 bits counts as one address: whoever has one
has 2^64 of them.
"""

import ipaddress
import select
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Final, Protocol

from securetrain.core.errors import AdmissionError, os_error
from securetrain.rendezvous.wire.channel import Wakeup

STAY: Final = 1.0
_BACKLOG: Final = 512
_PAUSE: Final = 0.02


class Guest(Protocol):
    """A connection that the listener has let through to its own thread."""

    @property
    def remote(self) -> str:
        """Address and port of the peer."""

    def run(self) -> None:
        """Serve the connection until it ends."""

    def evict(self, error: AdmissionError | None) -> None:
        """End the connection, from any thread."""


class Listener:
    """Accepts connections and gives each a session with a thread of its own."""

    def __init__(
        self,
        begin: Callable[[socket.socket, str], Guest],
        limit: int,
        on_problem: Callable[[AdmissionError], None],
        name: str = "coordinator",
        stay: float = STAY,
    ) -> None:
        """Prepare; nothing listens yet.

        Args:
            begin: makes the session for a new connection and its remote address.
            limit: how many strangers there may be.
            on_problem: hears of a connection that could not be served.
            name: of the threads.
            stay: seconds that one is left alone which is the only one of its address.
        """
        self._begin = begin
        self._limit = limit
        self._on_problem = on_problem
        self._stay = stay
        # The oldest first, each with its bucket and when it came.
        self._strangers: dict[Guest, tuple[str, float]] = {}
        self._lock = threading.Condition()
        self._wakeup = Wakeup()
        self._socket: socket.socket | None = None
        self._thread = threading.Thread(target=self._loop, name=f"{name}-listener", daemon=True)
        self._closing = False

    def open(self, host: str, port: int) -> tuple[str, int]:
        """Listen on one address; returns it with the port.

        Raises:
            UsageError: ST-USAG-003 when the port is taken, ST-USAG-002 for a bad address.
        """
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._socket = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        except OSError as error:
            raise os_error(error, f"{host}:{port}") from error
        self._socket.setblocking(False)
        self._thread.start()
        name = self._socket.getsockname()
        return str(name[0]), int(name[1])

    def close(self) -> None:
        """Stop listening."""
        with self._lock:
            self._closing = True
            self._lock.notify_all()
        self._wakeup.set()
        if self._socket is not None:
            self._thread.join()
            self._socket.close()
        self._wakeup.close()

    @property
    def num_strangers(self) -> int:
        """Connections that have not been admitted."""
        with self._lock:
            return len(self._strangers)

    def passed(self, session: Guest) -> None:
        """The session is admitted or over: it is no stranger any more."""
        with self._lock:
            self._strangers.pop(session, None)
            self._lock.notify_all()

    def _loop(self) -> None:
        assert self._socket is not None
        poller = select.poll()
        poller.register(self._socket, select.POLLIN)
        poller.register(self._wakeup.fd, select.POLLIN)
        while not self._closing:
            poller.poll()
            try:
                sock, name = self._socket.accept()
            except BlockingIOError:
                continue
            except OSError:
                # Out of descriptors, or the peer is gone again: make room and go on.
                self._push_out(0, at_once=True)
                time.sleep(_PAUSE)
                continue
            try:
                self._serve(sock, str(name[0]), int(name[1]))
            except Exception as error:  # noqa: BLE001 - one bad connection must not end the loop
                sock.close()
                self._on_problem(
                    AdmissionError("ST-ADMN-012", f"a connection could not be served: {error}")
                )

    def _serve(self, sock: socket.socket, address: str, port: int) -> None:
        self._push_out(self._limit - 1)
        session = self._begin(sock, f"{address}:{port}")
        with self._lock:
            self._strangers[session] = bucket_of(address), time.monotonic()
        threading.Thread(target=session.run, name=f"session-{session.remote}", daemon=True).start()

    def _push_out(self, most: int, *, at_once: bool = False) -> None:
        """End strangers until at most `most` are left."""
        while True:
            with self._lock:
                if len(self._strangers) <= most:
                    return
                buckets = Counter(bucket for bucket, _ in self._strangers.values())
                crowd, number = buckets.most_common(1)[0]
                oldest, came = next(
                    (s, came) for s, (bucket, came) in self._strangers.items() if bucket == crowd
                )
                left = came + self._stay - time.monotonic()
                if number == 1 and left > 0 and not (at_once or self._closing):
                    self._lock.wait(left)
                    continue
                del self._strangers[oldest]
            oldest.evict(
                AdmissionError(
                    "ST-ADMN-010",
                    f"more than {self._limit} connections have not authenticated, {number} of them"
                    f" from {crowd}; its oldest ends",
                    oldest.remote,
                )
            )


def bucket_of(address: str) -> str:
    """Reduce a peer to one countable address: an IPv4 address, or an IPv6 network of 64 bits."""
    parsed = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.IPv6Network((parsed, 64), strict=False))
