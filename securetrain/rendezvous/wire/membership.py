# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The membership: who is in a round, signed by the coordinator.

What a member checks, in order:

1. the envelope is signed by the key of the coordinator that it authenticated (ST-ADMN-006);
2. it is about this job and this policy, by this coordinator (ST-ADMN-006);
3. its epoch is greater than every epoch seen before, so an old membership cannot come back
   (ST-ADMN-006);
4. ranks are 0, 1, 2 and so on; names, keys and WireGuard keys are unique, addresses are addresses,
   and all members have a WireGuard key or none has (ST-ADMN-006);
5. the member's own entry is, field by field, what it sent (ST-ADMN-009);
6. what it says about evicted nodes is of earlier epochs and times (ST-ADMN-006).

One that is *staffed* names every member's workers. Where a node could not say so before the round
was complete, the same membership comes once more (`verify_staffed`), and nothing but the workers of
such nodes may differ. Ranks are computed from it (`ranks`).
"""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from ipaddress import ip_address
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from securetrain.core import canonical
from securetrain.core.errors import AdmissionError, SecureTrainError
from securetrain.core.vocabulary import NodeTier
from securetrain.identity import dsse
from securetrain.identity.keys import PrivateKey, PublicKey
from securetrain.rendezvous.wire.protocol import (
    DOCUMENT_LIMIT,
    MAX_EVICTED,
    MAX_SHOWN,
    Address,
    Count,
    Digest,
    Epoch,
    Floor,
    Name,
    NumWorkers,
    Port0,
    WireGuardText,
    WorkerRole,
)

PAYLOAD_TYPE: Final = "application/vnd.securetrain.membership+json"


class Member(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One node of a round."""

    rank: Count
    node: Name
    certificate: Digest
    """SHA-256 of the node's certificate (DER)."""
    tier: NodeTier
    result: Digest
    """SHA-256 of the node's attestation result."""
    address: Address
    local_world: NumWorkers
    """0 until the node has said."""
    role: WorkerRole = ""
    """Empty until the node has said."""
    wireguard: WireGuardText = ""
    wireguard_port: Port0 = 0

    @property
    def is_staffed(self) -> bool:
        """Tell whether the node has said what workers it runs."""
        return bool(self.local_world and self.role)


