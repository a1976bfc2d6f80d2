# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The TCP sockets of this machine, from ``/proc``: what the kernel says, not what we meant.

A TCPStore takes a host name and ignores it when it binds, so after starting one we look.
"""

import ipaddress
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from securetrain.core.errors import NetworkError

LISTEN: Final = "0A"


@dataclass(frozen=True, slots=True)
class Listener:
    """One end of a TCP socket: where it listens, or what it is connected to."""

    address: str
    port: int


@dataclass(frozen=True, slots=True)
class Socket:
    """A TCP socket, as the kernel's table has it."""

    local: Listener
    remote: Listener
    state: str
    """Two hexadecimal digits: ``0A`` listens, ``01`` is connected (include/net/tcp_states.h)."""
    uid: int
    inode: str
    """0 when no process holds it any more."""


def own_listeners(proc: Path = Path("/proc")) -> list[Listener]:
    """Every TCP socket on which this process listens, in the calling thread's network namespace.

    Raises:
        NetworkError: ST-NETW-002 when the kernel's tables cannot be read.
    """
    return [found.local for found in own_sockets(proc) if found.state == LISTEN]


def own_sockets(proc: Path = Path("/proc")) -> list[Socket]:
    """Every TCP socket of this process, in the calling thread's network namespace.

    Raises:
        NetworkError: ST-NETW-002 when the kernel's tables cannot be read.
    """
    try:
        inodes = _own_inodes(proc / "self" / "fd")
    except OSError as error:
        raise _unknown(error) from error
    return [found for found in read_sockets(proc) if found.inode in inodes]


def read_sockets(proc: Path = Path("/proc")) -> list[Socket]:
    """Every TCP socket of everybody, in the calling thread's network namespace.

    Raises:
        NetworkError: ST-NETW-002 when the kernel's tables cannot be read.
    """
    try:
        tables = [(proc / "thread-self/net" / name).read_text("ascii") for name in ("tcp", "tcp6")]
    except OSError as error:
        raise _unknown(error) from error
    return [
        Socket(
            local=Listener(*_parse_address(fields[1])),
            remote=Listener(*_parse_address(fields[2])),
            state=fields[3],
            uid=int(fields[7]),
            inode=fields[9],
        )
        for table in tables
        for fields in map(str.split, table.splitlines()[1:])
    ]


def require_only(address: str, port: int, proc: Path = Path("/proc")) -> None:
    """Check that this process listens on `port` at `address` and nowhere else.

    Raises:
        NetworkError: ST-NETW-002.
    """
    found = sorted({entry.address for entry in own_listeners(proc) if entry.port == port})
    if found != [str(ipaddress.ip_address(address))]:
        raise NetworkError(
            "ST-NETW-002",
            f"port {port} listens on {', '.join(found) or 'nothing'}, not only on {address}",
            "the workers' store",
            "install a torch whose TCPStore takes master_listen_fd (2.10 or newer)",
        )


def _unknown(error: OSError) -> NetworkError:
    return NetworkError(
        "ST-NETW-002",
        f"cannot tell where this process listens: {error.strerror}",
        str(error.filename),
        "mount /proc",
    )


def _own_inodes(folder: Path) -> set[str]:
    inodes = set()
    for entry in folder.iterdir():
        try:
            target = os.readlink(entry)  # noqa: PTH115 - the target is no path
        except FileNotFoundError:
            continue  # the descriptor of this very listing
        if target.startswith("socket:["):
            inodes.add(target[len("socket:[") : -1])
    return inodes


def _parse_address(text: str) -> tuple[str, int]:
    """The kernel prints 32-bit words of the address in the machine's byte order."""
    raw, _, port = text.partition(":")
    words = bytes.fromhex(raw)
    if sys.byteorder == "little":
        words = b"".join(words[n : n + 4][::-1] for n in range(0, len(words), 4))
    return str(ipaddress.ip_address(words)), int(port, 16)
