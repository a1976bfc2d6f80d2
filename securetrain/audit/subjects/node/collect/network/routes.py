# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The routes of this network namespace, as proc(5) lists them: net/route and net/ipv6_route."""

import ipaddress
import sys
from collections.abc import Iterator
from typing import Final

from securetrain.audit.subjects.node.collect.host import Host, TooMuchError
from securetrain.audit.subjects.node.collect.rtnetlink import parse_links
from securetrain.audit.subjects.node.facts.network import Route

_TABLE_LIMIT: Final = 4 << 20
_MAX_ROUTES: Final = 2048
_UP, _REJECT = 0x1, 0x200
_LOOPBACK: Final = "lo"


def routes(host: Host) -> tuple[Route, ...]:
    """Routes to other machines, IPv4 before IPv6."""
    found = tuple(dict.fromkeys((*_version_4(host), *_version_6(host))))
    if len(found) > _MAX_ROUTES:
        raise TooMuchError(f"more than {_MAX_ROUTES} routes")
    return found


def _version_4(host: Host) -> Iterator[Route]:
    header, *lines = host.text("/proc/self/net/route", _TABLE_LIMIT).splitlines() or [""]
    if header.split()[:2] != ["Iface", "Destination"]:
        raise ValueError("/proc/self/net/route has no header: it is not the kernel's")
    order = sys.byteorder
    for line in lines:
        interface, to, _, flags, _, _, _, mask, *_ = line.split()
        address = ipaddress.IPv4Address(int(to, 16).to_bytes(4, order))
        bits = int(mask, 16).bit_count()
        yield _route(f"{address}/{bits}", interface, int(flags, 16))


def _version_6(host: Host) -> Iterator[Route]:
    try:
        lines = host.text("/proc/self/net/ipv6_route", _TABLE_LIMIT).splitlines()
    except FileNotFoundError:
        links = parse_links(host.kernel.links())
        if links and all(link.has_ipv6 is False for link in links):
            return  # a kernel without IPv6
        raise
    if not lines and any(link.has_ipv6 for link in parse_links(host.kernel.links())):
        raise ValueError("/proc/self/net/ipv6_route is empty: it is not the kernel's")
    for line in lines:
        to, bits, *_, flags, interface = line.split()
        address = ipaddress.IPv6Address(bytes.fromhex(to))
        # those of addresses of the machine itself are routes over loopback
        if interface != _LOOPBACK and not address.is_multicast and not address.is_link_local:
            yield _route(f"{address}/{int(bits, 16)}", interface, int(flags, 16))


def _route(network: str, interface: str, flags: int) -> Route:
    blocked = bool(flags & _REJECT) or interface == "*"
    return Route(
        network=network,
        interface="" if blocked or not flags & _UP else interface,
    )
