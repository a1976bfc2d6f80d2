# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Whether the network card encrypts everything that RDMA sends to the other members. Pure.

RDMA is made by the card: the kernel's own IPsec never sees it, and neither does crypto offload,
where the card only helps with the cipher. With full offload (``ip xfrm ... offload packet dev``,
Linux 6.2 and later) the card looks up the policy and makes the packet, RoCE's included. So for this
node and each other member, in both directions, there must be

1. a policy for all their traffic, fully offloaded to the interface of the RDMA port, that demands
   ESP and does not let packets pass without it ("level use");
2. no other policy for any of their traffic that is less: it could come first;
3. a security association with an AEAD, fully offloaded to the same interface.

Anything that is missing is named. That the kernel has a fully offloaded state means that the card's
driver took it (``xdo_dev_state_add``): there is no such state in software.
"""

from collections.abc import Collection
from typing import Final

from securetrain.network.xfrm import Address, Direction, Offload, Policy, State

_ESP: Final = 50


def problem(
    own: Address,
    members: Collection[Address],
    interface: int,
    states: Collection[State],
    policies: Collection[Policy],
) -> str:
    """Why not everything between this node and the members is encrypted; empty when it is.

    Args:
        own: This node's address.
        members: Those of the other members.
        interface: The index of the RDMA port's interface.
        states: All security associations of the kernel.
        policies: All its policies.
    """
    missing = [
        f"{source} to {destination}: {what}"
        for member in sorted(members, key=str)
        for direction, source, destination in (
            (Direction.OUT, own, member),
            (Direction.IN, member, own),
        )
        for what in (
            _policy_problem(direction, source, destination, interface, policies),
            _state_problem(direction, source, destination, interface, states),
        )
        if what
    ]
    return "; ".join(missing)


def _policy_problem(
    direction: Direction,
    source: Address,
    destination: Address,
    interface: int,
    policies: Collection[Policy],
) -> str:
    about = [
        policy
        for policy in policies
        if policy.direction == direction
        and source in policy.source
        and destination in policy.destination
    ]
    if any(not (policy.is_block or _protects(policy, interface)) for policy in about):
        return "a policy lets it pass, or leaves it to software"
    if not any(policy.is_whole and not policy.is_block for policy in about):
        return "no fully offloaded policy for all of it"
    return ""


def _protects(policy: Policy, interface: int) -> bool:
    return (
        bool(policy.templates)
        and all(t.protocol == _ESP and not t.is_optional for t in policy.templates)
        and _is_full(policy.offload, interface)
    )


def _state_problem(
    direction: Direction,
    source: Address,
    destination: Address,
    interface: int,
    states: Collection[State],
) -> str:
    for state in states:
        if (
            (state.source, state.destination, state.protocol) == (source, destination, _ESP)
            and state.is_aead
            and state.offload is not None
            and state.offload.is_inbound is (direction is Direction.IN)
            and _is_full(state.offload, interface)
        ):
            return ""
    return "no fully offloaded security association"


def _is_full(offload: Offload | None, interface: int) -> bool:
    return offload is not None and offload.is_full and offload.interface == interface
