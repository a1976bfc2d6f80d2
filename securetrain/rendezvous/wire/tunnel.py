# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The rendezvous' side of the job network: what nodes announce of their tunnels, and what they get.

Rules:

1. a node announces its WireGuard key and UDP port in Hello, both or none. The key is in its
   evidence (`evidence.binding`), so that nobody can put another one in its place;
2. all nodes of a job have a tunnel or none has: the first that joins decides, and under a policy
   that accepts nothing but overlays each must have one (ST-NETW-001). Their profiles are the same,
   or one node's NCCL would speak TLS or RDMA and another's would not; RDMA, and no network at all
   (store-tls), are for policies that name them;
3. every epoch has a secret of its own, which never leaves the coordinator's memory. A member gets
   the pre-shared keys of its own pairs, and NCCL's for all, beside the signed membership; nobody
   else gets them;
4. overlay addresses are derived from job and rank on every side: nobody hands them out;
5. a member applies an epoch before it opens or contacts that epoch's store, and does both from
   inside the job network. When it asks for the next epoch it stops hearing the members of the last
   one. Its connection to the coordinator stays outside.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address

from securetrain.core.errors import AdmissionError, NetworkError
from securetrain.core.vocabulary import NetworkProfile
from securetrain.identity.keys import PrivateKey
from securetrain.network import TUNNELLED, VERBS, OverlayMember, address, group_key
from securetrain.network.overlay import Overlay
from securetrain.network.wireguard import (
    KEY_SIZE,
    Endpoint,
    decode_key,
    encode_key,
    pairwise_psk,
)
from securetrain.policy.schema import Network
from securetrain.rendezvous.wire.meaning import check_key
from securetrain.rendezvous.wire.membership import Membership, sign_membership
from securetrain.rendezvous.wire.protocol import Formed, Hello

Keys = Mapping[str, str]
"""Pre-shared keys (base64) by the other node's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tunnel:
    """A node's end: its part of the job network, as a `rendezvous.member.client.Member` uses it."""

    overlay: Overlay
    endpoint: IPv4Address | IPv6Address
    """This node's address on the underlay, where the others send to."""
    applied: Callable[[Membership, str], None] = lambda _membership, _nccl: None
    """Hears of every epoch that was applied, and of NCCL's key for it, before workers start."""
    profile: NetworkProfile = NetworkProfile.OVERLAY
    """What was achieved here."""

    @property
    def key(self) -> str:
        """The public key, for Hello."""
        return encode_key(self.overlay.plan.key.public)

    @property
    def port(self) -> int:
        """The UDP port, for Hello."""
        return self.overlay.port

    def apply(self, membership: Membership, keys: Keys, nccl: str = "") -> None:
        """Make the members of an epoch the only nodes that this one can talk to.

        Raises:
            NetworkError: as `Overlay.apply`, and what `applied` refuses.
        """
        members = [
            OverlayMember(
                node=member.node,
                public_key=decode_key(member.wireguard, f"public key of {member.node}"),
                endpoint=Endpoint(ip_address(member.address), member.wireguard_port),
                slot=member.rank,
                preshared_key=decode_key(keys[member.node], f"pre-shared key of {member.node}")
                if member.node in keys
                else b"",
            )
            for member in membership.members
        ]
        self.overlay.apply(membership.epoch, members)
        self.applied(membership, nccl)

    def drop(self, nodes: Collection[str]) -> None:
        """Neither hear nor speak to some members of the epoch any more.

        Raises:
            NetworkError: as `Overlay.drop`.
        """
        self.overlay.drop(nodes)

    def clear(self) -> None:
        """Hear nobody until the next epoch: the one before is over for this node.

        Raises:
            NetworkError: as `Overlay.clear`.
        """
        self.overlay.clear()

    def entered(self) -> AbstractContextManager[None]:
        """Put the calling thread into the job network."""
        return self.overlay.namespace.entered()


def store_host(membership: Membership) -> str:
    """The only address at which the store of an epoch may be: rank 0's, in the job network.

    Raises:
        NetworkError: ST-NETW-018 when the job's subnet has no such address.
    """
    first = membership.members[0]
    return str(address(membership.job, first.rank)) if first.wireguard else first.address


def check_hello(hello: Hello) -> None:
    """Refuse what is no tunnel: a key without a port, or what is no key.

    Raises:
        AdmissionError: ST-ADMN-001; ST-ADMN-032 for a key that can be nobody's.
    """
    if bool(hello.wireguard) != bool(hello.wireguard_port):
        raise _malformed("a WireGuard key and its UDP port belong together")
    if bool(hello.wireguard) != (hello.network in TUNNELLED):
        raise _malformed("a tunnel and the network profile that it is for belong together")
    if not hello.wireguard:
        return
    try:
        check_key(decode_key(hello.wireguard))
        Endpoint(ip_address(hello.address), hello.wireguard_port)
    except NetworkError as error:
        raise _malformed(error.what) from error


def require_alike(hello: Hello, others: Collection[Hello], network: Network) -> None:
    """Rule 2.

    Raises:
        AdmissionError: ST-ADMN-001 for an endpoint that another node has.
        NetworkError: ST-NETW-001.
    """
    if not hello.wireguard and TUNNELLED.issuperset(network.require):
        raise _not_alike(hello, "the policy accepts overlays only")
    named = VERBS | {NetworkProfile.STORE_TLS}
    if hello.network in named and hello.network not in network.require:
        raise _not_alike(hello, f"the policy does not accept its profile, {hello.network}")
    for other in others:
        if bool(other.wireguard) != bool(hello.wireguard):
            raise _not_alike(hello, f"{other.node} {'has' if other.wireguard else 'has none'}")
        if other.network is not hello.network:
            why = f"its profile is {hello.network}, that of {other.node} is {other.network}"
            raise _not_alike(hello, why)
        ends = (hello.address, hello.wireguard_port), (other.address, other.wireguard_port)
        if hello.wireguard and ends[0] == ends[1]:
            raise _malformed(f"{other.node} has the same WireGuard endpoint")


def announce(
    membership: Membership, key: PrivateKey, random: Callable[[int], bytes]
) -> Iterator[tuple[str, Formed]]:
    """Announce an epoch to each node: the signed membership, and the keys of its own pairs."""
    signed = sign_membership(membership, key)
    secret = random(KEY_SIZE)
    keys = pair_keys(membership, secret)
    nccl = group_key(secret) if keys else ""
    for member in membership.members:
        yield (
            member.node,
            Formed(membership=signed, preshared=keys.get(member.node, {}), nccl=nccl),
        )


def pair_keys(membership: Membership, secret: bytes) -> dict[str, dict[str, str]]:
    """The pre-shared keys of an epoch, by node: each node's own pairs. Empty without tunnels."""
    public = {
        member.node: decode_key(member.wireguard)
        for member in membership.members
        if member.wireguard
    }
    return {
        one: {
            other: encode_key(pairwise_psk(secret, public[one], public[other]))
            for other in public
            if other != one
        }
        for one in public
    }


def _malformed(what: str) -> AdmissionError:
    return AdmissionError("ST-ADMN-001", what, "Hello.wireguard")


def _not_alike(hello: Hello, why: str) -> NetworkError:
    has = "a" if hello.wireguard else "no"
    return NetworkError(
        "ST-NETW-001", f"{hello.node} has {has} WireGuard tunnel, and {why}", "Hello.wireguard"
    )
