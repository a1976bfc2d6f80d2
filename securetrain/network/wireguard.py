# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""WireGuard's nouns: keys, endpoints, peers, and what a device says of itself. No I/O.

Rules:

1. keys are X25519 (RFC 7748) from `cryptography`; private ones never appear in a repr, an argument
   list or an environment;
2. the pre-shared key of a pair in an epoch is HKDF-SHA256(epoch secret, "wg" || min || max) over
   the two public keys (RFC 5869), so that both ends derive the same one, and a node that is not in
   the epoch has none that works;
3. a peer has exactly one address, its /32: what it sends from another one, WireGuard drops;
4. `require_state` compares what a device holds with what it was told, field by field.
"""

import base64
import binascii
from collections.abc import Iterable
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from securetrain.core.errors import NetworkError

KEY_SIZE: Final = 32
OVERHEAD: Final = 80
"""Bytes that WireGuard adds to a packet over IPv6, the larger of the two (20 less over IPv4)."""

_NO_KEY: Final = bytes(KEY_SIZE)


@dataclass(frozen=True, slots=True)
class WireGuardKey:
    """A node's private key for one job, in memory only."""

    native: X25519PrivateKey = field(repr=False)

    @classmethod
    def generate(cls) -> "WireGuardKey":
        """A new key."""
        return cls(X25519PrivateKey.generate())

    @property
    def public(self) -> bytes:
        """The public key, 32 bytes."""
        return self.native.public_key().public_bytes_raw()

    def secret(self) -> bytes:
        """The private key, 32 bytes, as an engine wants it: clamped (RFC 7748, section 5)."""
        raw = bytearray(
            self.native.private_bytes(
                serialization.Encoding.Raw,
                serialization.PrivateFormat.Raw,
                serialization.NoEncryption(),
            )
        )
        raw[0] &= 248
        raw[31] = (raw[31] & 127) | 64
        return bytes(raw)


def encode_key(key: bytes) -> str:
    """A key as WireGuard's own tools and our membership write it: base64, 44 characters."""
    return base64.b64encode(key).decode()


def decode_key(text: str, where: str = "") -> bytes:
    """Read a key from base64, in its one spelling.

    Raises:
        NetworkError: ST-NETW-017.
    """
    try:
        key = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise _bad_key(f"not base64: {error}", where) from error
    if encode_key(key) != text:
        raise _bad_key("not in its one spelling", where)
    return require_key(key, where)


def require_key(key: bytes, where: str = "") -> bytes:
    """Refuse what is no key: another size, or all zeros, which WireGuard reads as "none".

    Raises:
        NetworkError: ST-NETW-017.
    """
    if len(key) != KEY_SIZE or key == _NO_KEY:
        raise _bad_key(f"not a key of {KEY_SIZE} bytes", where)
    return key


def pairwise_psk(epoch_secret: bytes, one: bytes, other: bytes) -> bytes:
    """The pre-shared key of two nodes in an epoch, the same from both ends.

    Args:
        epoch_secret: Fresh for every epoch, 32 bytes, known to whoever hands out the keys.
        one: A node's public key.
        other: Another node's public key.

    Raises:
        NetworkError: ST-NETW-017 when one of them is no key, or both are the same.
    """
    for key, where in ((epoch_secret, "epoch secret"), (one, "public key"), (other, "public key")):
        require_key(key, where)
    if one == other:
        raise _bad_key("a node has no pre-shared key with itself", "public key")
    info = b"wg" + min(one, other) + max(one, other)
    kdf = HKDF(algorithm=hashes.SHA256(), length=KEY_SIZE, salt=None, info=info)
    return kdf.derive(epoch_secret)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The destination of a node's encrypted packets: an address of the underlay and a UDP port.

    Raises:
        NetworkError: ST-NETW-017 when it can be nobody's.
    """

    address: IPv4Address | IPv6Address
    port: int

    def __post_init__(self) -> None:
        # A zone ("%eth0") means another thing on every machine, and is free text.
        zoned = isinstance(self.address, IPv6Address) and self.address.scope_id is not None
        if zoned or self.address.is_unspecified or self.address.is_multicast:
            raise _bad_endpoint(str(self.address), "")
        if not 0 < self.port < 1 << 16:
            raise _bad_endpoint(f"port {self.port}", "")

    @classmethod
    def parse(cls, text: str, where: str = "") -> "Endpoint":
        """Read ``192.0.2.1:51820`` or ``[2001:db8::1]:51820``; names are not looked up.

        Raises:
            NetworkError: ST-NETW-017.
        """
        host, _, digits = text.rpartition(":")
        bracketed = host.startswith("[") and host.endswith("]")
        try:
            found = ip_address(host[1:-1] if bracketed else host)
        except ValueError as error:
            raise _bad_endpoint(text, where) from error
        # At most five digits, so that a long number is never converted.
        number = digits.isascii() and digits.isdecimal() and len(digits) <= 5
        if not number or bracketed != isinstance(found, IPv6Address):
            raise _bad_endpoint(text, where)
        return cls(found, int(digits))

    def __str__(self) -> str:
        if isinstance(self.address, IPv6Address):
            return f"[{self.address}]:{self.port}"
        return f"{self.address}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Another node, as a device is told about it."""

    public_key: bytes
    preshared_key: bytes = field(repr=False)
    endpoint: Endpoint
    address: IPv4Address
    """Its only address in the job network."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerState:
    """A peer, as a device reports it."""

    public_key: bytes
    preshared_key: bytes = field(repr=False, default=_NO_KEY)
    endpoint: Endpoint | None = None
    """Where it was last heard from, by an authenticated packet."""
    allowed: tuple[IPv4Network | IPv6Network, ...] = ()
    last_handshake: int = 0
    """Seconds since 1970; 0 for never."""
    received: int = 0
    sent: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceState:
    """The state that a device reports."""

    private_key: bytes = field(repr=False, default=_NO_KEY)
    port: int = 0
    """The UDP port; 0 while none is open."""
    peers: tuple[PeerState, ...] = ()


def require_state(state: DeviceState, key: WireGuardKey, peers: Iterable[Peer]) -> None:
    """Refuse a device that does not hold exactly this key and these peers.

    Endpoints are not compared: WireGuard follows a peer that was authenticated at another one.

    Raises:
        NetworkError: ST-NETW-016.
    """
    if state.private_key != key.secret():
        raise _differs("it has another private key")
    wanted = {peer.public_key: peer for peer in peers}
    found = {peer.public_key: peer for peer in state.peers}
    if len(found) != len(state.peers) or found.keys() != wanted.keys():
        raise _differs(f"it has {len(state.peers)} peers, not the {len(wanted)} of the epoch")
    for public_key, peer in wanted.items():
        held = found[public_key]
        name = encode_key(public_key)
        if held.preshared_key != peer.preshared_key:
            raise _differs(f"peer {name} has another pre-shared key")
        if held.allowed != (IPv4Network(peer.address),):
            raise _differs(f"peer {name} may use {_listed(held.allowed)}, not only {peer.address}")


def _listed(networks: Iterable[object]) -> str:
    return ", ".join(map(str, networks)) or "no address"


def _bad_key(what: str, where: str) -> NetworkError:
    return NetworkError("ST-NETW-017", what, where or "WireGuard key")


def _bad_endpoint(text: str, where: str) -> NetworkError:
    return NetworkError(
        "ST-NETW-017",
        f"{text[:64]!r} is not an address and a port from 1 to 65535",
        where or "WireGuard endpoint",
    )


def _differs(what: str) -> NetworkError:
    return NetworkError("ST-NETW-016", what, "WireGuard device")
