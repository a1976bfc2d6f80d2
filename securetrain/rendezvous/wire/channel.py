# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A framed, authenticated channel over one socket.

Rules:

1. one thread owns a channel; others reach it through a `Wakeup` and the owner's queue. Only
   `abort` and `halt` may be called from anywhere;
2. every operation has a deadline, and a peer that sends a byte now and then does not move it;
3. at most one frame, one TLS record and one read of the socket are kept in memory;
4. nothing is read as a message before the handshake and `tls.finish` are done;
5. the reason for an end arrives. After `halt` nothing is read and nothing is sent but the last
   message; and where nothing can be sent any more, what the peer said before can still be read.
"""

import contextlib
import os
import select
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from OpenSSL import SSL

from securetrain.core.errors import AdmissionError
from securetrain.identity import SpiffeId
from securetrain.rendezvous.wire import tls
from securetrain.rendezvous.wire.protocol import (
    FRAME_LIMIT,
    AnyMessage,
    FrameReader,
    decode_message,
    encode_frame,
)

_READ_SIZE: Final = 32 << 10
_MIN_PATIENCE: Final = 2.0
_LINGER_SECONDS: Final = 0.5
_LINGER_BYTES: Final = 1 << 20


class PeerClosedError(AdmissionError):
    """The other side ended the connection."""


class Wakeup:
    """Lets any thread interrupt the owner of a channel while it waits."""

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._lock = threading.Lock()

    @property
    def fd(self) -> int:
        """The descriptor to poll; -1 after `close`."""
        return self._fd

    def set(self) -> None:
        """Wake the owner."""
        with self._lock:
            if self._fd >= 0:
                os.eventfd_write(self._fd, 1)

    def clear(self) -> None:
        """Called by the owner before it looks at its queue."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._fd)

    def close(self) -> None:
        """Free the descriptor."""
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1