class Evicted(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A node of an earlier epoch that is not believed any more, and since when."""

    node: Name
    code: Annotated[str, Meta(pattern=r"^ST-[A-Z]{4}-\d{3}\Z")]
    """What it was evicted with."""
    last_good: Annotated[datetime, Meta(tz=True)]
    """When it was last challenged and its evidence accepted: until then it is believed."""
    epoch: Epoch
    """The last epoch that it was a member of."""
    led: bool
    """Whether it was rank 0 in an epoch, which signs checkpoints: their times are its word then."""


class Shown(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The newest checkpoint that a node has seen; it proves itself, whoever shows it."""

    node: Name
    """The first one that showed it."""
    floor: Floor


class Membership(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The document."""

    job: Name
    coordinator: str
    """The coordinator's SPIFFE id."""
    epoch: Epoch
    """Grows with every membership of the job, over restarts of the coordinator too."""
    round: Count
    policy: Digest
    issued: datetime
    members: tuple[Member, ...]
    evicted: Annotated[tuple[Evicted, ...], Meta(max_length=MAX_EVICTED)] = ()
    """The job's evictions, oldest first. Times are the coordinator's."""
    floors: Annotated[tuple[Shown, ...], Meta(max_length=MAX_SHOWN)] = ()
    """What nodes showed each other (`gossip`); nobody has judged it."""

    def entry(self, node: str) -> Member | None:
        """The entry of a node, if it is in."""
        return next((member for member in self.members if member.node == node), None)

    @property
    def is_staffed(self) -> bool:
        """Tell whether every node has said what workers it runs."""
        return all(member.is_staffed for member in self.members)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """A member's own knowledge before it reads a membership."""

    job: str
    coordinator: str
    key: PublicKey
    """The coordinator's key, from the certificate of this connection."""
    policy: str
    epoch: int
    """The last epoch seen; -1 before the first."""
    node: str
    certificate: str
    results: Mapping[str, NodeTier]
    """Digests of this node's attestation results: the latest, and the one before it, which may
    still stand in a membership that was on its way during a renewal."""
    address: str
    local_world: int
    role: str = ""
    wireguard: str = ""
    wireguard_port: int = 0


def digest_of(membership: Membership) -> str:
    """SHA-256 (hex) of what makes an epoch this one: no other coordinator makes the same.

    Without what a coordinator does not keep, or may say later: floors, and the members' workers.
    """
    members = tuple(
        msgspec.structs.replace(member, local_world=0, role="") for member in membership.members
    )
    bare = msgspec.structs.replace(membership, members=members, floors=())
    return hashlib.sha256(canonical.encode(bare)).hexdigest()


def sign_membership(membership: Membership, key: PrivateKey) -> str:
    """A DSSE envelope, as it travels in a Formed message."""
    return dsse.sign(canonical.encode(membership), PAYLOAD_TYPE, [key], classical=True).decode()


def verify_membership(envelope: str, expected: Expected) -> Membership:
    """Check a membership that came from the coordinator; see the module.

    Raises:
        AdmissionError: ST-ADMN-006 or ST-ADMN-009.
    """
    membership = _signed(envelope, expected.key)
    for name, found, wanted in (
        ("job", membership.job, expected.job),
        ("coordinator", membership.coordinator, expected.coordinator),
        ("policy", membership.policy, expected.policy),
    ):
        if found != wanted:
            raise _refused(f"{name} is {found}, not {wanted}")
    if membership.epoch <= expected.epoch:
        raise _refused(f"epoch {membership.epoch} after epoch {expected.epoch}: it goes back")
    _check_members(membership.members)
    _check_evicted(membership)
    _check_own(membership, expected)
    return membership


def verify_staffed(envelope: str, current: Membership, expected: Expected) -> Membership:
    """Check the membership of an epoch that came once more, with everybody's workers.

    Raises:
        AdmissionError: ST-ADMN-006 or ST-ADMN-009.
    """
    staffed = _signed(envelope, expected.key)
    members = tuple(
        msgspec.structs.replace(now, local_world=was.local_world, role=was.role)
        if not was.is_staffed
        else now
        for was, now in zip(current.members, staffed.members, strict=False)
    )
    if msgspec.structs.replace(staffed, members=members) != current:
        raise _refused(f"epoch {current.epoch} came again, and more than its workers changed")
    if len(staffed.members) != len(current.members) or not staffed.is_staffed:
        raise _refused(f"epoch {current.epoch} came again, and not with everybody's workers")
    _check_own(staffed, expected)
    return staffed


def read_membership(envelope: str, key: PublicKey) -> Membership:
    """Read a membership of the past that a coordinator signed.

    Raises:
        AdmissionError: ST-ADMN-006.
    """
    membership = _signed(envelope, key)
    _check_members(membership.members)
    _check_evicted(membership)
    return membership


def _signed(envelope: str, key: PublicKey) -> Membership:
    try:
        payload = dsse.verify(envelope.encode(), PAYLOAD_TYPE, {key.key_id: key})
        return canonical.decode(payload.data, Membership, limit=DOCUMENT_LIMIT, canonical=True)
    except SecureTrainError as error:
        raise _refused(f"{error.code}: {error.what}") from error


def _check_members(members: tuple[Member, ...]) -> None:
    if [member.rank for member in members] != list(range(len(members))):
        raise _refused("the ranks are not 0, 1, 2 and so on")
    for name, values in (
        ("node name", [member.node for member in members]),
        ("certificate", [member.certificate for member in members]),
        ("WireGuard key", [member.wireguard for member in members if member.wireguard]),
    ):
        if len(set(values)) != len(values):
            raise _refused(f"a {name} stands in it twice")
    for member in members:
        try:
            ip_address(member.address)
        except ValueError as error:
            raise _refused(f"the address of {member.node} is none: {error}") from error
    if len({bool(member.wireguard) for member in members}) > 1:
        raise _refused("some members have a WireGuard key and some have none")


def _check_evicted(membership: Membership) -> None:
    for gone in membership.evicted:
        if gone.epoch >= membership.epoch or gone.last_good > membership.issued:
            raise _refused(f"{gone.node} was evicted from epoch {gone.epoch}, which is yet to come")


def _check_own(membership: Membership, expected: Expected) -> None:
    own = membership.entry(expected.node)
    if own is None:
        raise _not_mine(f"{expected.node} is not in it")
    if expected.results.get(own.result) is not own.tier:
        raise _not_mine(f"the attestation result {own.result[:16]} ({own.tier}) is not its own")
    for name in ("certificate", "address", "local_world", "role", "wireguard", "wireguard_port"):
        found, wanted = getattr(own, name), getattr(expected, name)
        if found != wanted:
            raise _not_mine(f"{name} is {found!r}, this node sent {wanted!r}")


def _refused(what: str) -> AdmissionError:
    return AdmissionError("ST-ADMN-006", what, "membership")


def _not_mine(what: str) -> AdmissionError:
    return AdmissionError("ST-ADMN-009", what, "membership")


def gather(shown: Mapping[str, Sequence[bytes]]) -> tuple[Shown, ...]:
    """Gather what a membership says of the newest checkpoints that nodes saw.

    A node whose disk was put back to an older state cannot know it; the others can. Rules:

    1. with every Ready a node shows at most `MAX_FLOORS` floors of at most `FLOOR_LIMIT` bytes. To
       the rendezvous they are bytes: it neither opens nor believes them, so that nothing in this
       room needs to know what a checkpoint is, and no lie of one node can change what another one
       is told;
    2. the coordinator hands on each of them once, with the first node that showed it, in the signed
       membership: at most `MAX_SHOWN`. When there are more, every node's first ones come before the
       second ones, and what more nodes showed comes first. Honest nodes mostly show the same bytes;
    3. a node judges what it is told by its own trust root, in its launcher (`launch.head_tracker`):
       a floor that is not proven raises nothing, and nothing that anybody says lowers one.

    Args:
        shown: What each node showed, by its name.
    """
    nodes = sorted(shown)
    count = Counter(floor for node in nodes for floor in dict.fromkeys(shown[node]))
    first: dict[bytes, tuple[int, str]] = {}
    for node in nodes:
        for place, floor in enumerate(shown[node]):
            if floor not in first or place < first[floor][0]:
                first[floor] = place, node
    order = sorted(first, key=lambda floor: (first[floor][0], -count[floor], floor))
    return tuple(Shown(node=first[floor][1], floor=floor) for floor in order[:MAX_SHOWN])
