# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The configuration protocol of userspace WireGuard, spoken over the engine's own socket.

Source: https://www.wireguard.com/xplatform/ ("Cross-platform userspace implementation"). Lines of
``key=value`` and an empty line at the end; keys are hex; every answer ends with ``errno=``.

Rules:

1. an answer is at most `LIMIT` bytes, and the engine has `TIMEOUT_SECONDS` for it;
2. a line that is not understood, stands where it must not, or stands twice is refused
   (ST-NETW-015): what this module does not know, it cannot vouch for;
3. an errno other than 0, or an answer that stops early, is ST-NETW-013;
4. peers that leave come first in a change, so that a node that is out is out before anything else
   can fail.
"""

import socket
from collections.abc import Collection, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from ipaddress import ip_network
from typing import Final

from securetrain.core.errors import NetworkError
from securetrain.network.wireguard import (
    KEY_SIZE,
    DeviceState,
    Endpoint,
    Peer,
    PeerState,
    WireGuardKey,
)

LIMIT: Final = 4 << 20
"""Bytes of an answer; the 4094 peers of a /20 take about half of it."""

TIMEOUT_SECONDS: Final = 5.0

_GET: Final = b"get=1\n\n"
_MAX_DIGITS: Final = 20
"""Of a 64-bit counter."""
_MAX_ALLOWED: Final = 16
"""Networks of one peer that are read; we only ever set one."""

_DEVICE_LINES: Final = frozenset({"private_key", "listen_port", "fwmark"})
_PEER_LINES: Final = frozenset(
    {
        "preshared_key",
        "protocol_version",
        "endpoint",
        "last_handshake_time_sec",
        "last_handshake_time_nsec",
        "tx_bytes",
        "rx_bytes",
        "persistent_keepalive_interval",
    }
)


def read_device(path: str) -> DeviceState:
    """Ask an engine for the state of its device.

    Raises:
        NetworkError: ST-NETW-013, ST-NETW-015.
    """
    return parse_state(_exchange(path, _GET))


def write_device(path: str, request: bytes) -> None:
    """Give an engine a request of `encode_device` or `encode_peers`.

    Raises:
        NetworkError: ST-NETW-013, ST-NETW-015.
    """
    if list(_lines(_exchange(path, request))):
        raise _malformed("an answer to a change that says more than its errno")


def encode_device(key: WireGuardKey, port: int) -> bytes:
    """A request that sets the private key and the UDP port (0: any)."""
    return f"set=1\nprivate_key={key.secret().hex()}\nlisten_port={port}\n\n".encode()


def encode_peers(state: DeviceState, peers: Collection[Peer]) -> bytes:
    """A request that makes `peers` the peers of a device in `state`.

    Sessions of peers that stay are kept: they are not removed and added again.
    """
    wanted = {peer.public_key for peer in peers}
    lines = ["set=1"]
    for gone in state.peers:
        if gone.public_key not in wanted:
            lines += [f"public_key={gone.public_key.hex()}", "remove=true"]
    for peer in peers:
        lines += [
            f"public_key={peer.public_key.hex()}",
            f"preshared_key={peer.preshared_key.hex()}",
            f"endpoint={peer.endpoint}",
            "replace_allowed_ips=true",
            f"allowed_ip={peer.address}/32",
        ]
    return "\n".join([*lines, "", ""]).encode()


@dataclass(slots=True)
class _Draft:
    """A device while its lines are read."""

    state: DeviceState = field(default_factory=DeviceState)
    peers: list[PeerState] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)
    """Keys that already stood in the current section."""


def parse_state(data: bytes) -> DeviceState:
    """Read the answer to ``get=1``.

    Raises:
        NetworkError: ST-NETW-015 when it is malformed, ST-NETW-013 for an errno.
    """
    draft = _Draft()
    for name, value in _lines(data):
        if name == "public_key":
            draft.peers.append(PeerState(public_key=_hex(name, value)))
            draft.seen = set()
        elif name == "allowed_ip" and draft.peers:
            _add_allowed(draft, value)
        elif name in draft.seen:
            raise _malformed(f"{name} stands twice")
        elif draft.peers and name in _PEER_LINES:
            draft.peers[-1] = _peer_line(draft.peers[-1], name, value)
        elif not draft.peers and name in _DEVICE_LINES:
            draft.state = _device_line(draft.state, name, value)
        else:
            raise _malformed(f"the line {name[:40]!r} is unknown or out of place")
        draft.seen.add(name)
    if len({peer.public_key for peer in draft.peers}) != len(draft.peers):
        raise _malformed("a peer stands twice")
    return replace(draft.state, peers=tuple(draft.peers))


def _device_line(state: DeviceState, name: str, value: str) -> DeviceState:
    match name:
        case "private_key":
            return replace(state, private_key=_hex(name, value))
        case "listen_port":
            return replace(state, port=_number(name, value, below=1 << 16))
        case _:
            _number(name, value, below=1 << 32)
            return state


def _peer_line(peer: PeerState, name: str, value: str) -> PeerState:
    match name:
        case "preshared_key":
            return replace(peer, preshared_key=_hex(name, value))
        case "endpoint":
            return replace(peer, endpoint=_endpoint(value))
        case "last_handshake_time_sec":
            return replace(peer, last_handshake=_number(name, value))
        case "rx_bytes":
            return replace(peer, received=_number(name, value))
        case "tx_bytes":
            return replace(peer, sent=_number(name, value))
        case _:
            _number(name, value)
            return peer


def _add_allowed(draft: _Draft, value: str) -> None:
    peer = draft.peers[-1]
    if len(peer.allowed) == _MAX_ALLOWED:
        raise _malformed(f"a peer with more than {_MAX_ALLOWED} networks")
    try:
        network = ip_network(value, strict=True)
    except ValueError as error:
        raise _malformed(f"allowed_ip {value[:64]!r}") from error
    draft.peers[-1] = replace(peer, allowed=(*peer.allowed, network))


def _lines(data: bytes) -> Iterator[tuple[str, str]]:
    """The lines of an answer without its end, which must be ``errno=0`` and an empty line."""
    try:
        text = data.decode("ascii")
    except UnicodeDecodeError as error:
        raise _malformed("bytes that are not ASCII") from error
    if len(data) > LIMIT or not text.endswith("\n\n"):
        raise _malformed(f"{len(data)} bytes without an end")
    *lines, last = text[:-2].split("\n")
    name, equals, value = last.partition("=")
    if name + equals != "errno=":
        raise _malformed("no errno at its end")
    if value != "0":
        raise _silent(f"errno {value[:_MAX_DIGITS]}")
    yield from _pairs(lines)


def _pairs(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    for line in lines:
        name, equals, value = line.partition("=")
        if not equals:
            raise _malformed(f"the line {line[:40]!r} has no value")
        yield name, value


def _hex(name: str, value: str) -> bytes:
    # bytes.fromhex would skip blanks.
    if len(value) != 2 * KEY_SIZE or not set(value) <= set("0123456789abcdef"):
        raise _malformed(f"{name} is not {KEY_SIZE} bytes in hex")
    return bytes.fromhex(value)


def _number(name: str, value: str, *, below: int = 1 << 64) -> int:
    if len(value) > _MAX_DIGITS or not value.isdecimal():
        raise _malformed(f"{name} is not a number")
    if int(value) >= below:
        raise _malformed(f"{name} is {value}, not below {below}")
    return int(value)


def _endpoint(value: str) -> Endpoint:
    try:
        return Endpoint.parse(value)
    except NetworkError as error:
        raise _malformed(f"endpoint: {error.what}") from error


def _exchange(path: str, request: bytes) -> bytes:
    """Send a request, and read until the empty line that ends every answer."""
    answer = bytearray()
    try:
        with closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as connection:
            connection.settimeout(TIMEOUT_SECONDS)
            connection.connect(path)
            connection.sendall(request)
            while not answer.endswith(b"\n\n"):
                part = connection.recv(1 << 16)
                if not part:
                    raise _silent("the connection was closed before the answer was complete")
                answer += part
                if len(answer) > LIMIT:
                    raise _malformed(f"more than {LIMIT} bytes")
    except OSError as error:
        raise _silent(str(error)) from error
    return bytes(answer)


def _malformed(what: str) -> NetworkError:
    return NetworkError("ST-NETW-015", what, "WireGuard engine")


def _silent(what: str) -> NetworkError:
    return NetworkError("ST-NETW-013", what, "WireGuard engine")
