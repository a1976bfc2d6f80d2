# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The connections that come to a socket which listens, and the bytes that are carried on."""

import errno
import selectors
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final

_PASSES: Final = frozenset(
    {
        errno.ECONNABORTED,
        errno.EINTR,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOBUFS,
        errno.ENOMEM,
        errno.EPERM,
        errno.EPROTO,
        # A network error of the new connection, which accept(2) reports as its own.
        errno.ENETDOWN,
        errno.ENOPROTOOPT,
        errno.EHOSTDOWN,
        errno.ENONET,
        errno.EHOSTUNREACH,
        errno.EOPNOTSUPP,
        errno.ENETUNREACH,
    }
)
"""What concerns one connection, or this moment, and not the socket that listens (accept(2))."""
_PAUSE: Final = 0.05
_CHUNK: Final = 64 << 10


def connections(listener: socket.socket) -> Iterator[tuple[socket.socket, Any]]:
    """Yield connections and their addresses until the socket is shut down or closed.

    A process that has no descriptor left waits until it has one: a service that stops listening for
    good would be ended by whoever opens enough connections.
    """
    while True:
        try:
            accepted = listener.accept()
        except OSError as error:
            if error.errno not in _PASSES:
                return
            time.sleep(_PAUSE)
            continue
        yield accepted


def relay(
    one: socket.socket,
    other: socket.socket,
    *,
    silence: float | None = None,
    carried: Callable[[socket.socket, int], None] = lambda _source, _count: None,
) -> None:
    """Carry bytes both ways until both ends have closed, or nothing moves any more.

    Args:
        one: A connection.
        other: Another.
        silence: The longest that nothing may move, in seconds; None for any time.
        carried: Hears how many bytes came from which of the two.

    Raises:
        OSError: A connection broke, or took nothing for as long as `silence`.
    """
    ends = {one: other, other: one}
    with selectors.DefaultSelector() as selector:
        for end in ends:
            end.settimeout(silence)
            selector.register(end, selectors.EVENT_READ, end)
        while selector.get_map():
            ready = selector.select(silence)
            if not ready:
                return
            for key, _ in ready:
                end = key.data
                data = end.recv(_CHUNK)
                if not data:
                    selector.unregister(end)
                    with suppress(OSError):
                        ends[end].shutdown(socket.SHUT_WR)
                    continue
                ends[end].sendall(data)
                carried(end, len(data))
