# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""From the members of an epoch to what a node's device is told. Pure.

Rules, all ST-NETW-018 but the last:

1. names, public keys, slots and endpoints are unique: two nodes with one of them could take each
   other's packets;
2. this node is among them, with the key that it announced;
3. a slot is in the job's subnet;
4. every other node has a public key and a pre-shared key that are keys (ST-NETW-017).
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from ipaddress import IPv4Address

from securetrain.core.errors import NetworkError
from securetrain.network.addresses import address
from securetrain.network.wireguard import Endpoint, Peer, encode_key, require_key


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlayMember:
    """A node of an epoch, this one included."""

    node: str
    public_key: bytes
    endpoint: Endpoint
    slot: int
    """Its place in the job's subnet."""
    preshared_key: bytes = field(default=b"", repr=False)
    """The key that this node shares with it in this epoch; empty for this node itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """An epoch, as one node sees it."""

    address: IPv4Address
    """Its own."""
    peers: tuple[Peer, ...]
    hosts: dict[str, IPv4Address]
    """Every node by its name."""


def resolve(job: str, node: str, public_key: bytes, members: Collection[OverlayMember]) -> Epoch:
    """Work out an epoch's peers for the node with this name and key.

    Raises:
        NetworkError: ST-NETW-017, ST-NETW-018.
    """
    for what, values in (
        ("node", [member.node for member in members]),
        ("public key", [encode_key(member.public_key) for member in members]),
        ("slot", [str(member.slot) for member in members]),
        ("endpoint", [str(member.endpoint) for member in members]),
    ):
        if len(set(values)) != len(values):
            raise _contradiction(f"one {what} stands in it twice")
    hosts = {member.node: address(job, member.slot) for member in members}
    keys = {member.node: member.public_key for member in members}
    if keys.get(node) != public_key:
        raise _contradiction(f"{node} is not in it with the key that it announced")
    peers = tuple(
        Peer(
            public_key=require_key(member.public_key, f"public key of {member.node}"),
            preshared_key=require_key(member.preshared_key, f"pre-shared key of {member.node}"),
            endpoint=member.endpoint,
            address=hosts[member.node],
        )
        for member in members
        if member.node != node
    )
    return Epoch(address=hosts[node], peers=peers, hosts=hosts)


def _contradiction(what: str) -> NetworkError:
    return NetworkError("ST-NETW-018", what, "membership")
