# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The connections that come to a socket which listens."""

import errno
import socket
import time
from collections.abc import Iterator
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
