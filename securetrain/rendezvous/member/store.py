# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The workers' store: torch's own TCPStore, made to listen on one address.

TCPStore binds every interface whatever host it is given, so it gets a socket that is already bound
(``master_listen_fd``); afterwards the kernel is asked where it really listens (ST-NETW-002). It has
no authentication of its own: the job network is what keeps strangers away from it.

Where the workers have a network with loopback alone, the store listens in there, out of everybody
else's reach. A launcher that is not root cannot go there: its own connection, the only one, is
carried from the same port out here, which is closed as soon as the store stands.
"""

import os
import socket
import threading
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Protocol

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from securetrain.core import connections, relay
from securetrain.core.errors import AdmissionError, os_error
from securetrain.network import require_only
from securetrain.rendezvous.member.relay import LOOPBACK, require_own

_BACKLOG: Final = 512
_TRIES: Final = 8


class WorkersNetwork(Protocol):
    """A network with loopback alone, in which the workers are and this process is not."""

    def listen(self, address: str, port: int = 0) -> socket.socket:
        """A socket of this process that listens in it."""

    def connect(self, address: str, port: int) -> socket.socket:
        """A socket of this process that is connected in it."""


@dataclass(frozen=True, slots=True)
class HostedStore:
    """A store that this process hosts, for as long as the object lives."""

    store: TCPStore
    host: str
    port: int


def host_store(address: str, timeout: timedelta, port: int = 0) -> HostedStore:
    """Start a store on one port of one address, by default a free one.

    Raises:
        UsageError: ST-USAG-002 when the address is not this machine's, ST-USAG-003 when the port is
            not free.
        NetworkError: ST-NETW-002 when it listens anywhere else as well.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.create_server((address, port), family=family, backlog=_BACKLOG) as listener:
            port = int(listener.getsockname()[1])
            fd = listener.detach()
    except OSError as error:
        raise os_error(
            error, f"the workers' store at {address}" + (f":{port}" if port else "")
        ) from error
    # From here on the descriptor is the store's; it closes it.
    store = TCPStore(
        address,
        port,
        is_master=True,
        timeout=timeout,
        wait_for_workers=False,
        multi_tenant=False,
        master_listen_fd=fd,
    )
    require_only(address, port)
    return HostedStore(store, address, port)


def host_store_inside(network: WorkersNetwork, timeout: timedelta, port: int = 0) -> HostedStore:
    """Start a store in the workers' network, on loopback.

    Raises:
        UsageError: ST-USAG-003 when the port is not free.
        NetworkError: ST-NETW-002 when it listens anywhere else as well.
    """
    for left in reversed(range(_TRIES)):
        try:
            listener = network.listen(LOOPBACK, port)
            place = listener.getsockname()[1]
            # Of this address torch finds a name without asking a name server.
            with listener, socket.create_server((LOOPBACK, place)) as way:
                threading.Thread(target=_carry, args=(way, network), daemon=True).start()
                store = TCPStore(
                    LOOPBACK,
                    place,
                    is_master=True,
                    timeout=timeout,
                    wait_for_workers=False,
                    multi_tenant=False,
                    master_listen_fd=listener.detach(),
                )
                require_only(LOOPBACK, place)
            return HostedStore(store, LOOPBACK, place)
        except OSError as error:  # somebody has the port out here
            if port or not left:
                raise os_error(error, f"the workers' store at {LOOPBACK}:{port}") from error
    raise AssertionError("the last try has raised")


def _carry(way: socket.socket, network: WorkersNetwork) -> None:
    """Carry the one connection of this process into the workers' network; no other is let in."""
    place = way.getsockname()
    for came, source in connections(way):
        with came, suppress(OSError, AdmissionError):
            require_own(source, place, frozenset({os.getuid()}))
            with network.connect(*place) as onward:
                relay(came, onward)


def connect_store(host: str, port: int, timeout: timedelta) -> TCPStore:
    """Connect to rank 0's store.

    Raises:
        AdmissionError: ST-ADMN-007.
    """
    try:
        return TCPStore(host, port, is_master=False, timeout=timeout, wait_for_workers=False)
    except RuntimeError as error:  # torch.distributed's errors are RuntimeErrors
        raise AdmissionError(
            "ST-ADMN-007",
            f"the store of rank 0 does not answer: {str(error).splitlines()[0]}",
            f"{host}:{port}",
        ) from error
