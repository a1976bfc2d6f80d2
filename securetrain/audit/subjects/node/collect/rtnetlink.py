# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The kernel's list of interfaces and their settings, by RTM_GETLINK (rtnetlink(7)).

It needs no /sys and no /proc, so that neither can hide an interface. The list is that of this
process's network namespace. A message that is cut off or has a wrong length is an error, never a
shorter list.
"""

import socket
import struct
from dataclasses import dataclass
from typing import Final

from securetrain.audit.subjects.node.collect.host import Host
from securetrain.audit.subjects.node.facts.node import Interface
from securetrain.core import netlink

_LINK: Final = struct.Struct("=BxHiII")
_NEW_LINK, _GET_LINK = 16, 18
_IFLA_ADDRESS: Final = 1
_IFLA_NAME, _IFLA_LINK_INFO, _IFLA_AF_SPEC = 3, 18, 26
_INFO_KIND: Final = 1
_INET_CONF: Final = 1
_INET6_CONF: Final = 2
_IFF_UP, _IFF_LOOPBACK = 0x1, 0x8
# Places in the arrays of linux/ip.h (which counts from 1) and linux/ipv6.h.
_FORWARDING, _ACCEPT_REDIRECTS, _RP_FILTER = 0, 3, 7
_FORWARDING6, _ACCEPT_RA, _DISABLE_IPV6 = 0, 3, 26


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One interface, with what is no fact of its own."""

    number: int
    address: str
    """Of the hardware, as ``02:00:00:00:00:01``; empty without one."""
    has_ipv6: bool | None
    """Whether the interface knows IPv6 at all; None: the kernel did not say."""
    facts: Interface


def dump_links() -> bytes:
    """Ask the kernel for every interface.

    Raises:
        OSError: when it does not answer.
        NetlinkError: when there is more than is read, or the list never stands still.
    """
    return netlink.dump(socket.NETLINK_ROUTE, _GET_LINK, _LINK.pack(0, 0, 0, 0, 0))


def links(host: Host) -> tuple[Link, ...]:
    """Every interface of this network namespace.

    Raises:
        OSError: when the kernel does not say.
        NetlinkError: when its answer is malformed.
    """
    return parse_links((host.kernel.links or dump_links)())


def parse_links(data: bytes) -> tuple[Link, ...]:
    """Read a whole answer.

    Raises:
        OSError: when the kernel refused.
        NetlinkError: when it is malformed or has no end.
    """
    links = []
    for kind, body in netlink.answers(data):
        if kind != _NEW_LINK or len(body) < _LINK.size:
            raise netlink.NetlinkError("the kernel's answer is not a list of interfaces")
        links.append(_link(body))
    return tuple(links)


def _link(body: bytes) -> Link:
    _, _, number, flags, _ = _LINK.unpack_from(body)
    attributes = netlink.attributes(body[_LINK.size :])
    name = netlink.text(attributes.get(_IFLA_NAME, b""))
    if not name:
        raise netlink.NetlinkError("an interface without a name")
    spec = attributes.get(_IFLA_AF_SPEC)
    families = netlink.attributes(spec) if spec is not None else {}
    four = _words(netlink.attributes(families.get(socket.AF_INET, b"")).get(_INET_CONF, b""))
    six = _words(netlink.attributes(families.get(socket.AF_INET6, b"")).get(_INET6_CONF, b""))
    has_ipv6 = None if spec is None else socket.AF_INET6 in families
    info = netlink.attributes(attributes.get(_IFLA_LINK_INFO, b""))
    facts = Interface(
        name=name,
        kind=netlink.text(info.get(_INFO_KIND, b"")),
        up=bool(flags & _IFF_UP),
        loopback=bool(flags & _IFF_LOOPBACK),
        forwarding=four.get(_FORWARDING),
        accept_redirects=four.get(_ACCEPT_REDIRECTS),
        rp_filter=four.get(_RP_FILTER),
        ipv6=has_ipv6 and (not six[_DISABLE_IPV6] if _DISABLE_IPV6 in six else None),
        accept_ra=six.get(_ACCEPT_RA),
        forwarding6=six.get(_FORWARDING6),
    )
    address = attributes.get(_IFLA_ADDRESS, b"")
    shown = address.hex(":") if any(address) else ""
    return Link(number=number, address=shown, has_ipv6=has_ipv6, facts=facts)


def _words(data: bytes) -> dict[int, int]:
    """The numbers of an array by their places."""
    return dict(enumerate(struct.unpack(f"={len(data) // 4}i", data[: len(data) // 4 * 4])))
