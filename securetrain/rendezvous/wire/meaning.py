# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The meaning of what a node announces in Hello: its address, its WireGuard key.

Rules:

1. an address is one machine's: not unspecified, of "this network", multicast, broadcast or
   reserved, not of one link without saying which, and not a cloud's metadata service. An IPv4
   address inside an IPv6 one is judged as what it is;
2. where a node comes from another machine, its loopback address is no member's;
3. a WireGuard key is a point of X25519 in its one spelling (RFC 7748, section 5): a value below the
   field's prime, without the top bit, which X25519 ignores. Otherwise two texts would be one key;
4. it is not one of the points of low order, with which the other side's secret counts for nothing.
"""

from ipaddress import IPv4Address, IPv4Network, IPv6Address, ip_address
from typing import Final

from securetrain.core.errors import AdmissionError

_PRIME: Final = 2**255 - 19
LOW_ORDER: Final = frozenset(
    {
        0,
        1,
        _PRIME - 1,
        325606250916557431795983626356110631294008115727848805560023387167927233504,
        39382357235489614581723060781553021112529911719440698176882885853963445705823,
    }
)
"""The u-coordinates of the points of order 1, 2, 4 and 8, on the curve and on its twist."""
_THIS_NETWORK: Final = IPv4Network("0.0.0.0/8")
_METADATA: Final = frozenset({ip_address("169.254.169.254"), ip_address("fd00:ec2::254")})


def check_address(text: str, remote: str, *, alone: bool) -> None:
    """Rules 1 and 2.

    Args:
        text: What the node announces.
        remote: Where its connection comes from, with the port.
        alone: Whether the job has one node, which nobody has to reach.

    Raises:
        AdmissionError: ST-ADMN-032; ST-ADMN-001 when it is no address.
    """
    try:
        address = ip_address(text)
    except ValueError as error:
        raise AdmissionError(
            "ST-ADMN-001", str(error), "Hello.address", "give an IP address, not a name"
        ) from error
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    why = _nobodys(address)
    if not why and address.is_loopback and not alone and not _is_loopback(remote):
        why = "a loopback address, and the node comes from another machine"
    if why:
        raise AdmissionError("ST-ADMN-032", f"{text} is {why}", "Hello.address")


def check_key(key: bytes, field: str = "wireguard") -> None:
    """Rules 3 and 4, which hold for every X25519 key that a node announces.

    Raises:
        AdmissionError: ST-ADMN-032.
    """
    value = int.from_bytes(key, "little")
    if value % (1 << 255) % _PRIME in LOW_ORDER:
        why = "a point of low order: no secret comes of it"
    elif value >= _PRIME:
        why = "not in its one spelling"
    else:
        return
    kind = "WireGuard" if field == "wireguard" else field
    raise AdmissionError("ST-ADMN-032", f"the {kind} key is {why}", f"Hello.{field}")


def _nobodys(address: IPv4Address | IPv6Address) -> str:
    if address.is_unspecified:
        return "no address"
    if address.is_multicast:
        return "a multicast address"
    if address in _METADATA:
        return "a metadata service's address"
    if isinstance(address, IPv6Address) and address.is_link_local:
        return "of one link, and does not say of which"
    if isinstance(address, IPv4Address) and address in _THIS_NETWORK:
        return "an address of 'this network'"
    reserved = address.is_reserved and not address.is_loopback
    return "a reserved or broadcast address" if reserved else ""


def _is_loopback(remote: str) -> bool:
    host = remote.rpartition(":")[0].partition("%")[0]
    try:
        address = ip_address(host)
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address.is_loopback
