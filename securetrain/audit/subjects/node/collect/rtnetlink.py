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
    """One interface; None is what the kernel did not say."""

    name: str
    kind: str
    up: bool
    loopback: bool
    forwarding: int | None
    accept_redirects: int | None
    rp_filter: int | None
    address: str
    """Of the hardware, as ``02:00:00:00:00:01``; empty without one."""
    has_ipv6: bool | None
    """Whether the interface knows IPv6 at all."""
    disable_ipv6: int | None
    accept_ra: int | None
    forwarding6: int | None


def dump_links() -> bytes:
    """Ask the kernel for every interface.

    Raises:
        OSError: when it does not answer.
        NetlinkError: when there is more than is read, or the list never stands still.
    """
    return netlink.dump(socket.NETLINK_ROUTE, _GET_LINK, _LINK.pack(0, 0, 0, 0, 0))


def parse_numbers(data: bytes) -> dict[int, str]:
    """The names of the interfaces of a whole answer, by their numbers."""
    links = zip(netlink.answers(data), parse_links(data), strict=True)
    return {_LINK.unpack_from(body)[2]: link.name for (_, body), link in links}


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
    *_, flags, _ = _LINK.unpack_from(body)
    attributes = netlink.attributes(body[_LINK.size :])
    name = netlink.text(attributes.get(_IFLA_NAME, b""))
    if not name:
        raise netlink.NetlinkError("an interface without a name")
    spec = attributes.get(_IFLA_AF_SPEC)
    families = netlink.attributes(spec) if spec is not None else {}
    four = _words(netlink.attributes(families.get(socket.AF_INET, b"")).get(_INET_CONF, b""))
    six = _words(netlink.attributes(families.get(socket.AF_INET6, b"")).get(_INET6_CONF, b""))
    return Link(
        name=name,
        kind=netlink.text(
            netlink.attributes(attributes.get(_IFLA_LINK_INFO, b"")).get(_INFO_KIND, b"")
        ),
        up=bool(flags & _IFF_UP),
        loopback=bool(flags & _IFF_LOOPBACK),
        forwarding=_at(four, _FORWARDING),
        accept_redirects=_at(four, _ACCEPT_REDIRECTS),
        rp_filter=_at(four, _RP_FILTER),
        address=_hardware(attributes.get(_IFLA_ADDRESS, b"")),
        has_ipv6=None if spec is None else socket.AF_INET6 in families,
        disable_ipv6=_at(six, _DISABLE_IPV6),
        accept_ra=_at(six, _ACCEPT_RA),
        forwarding6=_at(six, _FORWARDING6),
    )


def _hardware(data: bytes) -> str:
    return data.hex(":") if any(data) else ""


def _words(data: bytes) -> tuple[int, ...]:
    return struct.unpack(f"={len(data) // 4}i", data[: len(data) // 4 * 4])


def _at(words: tuple[int, ...], place: int) -> int | None:
    return words[place] if place < len(words) else None
