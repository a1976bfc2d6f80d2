# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The address that this node announces: where the other members send to."""

import socket
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

from securetrain.core.errors import AdmissionError, UsageError
from securetrain.rendezvous.member import parse_endpoints

_ANY_PORT: Final = 9
"""Of a datagram socket that never sends: only the route to the address matters."""


def announced_address(coordinator: str, bind: str = "") -> IPv4Address | IPv6Address:
    """Choose the announced address: ``--rdzv-conf bind=``, or the one that reaches the coordinator.

    Raises:
        AdmissionError: ST-ADMN-007 when there is no way to the coordinator.
        UsageError: ST-USAG-001 for what is no address.
    """
    if not bind:
        return local_address(coordinator)
    try:
        return ip_address(bind)
    except ValueError as error:
        raise UsageError(
            "ST-USAG-001", str(error), "--rdzv-conf bind", "give this machine's IP address"
        ) from error


def local_address(coordinator: str) -> IPv4Address | IPv6Address:
    """The address from which this machine reaches the coordinator or a standby. Nothing is sent.

    Raises:
        AdmissionError: ST-ADMN-007 when there is none.
        UsageError: ST-USAG-001 when `coordinator` is not a host and a port.
    """
    problem: Exception | None = None
    for host, _ in parse_endpoints(coordinator):
        try:
            return _address_towards(host)
        except (OSError, ValueError) as error:
            problem = problem or error
    raise AdmissionError(
        "ST-ADMN-007",
        f"no way to the coordinator: {problem}",
        coordinator,
        "check the address and this machine's routes",
    ) from problem


def _address_towards(host: str) -> IPv4Address | IPv6Address:
    family, _, _, _, place = socket.getaddrinfo(host, _ANY_PORT, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(place)
        return ip_address(str(probe.getsockname()[0]))
