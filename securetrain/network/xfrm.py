# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The kernel's IPsec state, as it says so itself: NETLINK_XFRM dumps (linux/xfrm.h), read only.

``ip xfrm`` shows offloads as text that differs between versions, and older ones cannot tell full
offload from crypto offload; the numbers of the kernel's interface never change. Rules:

1. what is needed is kept: whose traffic, which device, how much is offloaded. Keys pass through the
   buffer of the dump and are kept nowhere;
2. lengths are checked before anything is taken apart, a dump has an end, a number of messages and a
   size, and a message that does not fit its structure raises ST-NETW-033: what is not understood is
   not evidence;
3. the dump is of the calling thread's network namespace and needs CAP_NET_ADMIN.
"""

import socket
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final, TypeAlias

from securetrain.core import netlink
from securetrain.core.errors import NetworkError

Network: TypeAlias = IPv4Network | IPv6Network
Address: TypeAlias = IPv4Address | IPv6Address
Dump: TypeAlias = Callable[["Kind"], bytes]
"""Gives the messages of one kind of dump, as the kernel wrote them; `dump` is the real one."""

NETLINK_XFRM: Final = 6
MAX_BYTES: Final = 16 << 20
MAX_MESSAGES: Final = 1 << 16

_SELECTOR: Final = struct.Struct("=16s16s HHHH H BBB 3x i I")
_ID: Final = struct.Struct("=16s 4s B 3x")
_UNSIGNED: Final = struct.Struct("=I")
_SHORT: Final = struct.Struct("=H")
_OFFLOAD: Final = struct.Struct("=iB")
_TEMPLATE: Final = struct.Struct("=16s4sB3x H2x 16s I BBB x III")

_STATE_SIZE: Final = 224
"""struct xfrm_usersa_info: selector, id, source, lifetimes, statistics, family, mode and flags."""
_STATE_SOURCE: Final = _SELECTOR.size + _ID.size
_STATE_REQID: Final = 208
_STATE_FAMILY: Final = 212
_POLICY_SIZE: Final = 168
"""struct xfrm_userpolicy_info: selector, lifetimes, priority, index, direction, action."""
_POLICY_TAIL: Final = struct.Struct("=IIBB")
_POLICY_TAIL_AT: Final = 152

_TMPL: Final = 5
_AEAD: Final = 18
_OFFLOAD_DEV: Final = 28
_NARROW: Final = {21, 31}  # XFRMA_MARK, XFRMA_IF_ID
_NAME_SIZE: Final = 64
_INBOUND: Final = 2
_PACKET: Final = 4


class Kind(IntEnum):
    """The kind of a request; the answers have other numbers."""

    STATES = 18  # XFRM_MSG_GETSA
    POLICIES = 21  # XFRM_MSG_GETPOLICY


_ANSWER: Final = {Kind.STATES: 16, Kind.POLICIES: 19}  # XFRM_MSG_NEWSA, XFRM_MSG_NEWPOLICY


class Direction(IntEnum):
    """Of a policy."""

    IN = 0
    OUT = 1
    FORWARD = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Offload:
    """The work that a network card does by itself."""

    interface: int
    """The index of the interface."""
    is_inbound: bool
    is_full: bool
    """Packet offload: the card makes and checks the whole packet. Without it the card only helps
    the kernel with the cipher, which RDMA never passes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A security association."""

    source: Address
    destination: Address
    protocol: int
    cipher: str
    """The kernel's name of the AEAD that encrypts and authenticates; empty when it has none."""
    reqid: int
    """The number that ties it to policies."""
    is_plain: bool
    """Whether it is for all packets, not for those with a mark or of an xfrm interface only."""
    offload: Offload | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """The demands of a policy."""

    protocol: int
    is_optional: bool
    source: bytes
    destination: bytes
    """Of the security association, 16 bytes each; all zeros for those of the packet."""
    reqid: int
    """Of the security association; 0 for any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The protection that some traffic must have."""

    source: Network
    destination: Network
    is_whole: bool
    """Whether it is about every packet between them: any protocol, port, interface and mark."""
    direction: int
    is_block: bool
    templates: tuple[Template, ...]
    offload: Offload | None


def states(dumped: Dump) -> tuple[State, ...]:
    """The security associations.

    Raises:
        NetworkError: ST-NETW-033 when the dump is not understood.
    """
    return tuple(_state(body) for body in _messages(dumped(Kind.STATES), Kind.STATES))


