# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The check that the network card encrypts all RDMA traffic to the other members. Pure.

RDMA is made by the card: the kernel's own IPsec never sees it, and neither does crypto offload,
where the card only helps with the cipher. With full offload (``ip xfrm ... offload packet dev``,
Linux 6.2 and later) the card looks up the policy and makes the packet, RoCE's included. So for this
node and each other member, in both directions, there must be

1. a policy for all their traffic, fully offloaded to the interface of the RDMA port, that demands
   ESP and does not let packets pass without it ("level use");
2. no other policy for any of their traffic that is less: it could come first;
3. a security association that this policy uses, fully offloaded to the same interface, whose
   cipher encrypts: AES-GMAC (RFC 4543) looks like an AEAD and leaves every byte in the clear.

Anything that is missing is named. That the kernel has a fully offloaded state means that the card's
driver took it (``xdo_dev_state_add``): there is no such state in software.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

from securetrain.network.xfrm import Address, Direction, Offload, Policy, State

_ESP: Final = 50
_CIPHERS: Final = frozenset({"rfc4106(gcm(aes))", "rfc7539esp(chacha20,poly1305)"})
_ANY: Final = bytes(16)


def problem(
    local: Address,
    members: Collection[Address],
    interface: int,
    states: Collection[State],
    policies: Collection[Policy],
) -> str:
    """Explain why not everything between this node and the members is encrypted; empty when it is.

    Args:
        local: This node's address.
        members: Those of the other members.
        interface: The index of the RDMA port's interface.
        states: All security associations of the kernel.
        policies: All its policies.
    """
    missing = [
        f"{source} to {destination}: {what}"
        for member in sorted(members, key=str)
        for pair in (
            _Pair(Direction.OUT, local, member, interface),
            _Pair(Direction.IN, member, local, interface),
        )
        for source, destination in [(pair.source, pair.destination)]
        for what in _missing(pair, states, policies)
    ]
    return "; ".join(missing)


@dataclass(frozen=True, slots=True)
class _Pair:
    """One direction between this node and a member, and the interface that it takes."""

    direction: Direction
    source: Address
    destination: Address
    interface: int


def _missing(pair: _Pair, states: Collection[State], policies: Collection[Policy]) -> Iterator[str]:
    about = [
        policy
        for policy in policies
        if policy.direction == pair.direction
        and pair.source in policy.source
        and pair.destination in policy.destination
    ]
    if any(not (policy.is_block or _protects(policy, pair)) for policy in about):
        yield "a policy lets it pass, or leaves it to software"
    rules = [policy for policy in about if policy.is_whole and _protects(policy, pair)]
    if not rules:
        yield "no fully offloaded policy for all of it"
    ready = [state for state in states if _encrypts(state, pair)]
    used = [
        all(template.reqid in {0, state.reqid} for template in policy.templates)
        for policy in rules
        for state in ready
    ]
    if not ready or (rules and not any(used)):
        yield "no fully offloaded security association that encrypts it"


def _protects(policy: Policy, pair: _Pair) -> bool:
    """Return whether no packet between the two passes this policy in the clear."""
    return (
        not policy.is_block
        and bool(policy.templates)
        and all(
            template.protocol == _ESP
            and not template.is_optional
            and template.source in {_ANY, _raw(pair.source)}
            and template.destination in {_ANY, _raw(pair.destination)}
            for template in policy.templates
        )
        and _is_full(policy.offload, pair.interface)
    )


def _encrypts(state: State, pair: _Pair) -> bool:
    return (
        (state.source, state.destination) == (pair.source, pair.destination)
        and state.protocol == _ESP
        and state.cipher in _CIPHERS
        and state.is_plain
        and state.offload is not None
        and state.offload.is_inbound is (pair.direction is Direction.IN)
        and _is_full(state.offload, pair.interface)
    )


def _raw(address: Address) -> bytes:
    """An address as the kernel keeps it (xfrm_address_t)."""
    return address.packed.ljust(16, b"\0")


def _is_full(offload: Offload | None, interface: int) -> bool:
    return offload is not None and offload.is_full and offload.interface == interface
