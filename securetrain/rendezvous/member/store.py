# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The workers' store: torch's own TCPStore, made to listen on one address.

TCPStore binds every interface whatever host it is given, so it gets a socket that is already bound
(``master_listen_fd``); afterwards the kernel is asked where it really listens (ST-NETW-002). It has
no authentication of its own: the job network is what keeps strangers away from it.
"""

import socket
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from securetrain.core.errors import AdmissionError, os_error
from securetrain.network import require_only

_BACKLOG: Final = 512


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