def policies(dumped: Dump) -> tuple[Policy, ...]:
    """The policies for packets; those of single sockets are left out.

    Raises:
        NetworkError: ST-NETW-033 when the dump is not understood.
    """
    found = [_policy(body) for body in _messages(dumped(Kind.POLICIES), Kind.POLICIES)]
    return tuple(policy for policy in found if policy.direction <= Direction.FORWARD)


def dump(kind: Kind) -> bytes:
    """Ask the kernel.

    Raises:
        NetworkError: ST-NETW-033 when it does not answer, or changes while it does.
    """
    try:
        return netlink.dump(NETLINK_XFRM, kind, limit=MAX_BYTES)
    except OSError as error:
        raise _unknown(f"the kernel does not say what it encrypts: {error.strerror}") from error
    except netlink.NetlinkError as error:
        raise _unknown(str(error)) from error


def _messages(data: bytes, kind: Kind) -> Iterator[bytes]:
    """The bodies of a whole dump; one that does not end is not whole."""
    try:
        for number, (answer, body) in enumerate(netlink.answers(data)):
            if answer != _ANSWER[kind] or number >= MAX_MESSAGES:
                raise _unknown("the kernel's answer is not what was asked for")
            yield body
    except OSError as error:
        raise _unknown(error.strerror or str(error)) from error
    except netlink.NetlinkError as error:
        raise _unknown(str(error)) from error


def _attributes(data: bytes) -> dict[int, bytes]:
    try:
        return netlink.attributes(data)
    except netlink.NetlinkError as error:
        raise _unknown(str(error)) from error


def _state(body: bytes) -> State:
    if len(body) < _STATE_SIZE:
        raise _unknown("a security association is cut off")
    destination, _, protocol = _ID.unpack_from(body, _SELECTOR.size)
    source = body[_STATE_SOURCE : _STATE_SOURCE + 16]
    (family,) = _SHORT.unpack_from(body, _STATE_FAMILY)
    attributes = _attributes(body[_STATE_SIZE:])
    return State(
        source=_address(source, family),
        destination=_address(destination, family),
        protocol=protocol,
        cipher=attributes.get(_AEAD, b"")[:_NAME_SIZE]
        .partition(b"\0")[0]
        .decode("ascii", "replace"),
        reqid=_UNSIGNED.unpack_from(body, _STATE_REQID)[0],
        is_plain=not _NARROW & attributes.keys(),
        offload=_offload(attributes),
    )


def _policy(body: bytes) -> Policy:
    if len(body) < _POLICY_SIZE:
        raise _unknown("a policy is cut off")
    fields = _SELECTOR.unpack_from(body)
    to, source, _, to_mask, _, from_mask, family, to_bits, from_bits, *rest = fields
    _, _, direction, action = _POLICY_TAIL.unpack_from(body, _POLICY_TAIL_AT)
    attributes = _attributes(body[_POLICY_SIZE:])
    return Policy(
        source=_network(source, from_bits, family),
        destination=_network(to, to_bits, family),
        is_whole=not (
            to_mask or from_mask or any(rest[:2]) or _NARROW & attributes.keys()
        ),  # rest: protocol, interface, user
        direction=direction,
        is_block=action != 0,
        templates=tuple(_templates(attributes.get(_TMPL, b""))),
        offload=_offload(attributes),
    )


def _templates(data: bytes) -> Iterator[Template]:
    if len(data) % _TEMPLATE.size:
        raise _unknown("a template is cut off")
    for fields in _TEMPLATE.iter_unpack(data):
        yield Template(
            protocol=fields[2],
            is_optional=bool(fields[8]),
            source=fields[4],
            destination=fields[0],
            reqid=fields[5],
        )


def _offload(attributes: dict[int, bytes]) -> Offload | None:
    data = attributes.get(_OFFLOAD_DEV)
    if data is None:
        return None
    if len(data) < _OFFLOAD.size:
        raise _unknown("an offload is cut off")
    interface, flags = _OFFLOAD.unpack_from(data)
    return Offload(
        interface=interface, is_inbound=bool(flags & _INBOUND), is_full=bool(flags & _PACKET)
    )


def _address(data: bytes, family: int) -> Address:
    match family:
        case socket.AF_INET:
            return ip_address(data[:4])
        case socket.AF_INET6:
            return ip_address(data)
        case _:
            raise _unknown(f"an address of family {family}")


def _network(data: bytes, bits: int, family: int) -> Network:
    """A selector's addresses. It has a family: the kernel takes no policy without (xfrm_user.c)."""
    address = _address(data, family)
    if bits > address.max_prefixlen:
        raise _unknown("a prefix is longer than its address")
    return ip_network((address, bits), strict=False)


def _unknown(what: str) -> NetworkError:
    return NetworkError("ST-NETW-033", what, "IPsec state of the kernel")
