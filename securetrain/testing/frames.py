# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The frames of a capture of the underlay: those that a job may send, and those that it may not.

::

    traffic = Traffic(tunnels={(a.address, 51820), (b.address, 51820)}, control=(a.address, 29400))
    assert traffic.strangers(capture.read()) == []

Rules, for each Ethernet frame (`Traffic.kind`):

1. **neighbourhood** is what the kernel says by itself wherever it has a device: ARP, neighbour and
   router discovery (ICMPv6 133 to 137, RFC 4861), group membership (IGMP; ICMPv6 130 to 132 and
   143, RFC 3810). Nothing of a job is in it;
2. **wireguard** is UDP from one member's endpoint to another's, that begins as one of WireGuard's
   four messages does: its type, then three zero bytes (https://www.wireguard.com/protocol/). So is
   an ICMP error that quotes such a packet (RFC 792, type 3): a tunnel's end has just gone;
3. **control** is TCP from or to the coordinator's address and port. That it is TLS, `openings`
   lets a test look at: the first bytes of both directions of each connection;
4. everything else is a stranger, and described so that a person finds out what it was. A fragment
   of a packet is one: tunnels are made so that nothing has to be split.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv4Address, IPv6Address
from typing import Final, TypeAlias

Address: TypeAlias = IPv4Address | IPv6Address
Endpoint: TypeAlias = tuple[Address, int]

_ETHERNET: Final = 14
_ARP, _IPV4, _IPV6 = b"\x08\x06", b"\x08\x00", b"\x86\xdd"
_ICMP, _ICMP6, _IGMP, _TCP, _UDP, _HOP_BY_HOP = 1, 58, 2, 6, 17, 0
_UNREACHABLE: Final = 3
_DISCOVERY: Final = frozenset({130, 131, 132, 133, 134, 135, 136, 137, 143})
_MESSAGES: Final = tuple(bytes((kind, 0, 0, 0)) for kind in (1, 2, 3, 4))
_FRAGMENT: Final = 0x3FFF
"""Of the IPv4 field with flags and offset: more fragments follow, or this is not the first."""


class Kind(StrEnum):
    """The kind of a frame."""

    WIREGUARD = "wireguard"
    CONTROL = "control"
    NEIGHBOURHOOD = "neighbourhood"
    STRANGER = "stranger"


@dataclass(frozen=True, slots=True)
class Packet:
    """An IP packet, as far as it says who speaks to whom."""

    source: Address
    target: Address
    protocol: int
    body: bytes
    """The bytes after the IP header; none for a fragment, because its ports may be elsewhere."""
    is_fragment: bool = False

    @property
    def ends(self) -> tuple[Endpoint, Endpoint]:
        """Both ends of TCP or UDP; port 0 where there is none."""
        ports = self.body[:4].ljust(4, b"\0")
        return (
            (self.source, int.from_bytes(ports[:2], "big")),
            (self.target, int.from_bytes(ports[2:], "big")),
        )

    @property
    def payload(self) -> bytes:
        """The payload of TCP or UDP."""
        if self.protocol == _UDP:
            return self.body[8:]
        if self.protocol == _TCP and len(self.body) > 12:
            return self.body[(self.body[12] >> 4) * 4 :]
        return b""

    def __str__(self) -> str:
        (source, sport), (target, dport) = self.ends
        name = {_TCP: "TCP", _UDP: "UDP"}.get(self.protocol, f"protocol {self.protocol}")
        part = "a fragment of " if self.is_fragment else ""
        return f"{part}{name} {source} port {sport} to {target} port {dport}"


def packet_of(frame: bytes) -> Packet | None:
    """The IP packet in an Ethernet frame; None when there is none, or not all of its header."""
    kind, data = frame[12:_ETHERNET], frame[_ETHERNET:]
    if kind == _IPV4 and len(data) >= 20:
        size, total = (data[0] & 15) * 4, int.from_bytes(data[2:4], "big")
        is_fragment = bool(int.from_bytes(data[6:8], "big") & _FRAGMENT)
        # A frame of an offloading device may be longer than 16 bits can say; then the field is 0.
        body = b"" if is_fragment else data[size : total or len(data)]
        source, target = IPv4Address(data[12:16]), IPv4Address(data[16:20])
        return Packet(source, target, data[9], body, is_fragment)
    if kind == _IPV6 and len(data) >= 40:
        protocol, body = data[6], data[40 : 40 + int.from_bytes(data[4:6], "big")]
        if protocol == _HOP_BY_HOP and len(body) >= 8:
            protocol, body = body[0], body[(body[1] + 1) * 8 :]
        return Packet(IPv6Address(data[8:24]), IPv6Address(data[24:40]), protocol, body)
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """The traffic that a job may have on the underlay."""

    tunnels: Collection[Endpoint]
    """Where its members' tunnels are."""
    control: Endpoint
    """Where its coordinator listens."""

    def kind(self, frame: bytes) -> Kind:
        """Return the kind of one frame."""
        packet = packet_of(frame)
        if packet is None:
            return Kind.NEIGHBOURHOOD if frame[12:_ETHERNET] == _ARP else Kind.STRANGER
        protocol, version = packet.protocol, packet.source.version
        if (version, protocol) == (4, _IGMP) or (
            (version, protocol) == (6, _ICMP6) and packet.body[:1] and packet.body[0] in _DISCOVERY
        ):
            return Kind.NEIGHBOURHOOD
        if protocol == _TCP and self.control in packet.ends:
            return Kind.CONTROL
        is_error = version == 4 and protocol == _ICMP and packet.body[:1] == bytes((_UNREACHABLE,))
        quoted = packet_of(bytes(12) + _IPV4 + packet.body[8:]) if is_error else packet
        return Kind.WIREGUARD if quoted and self._is_wireguard(quoted) else Kind.STRANGER

    def _is_wireguard(self, packet: Packet) -> bool:
        known = len(set(packet.ends) & set(self.tunnels)) == 2
        return packet.protocol == _UDP and known and packet.payload.startswith(_MESSAGES)

    def strangers(self, frames: Iterable[bytes]) -> list[str]:
        """The frames that the job may not have sent, each kind once."""
        found = {
            str(packet_of(frame) or f"Ethernet type {frame[12:_ETHERNET].hex()}")
            for frame in frames
            if self.kind(frame) is Kind.STRANGER
        }
        return sorted(found)

    def openings(self, frames: Iterable[bytes]) -> list[bytes]:
        """The first bytes that each end of each control connection sent."""
        first: dict[tuple[Endpoint, Endpoint], bytes] = {}
        for frame in frames:
            packet = packet_of(frame)
            if packet is not None and packet.payload and self.kind(frame) is Kind.CONTROL:
                first.setdefault(packet.ends, packet.payload[:5])
        return list(first.values())
