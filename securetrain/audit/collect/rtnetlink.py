# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The kernel's list of interfaces and their settings, by RTM_GETLINK (rtnetlink(7)).

It needs no /sys and no /proc, so that neither can hide an interface. The list is that of this
process's network namespace. A message that is cut off or has a wrong length is an error, never a
shorter list.
"""

import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

MAX_BYTES: Final = 16 << 20
"""The longest answer that is read; an interface takes about 2 KB."""
_SECONDS: Final = 3.0
_TRIES: Final = 5

_HEADER: Final = struct.Struct("=IHHII")
_LINK: Final = struct.Struct("=BxHiII")
_ATTRIBUTE: Final = struct.Struct("=HH")
_NOOP, _ERROR, _DONE, _NEW_LINK, _GET_LINK = 1, 2, 3, 16, 18
_REQUEST_DUMP: Final = 0x301
_INTERRUPTED: Final = 0x10
_IFLA_NAME, _IFLA_LINK_INFO, _IFLA_AF_SPEC = 3, 18, 26
_INFO_KIND: Final = 1
_INET_CONF: Final = 1
_INET6_CONF: Final = 2
_IFF_UP, _IFF_LOOPBACK = 0x1, 0x8
# Places in the arrays of linux/ip.h (which counts from 1) and linux/ipv6.h.
_FORWARDING, _ACCEPT_REDIRECTS, _RP_FILTER = 0, 3, 7
_FORWARDING6, _ACCEPT_RA, _DISABLE_IPV6 = 0, 3, 26


class NetlinkError(ValueError):
    """An answer that is not what was asked for."""


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
    has_ipv6: bool | None
    """Whether the interface knows IPv6 at all."""
    disable_ipv6: int | None
    accept_ra: int | None
    forwarding6: int | None


def dump_links() -> bytes:
    """Ask the kernel for every interface.

    Raises:
        OSError: when it does not answer.
        NetlinkError: when there is more than `MAX_BYTES`, or the list never stands still.
    """
    ask = _HEADER.pack(_HEADER.size + _LINK.size, _GET_LINK, _REQUEST_DUMP, 1, 0)
    for _ in range(_TRIES):
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as netlink:
            netlink.settimeout(_SECONDS)
            netlink.bind((0, 0))
            netlink.send(ask + _LINK.pack(0, 0, 0, 0, 0))
            data = b"".join(_received(netlink))
        if not any(flags & _INTERRUPTED for _, flags, _ in _messages(data)):
            return data
    raise NetlinkError("the list of interfaces never stands still")


def _received(netlink: socket.socket) -> Iterator[bytes]:
    left = MAX_BYTES
    while True:
        data = netlink.recv(1 << 18)
        left -= len(data)
        if left < 0 or not data:
            raise NetlinkError(f"there is more than {MAX_BYTES} bytes, or no end")
        yield data
        if any(kind in {_ERROR, _DONE} for kind, *_ in _messages(data)):
            return


def parse_links(data: bytes) -> tuple[Link, ...]:
    """Read a whole answer.

    Raises:
        NetlinkError: when it is malformed, an error of the kernel, or has no end.
    """
    links: list[Link] = []
    for kind, _, body in _messages(data):
        if kind == _DONE:
            return tuple(links)
        if kind == _ERROR:
            raise NetlinkError("the kernel refuses to list interfaces")
        if kind == _NOOP:
            continue
        if kind != _NEW_LINK or len(body) < _LINK.size:
            raise NetlinkError("the kernel's answer is not a list of interfaces")
        links.append(_link(body))
    raise NetlinkError("the list of interfaces has no end")


def _link(body: bytes) -> Link:
    *_, flags, _ = _LINK.unpack_from(body)
    attributes = _attributes(body[_LINK.size :])
    name = _text(attributes.get(_IFLA_NAME, b""))
    if not name:
        raise NetlinkError("an interface without a name")
    spec = attributes.get(_IFLA_AF_SPEC)
    families = _attributes(spec) if spec is not None else {}
    four = _words(_attributes(families.get(socket.AF_INET, b"")).get(_INET_CONF, b""))
    six = _words(_attributes(families.get(socket.AF_INET6, b"")).get(_INET6_CONF, b""))
    return Link(
        name=name,
        kind=_text(_attributes(attributes.get(_IFLA_LINK_INFO, b"")).get(_INFO_KIND, b"")),
        up=bool(flags & _IFF_UP),
        loopback=bool(flags & _IFF_LOOPBACK),
        forwarding=_at(four, _FORWARDING),
        accept_redirects=_at(four, _ACCEPT_REDIRECTS),
        rp_filter=_at(four, _RP_FILTER),
        has_ipv6=None if spec is None else socket.AF_INET6 in families,
        disable_ipv6=_at(six, _DISABLE_IPV6),
        accept_ra=_at(six, _ACCEPT_RA),
        forwarding6=_at(six, _FORWARDING6),
    )


def _messages(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Kind, flags and body of each message."""
    at = 0
    while at < len(data):
        if len(data) - at < _HEADER.size:
            raise NetlinkError("a message of the kernel is cut off")
        length, kind, flags, *_ = _HEADER.unpack_from(data, at)
        if not _HEADER.size <= length <= len(data) - at:
            raise NetlinkError("a message of the kernel has a wrong length")
        yield kind, flags, data[at + _HEADER.size : at + length]
        at += -(-length // 4) * 4


def _attributes(data: bytes) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    at = 0
    while at + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, at)
        if not _ATTRIBUTE.size <= length <= len(data) - at:
            raise NetlinkError("an attribute has a wrong length")
        found[kind & 0x3FFF] = data[at + _ATTRIBUTE.size : at + length]
        at += -(-length // 4) * 4
    return found


def _words(data: bytes) -> tuple[int, ...]:
    return struct.unpack(f"={len(data) // 4}i", data[: len(data) // 4 * 4])


def _at(words: tuple[int, ...], place: int) -> int | None:
    return words[place] if place < len(words) else None


def _text(data: bytes) -> str:
    return data.rstrip(b"\0").decode("utf-8", "backslashreplace")
