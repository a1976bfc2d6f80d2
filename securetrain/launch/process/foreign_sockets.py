# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Sockets of another network that a process holds.

A socket stays in the network namespace in which it was made, whoever holds it: one that a worker
inherited or was handed leads past its job network, and no route, filter or table of the worker's
own namespace shows it. Rules:

1. a TCP socket that listens or is connected, and a UDP socket with a port, stand in the tables of
   their namespace (``/proc/net/tcp`` and so on). One that this process holds and that stands in no
   table of its own namespace is of another one;
2. sockets come and go while this looks: only what is alive before and after a look at the tables,
   under the same number, and stands in none counts.
"""

import os
import socket
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

_TABLES: Final = ("tcp", "tcp6", "udp", "udp6")
_INODE: Final = 9
"""The column of a table."""


def foreign_sockets(proc: Path = Path("/proc")) -> tuple[str, ...]:
    """List where sockets of other namespaces that this process holds are bound.

    Raises:
        OSError: the kernel's tables cannot be read.
    """
    suspects = _unlisted(proc)
    alive = {number for number in suspects if _place(number)}
    if not alive:
        return ()
    still = _unlisted(proc)
    found = {_place(number) for number in alive if still.get(number) == suspects[number]}
    return tuple(sorted(found - {""}))


def _unlisted(proc: Path) -> Mapping[int, str]:
    """Descriptors of sockets that stand in no table, and their inodes."""
    held = {}
    for entry in (proc / "self" / "fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            target = os.readlink(entry)  # noqa: PTH115 - the target is no path
            if target.startswith("socket:["):
                held[int(entry.name)] = target[len("socket:[") : -1]
    listed = set()
    for name in _TABLES:
        path = proc / "thread-self/net" / name
        if path.exists():  # not there when the kernel has no IPv6
            listed |= {row.split()[_INODE] for row in path.read_text("ascii").splitlines()[1:]}
    return {number: inode for number, inode in held.items() if inode not in listed}


def _place(number: int) -> str:
    """The address of an internet socket that can carry bytes; empty for anything else."""
    try:
        with closing(socket.socket(fileno=os.dup(number))) as held:
            if held.family not in {socket.AF_INET, socket.AF_INET6}:
                return ""
            address, port = held.getsockname()[:2]
            match held.type:
                case socket.SOCK_STREAM:
                    alive = held.proto in {0, socket.IPPROTO_TCP} and _is_open(held)
                case socket.SOCK_DGRAM:
                    alive = held.proto in {0, socket.IPPROTO_UDP} and port != 0
                case _:
                    alive = False
    except OSError:
        return ""  # closed meanwhile, or no socket any more
    return f"{address} port {port}" if alive else ""


def _is_open(held: socket.socket) -> bool:
    if held.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        return True
    try:
        held.getpeername()
    except OSError:
        return False
    return True