class Channel:
    """One connection: TLS in memory, bytes over a non-blocking socket."""

    def __init__(
        self,
        sock: socket.socket,
        connection: SSL.Connection,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        sock.setblocking(False)
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = sock
        self._tls = connection
        self._monotonic = monotonic
        self._frames = FrameReader()
        self._out = bytearray()
        self._lock = threading.Lock()
        self._open = True
        self._halted = False
        self._broken: PeerClosedError | None = None

    def expect_answers(self, seconds: float) -> None:
        """End the connection when the peer's machine has answered nothing for so long.

        The kernels see to it: a machine answers while its processes are slow, stopped or starved.
        """
        patience = max(_MIN_PATIENCE, seconds)
        with contextlib.suppress(OSError):  # a socket of another family: its owner's clock is left
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in (
                (socket.TCP_KEEPIDLE, 1),
                (socket.TCP_KEEPINTVL, 1),
                (socket.TCP_USER_TIMEOUT, round(patience * 1000)),
            ):
                self._socket.setsockopt(socket.IPPROTO_TCP, option, value)

    def handshake(self, deadline: float) -> SpiffeId:
        """Authenticate both sides; returns who the peer is.

        Raises:
            AdmissionError: ST-ADMN-002 to 005.
        """
        self.shake_hands(deadline)
        peer = tls.finish(self._tls)
        self._flush(deadline)
        return peer

    def shake_hands(self, deadline: float) -> None:
        """The TLS handshake alone: the caller judges what came of it.

        Raises:
            AdmissionError: ST-ADMN-002 to 005.
        """
        while True:
            try:
                self._tls.do_handshake()
                break
            except SSL.WantReadError:
                self._flush(deadline)
            except SSL.Error as error:
                refusal = tls.failed(self._tls, error)
                with contextlib.suppress(AdmissionError):
                    self._flush(deadline)  # the alert tells the peer why
                raise refusal from error
            try:
                self._fill(deadline)
            except PeerClosedError as error:
                raise tls.unauthenticated(
                    "the peer closed the connection during the handshake", "see the peer's log"
                ) from error

    @property
    def check(self) -> tls.PeerCheck:
        """The verdict on the peer's certificate."""
        found: tls.PeerCheck = self._tls.get_app_data()
        return found

    @property
    def key_exchange(self) -> str:
        """The group of the key exchange."""
        return tls.group_of(self._tls)

    @property
    def connection(self) -> SSL.Connection:
        """TLS itself, for protocols that authenticate their peers otherwise."""
        return self._tls

    def exporter(self, session: bytes) -> bytes:
        """See `tls.exporter`."""
        return tls.exporter(self._tls, session)

    def send(self, message: AnyMessage, deadline: float, *, last: bool = False) -> None:
        """Send one message; the `last` one also after `halt`, as far as the socket takes it.

        Raises:
            AdmissionError: ST-ADMN-005 when the peer does not take it in time, ST-ADMN-007.
        """
        self.send_frame(encode_frame(message), deadline, last=last)

    def send_frame(self, frame: bytes, deadline: float, *, last: bool = False) -> None:
        """Send one frame; see `send`."""
        if self._broken is not None:
            raise self._broken
        if self._halted and not last:
            raise _closed()
        try:
            self._tls.sendall(frame)
        except SSL.Error as error:
            raise tls.failed(self._tls, error) from error
        self._flush(deadline)

    def receive(
        self, deadline: float, *, limit: int = FRAME_LIMIT, wakeup: Wakeup | None = None
    ) -> AnyMessage | None:
        """The next message, or None when `wakeup` was set first.

        Raises:
            AdmissionError: ST-ADMN-001 for a bad frame, ST-ADMN-002 for a TLS error, ST-ADMN-005
                after the deadline, ST-ADMN-007 (PeerClosedError) at the end of the stream.
        """
        body = self.receive_frame(deadline, limit=limit, wakeup=wakeup)
        return None if body is None else decode_message(body, limit)

    def receive_frame(
        self, deadline: float, *, limit: int, wakeup: Wakeup | None = None
    ) -> bytes | None:
        """The next frame's body, or None when `wakeup` was set first; see `receive`."""
        while True:
            body = self._frames.next(limit)
            if body is not None:
                return body
            try:
                self._frames.feed(self._tls.recv(_READ_SIZE))
                continue
            except SSL.WantReadError:
                self._flush(deadline)
            except SSL.ZeroReturnError as error:
                raise _closed() from error
            except SSL.Error as error:
                raise tls.failed(self._tls, error) from error
            if not self._fill(deadline, wakeup):
                return None

    def abort(self) -> None:
        """Cut the connection, from any thread; its owner then sees the end of the stream."""
        with self._lock:
            if self._open:
                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)

    def halt(self) -> None:
        """End the conversation, from any thread; its owner sees the end of the stream at once.

        Unlike after `abort`, the owner can still tell the peer why, with `send(last=True)`.
        """
        with self._lock:
            if self._open:
                self._halted = True
                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RD)

    def close(self) -> None:
        """Say goodbye and free the socket; what the peer still sends is drained for a moment.

        Closing with unread data would reset the connection and with it the last refusal.
        """
        with contextlib.suppress(SSL.Error, AdmissionError):
            self._tls.shutdown()
            self._flush(self._monotonic() + _LINGER_SECONDS)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
            self._drain()
        with self._lock:
            self._open = False
            self._socket.close()

    def _drain(self) -> None:
        deadline = self._monotonic() + _LINGER_SECONDS
        drained = 0
        poller = select.poll()
        poller.register(self._socket, select.POLLIN)
        while drained < _LINGER_BYTES:
            left = deadline - self._monotonic()
            if left <= 0 or not poller.poll(left * 1000):
                return
            data = self._socket.recv(_READ_SIZE)
            if not data:
                return
            drained += len(data)

    def _flush(self, deadline: float) -> None:
        """Write what TLS wants to send; what does not go out in time is kept for the next try."""
        while True:
            with contextlib.suppress(SSL.WantReadError):
                self._out += self._tls.bio_read(_READ_SIZE)
            if self._broken is not None:
                self._out.clear()
            if not self._out:
                return
            try:
                del self._out[: self._socket.send(self._out)]
            except BlockingIOError:
                self._wait(select.POLLOUT | select.POLLRDHUP, deadline, None)
            except OSError as error:
                self._broken = _closed(error)
                raise self._broken from error

    def _fill(self, deadline: float, wakeup: Wakeup | None = None) -> bool:
        """Read once from the socket into TLS; False when woken instead."""
        if self._monotonic() > deadline:
            raise _late()  # also for a peer that never lets the socket run dry
        if self._halted:
            raise _closed()  # also with bytes in the socket
        while True:
            try:
                data = self._socket.recv(_READ_SIZE)
                break
            except BlockingIOError:
                if not self._wait(select.POLLIN, deadline, wakeup):
                    return False
            except OSError as error:
                raise _closed(error) from error
        if not data:
            raise _closed()
        self._tls.bio_write(data)
        return True

    def _wait(self, event: int, deadline: float, wakeup: Wakeup | None) -> bool:
        """Wait for the socket; False when woken instead."""
        poller = select.poll()
        poller.register(self._socket, event)
        if wakeup is not None:
            poller.register(wakeup.fd, select.POLLIN)
        left = deadline - self._monotonic()
        ready = poller.poll(left * 1000) if left > 0 else []
        if not ready:
            raise _late()
        if event & select.POLLOUT and not ready[0][1] & select.POLLOUT:
            raise _closed()  # it does not read and has ended its side, or ours was halted
        return wakeup is None or any(fd != wakeup.fd for fd, _ in ready)


def _late() -> AdmissionError:
    return AdmissionError("ST-ADMN-005", where="control connection")


def _closed(error: OSError | None = None) -> PeerClosedError:
    detail = f": {error.strerror}" if error is not None and error.strerror else ""
    return PeerClosedError(
        "ST-ADMN-007", f"the peer closed the connection{detail}", "control connection"
    )


@dataclass(slots=True, eq=False)
class Anonymous:
    """The check of a connection whose peer shows no certificate."""

    error: AdmissionError | None = None
