# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The ranks of an epoch, computed from its signed membership and from nothing else.

Whoever has the membership gets the same answer: the nodes' order is the members', and the workers
of a node follow those of the nodes before it. Within a role they are counted alike. That is what
torchelastic's agents compute from what they write into a store; here nobody's word for it is taken.
"""

from dataclasses import dataclass

from securetrain.rendezvous.wire.membership import Membership


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRanks:
    """The workers of one node among those of the epoch."""

    node: str
    group_rank: int
    first: int
    """The rank of its first worker; the others follow."""
    num_workers: int
    world_size: int
    role: str
    role_first: int
    """The rank of its first worker among those with the same role."""
    role_world_size: int

    @property
    def ranks(self) -> range:
        """The ranks of its workers."""
        return range(self.first, self.first + self.num_workers)


def node_ranks(membership: Membership) -> tuple[NodeRanks, ...]:
    """The ranks of every node, in the members' order.

    A node that has not said what it runs counts as one worker without a role: see
    `Membership.is_staffed`.
    """
    staff = [(member, max(1, member.local_world)) for member in membership.members]
    world = sum(number for _, number in staff)
    sizes: dict[str, int] = {}
    for member, number in staff:
        sizes[member.role] = sizes.get(member.role, 0) + number
    found, first = [], 0
    seen: dict[str, int] = {}
    for member, number in staff:
        found.append(
            NodeRanks(
                node=member.node,
                group_rank=member.rank,
                first=first,
                num_workers=number,
                world_size=world,
                role=member.role,
                role_first=seen.get(member.role, 0),
                role_world_size=sizes[member.role],
            )
        )
        first += number
        seen[member.role] = seen.get(member.role, 0) + number
    return tuple(found)


def node_of(membership: Membership, rank: int) -> str:
    """The node that runs a worker's rank.

    Raises:
        LookupError: no node does.
    """
    for found in node_ranks(membership):
        if rank in found.ranks:
            return found.node
    raise LookupError(f"epoch {membership.epoch} has no rank {rank}")


def ranks_of(membership: Membership, node: str) -> range:
    """The ranks of a node's workers.

    Raises:
        LookupError: it is not a member.
    """
    for found in node_ranks(membership):
        if found.node == node:
            return found.ranks
    raise LookupError(f"{node} is not a member of epoch {membership.epoch}")
