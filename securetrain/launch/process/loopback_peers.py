# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The users at the other ends of this process's loopback connections.

On loopback every user of the machine reaches every port, and neither the store nor gloo asks who
is there. But both ends of such a connection are in one kernel table, each with its owner, so that a
process can tell whom it talks to. Rules, for the profile ``loopback``:

1. after a group was made, each connection that was accepted on a port of this process, and each
   that was opened while the group was made, must end at a socket of the same user, or of root;
2. what was open before and was not accepted is the script's own, and not judged;
3. an end that nobody holds any more is not judged: a process that has left is in no group.

A user who only reads and writes the store's keys between two groups is not seen by this. A job
network (``--require overlay``) keeps other users out altogether.
"""

import ipaddress
import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from securetrain.core.errors import NetworkError
from securetrain.network import LISTEN, Listener, Socket, own_sockets, read_sockets

_OPEN: Final = frozenset({"01", "08"})
"""ESTABLISHED, and CLOSE_WAIT: the other side has said all that it will."""

_NOBODYS: Final = "0"

Pair: TypeAlias = tuple[Listener, Listener]
"""A connection: this end and the other."""


@dataclass(frozen=True, slots=True, order=True)
class ForeignPeer:
    """Another user at the other end of a connection."""

    uid: int
    port: int
    """Of this process."""


def local_connections(proc: Path = Path("/proc")) -> frozenset[Pair]:
    """The connections that this process has.

    Raises:
        NetworkError: ST-NETW-002 when the kernel's tables cannot be read: not knowing is no pass.
    """
    return frozenset(_pair(found) for found in own_sockets(proc) if found.state in _OPEN)


def find_foreign_peers(
    before: Collection[Pair] = frozenset(), proc: Path = Path("/proc"), uid: int | None = None
) -> tuple[ForeignPeer, ...]:
    """Find other users that are connected to this process, under the rules of this module.

    Args:
        before: The connections that it had before the group was made.
        proc: Where the kernel's tables are.
        uid: The user that belongs here; this process's own when not given.

    Raises:
        NetworkError: ST-NETW-002.
    """
    mine = own_sockets(proc)
    ports = {found.local.port for found in mine if found.state == LISTEN}
    judged = {
        pair
        for pair in map(_pair, (found for found in mine if found.state in _OPEN))
        if ipaddress.ip_address(pair[1].address).is_loopback
        and (pair[0].port in ports or pair not in before)
    }
    belongs = {0, os.getuid() if uid is None else uid}
    return tuple(
        sorted(
            {
                ForeignPeer(found.uid, found.remote.port)
                for found in read_sockets(proc)
                if _pair(found)[::-1] in judged
                and found.inode != _NOBODYS
                and found.uid not in belongs
            }
        )
    )


def refusal(found: Collection[ForeignPeer]) -> NetworkError:
    """The refusal for strangers."""
    ends = ", ".join(f"user {stranger.uid} at port {stranger.port}" for stranger in found)
    return NetworkError(
        "ST-NETW-025",
        f"another user of this machine is connected to this worker: {ends}",
        "loopback",
    )


def _pair(found: Socket) -> Pair:
    return _plain(found.local), _plain(found.remote)


def _plain(end: Listener) -> Listener:
    """An end by its IPv4 address, where one side took an IPv6 socket for it."""
    address = ipaddress.ip_address(end.address)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return Listener(str(mapped), end.port) if mapped else end
