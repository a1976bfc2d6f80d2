# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The number of ranks on each mesh axis: plain numbers, checked against the world before any group
is made. Free of torch, so that a job file can be checked anywhere.

Rules:

1. every degree is at least one; the product of all but `ep` is the number of processes; `dp_shard`
   may be left open and takes what the others leave;
2. experts have no ranks of their own: `ep` divides dp_shard x cp x tp, whose ranks it borrows;
3. every refusal says why and names the nearest choice that works.
"""

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from securetrain.core.errors import UsageError


class Axis(StrEnum):
    """The names of mesh axes, outermost first; the last one borrows ranks of those before it."""

    PP = "pp"
    DP_REPLICATE = "dp_replicate"
    DP_SHARD = "dp_shard"
    CP = "cp"
    TP = "tp"
    EP = "ep"


RANKED: Final = (Axis.PP, Axis.DP_REPLICATE, Axis.DP_SHARD, Axis.CP, Axis.TP)
"""The axes whose degrees multiply to the world."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Degrees:
    """Ranks along each axis."""

    pp: int = 1
    """Pipeline ranks: each holds some of the layers."""
    dp_replicate: int = 1
    """Copies of the model that see different rows."""
    dp_shard: int = 1
    """Ranks that share one copy's parameters, gradients and optimizer state."""
    cp: int = 1
    """Ranks that share the positions of a row."""
    tp: int = 1
    """Ranks that share each matrix, and between matrices the positions."""
    ep: int = 1
    """Ranks that share the experts of a layer."""

    def __post_init__(self) -> None:
        for axis in Axis:
            if (degree := self.degree(axis)) < 1:
                raise ValueError(f"{axis} is {degree}; a degree is at least 1")
        if self.fsdp * self.tp % self.ep:
            raise ValueError(f"ep {self.ep} does not divide dp_shard x cp x tp")

    def degree(self, axis: Axis) -> int:
        """The number of ranks along one axis."""
        degree: int = getattr(self, axis.value)
        return degree

    @property
    def dp(self) -> int:
        """Ranks that see different rows."""
        return self.dp_replicate * self.dp_shard

    @property
    def fsdp(self) -> int:
        """Ranks over which parameters are cut: context-parallel ranks hold the same weights."""
        return self.dp_shard * self.cp

    @property
    def efsdp(self) -> int:
        """Ranks over which each expert is cut."""
        return self.fsdp * self.tp // self.ep

    @property
    def world(self) -> int:
        """Processes in all."""
        return math.prod(self.degree(axis) for axis in RANKED)

    def __str__(self) -> str:
        shown = [axis for axis in Axis if self.degree(axis) > 1]
        return ", ".join(f"{axis} {self.degree(axis)}" for axis in shown) or "one rank"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedDegrees:
    """Degrees as somebody asked for them: `dp_shard` may be open, nothing is checked yet."""

    pp: int = 1
    dp_replicate: int = 1
    dp_shard: int | None = None
    cp: int = 1
    tp: int = 1
    ep: int = 1


def resolve_degrees(wanted: RequestedDegrees, *, world: int, where: str) -> Degrees:
    """The degrees for `world` processes; an open `dp_shard` takes what the others leave.

    Args:
        wanted: The request.
        world: How many processes there are.
        where: The file that asked, for the message.

    Raises:
        UsageError: ST-USAG-007 with the reason and the nearest valid choice.
    """
    others = {
        Axis.PP: wanted.pp, Axis.DP_REPLICATE: wanted.dp_replicate, Axis.CP: wanted.cp,
        Axis.TP: wanted.tp,
    }  # fmt: skip
    shard = wanted.dp_shard
    for axis, degree in (*others.items(), (Axis.DP_SHARD, shard), (Axis.EP, wanted.ep)):
        if degree is not None and degree < 1:
            raise _bad(f"{axis} {degree}: a degree is at least 1", where, f"{axis}: 1")
    product = math.prod(others.values())
    named = " x ".join(f"{a} {n}" for a, n in others.items() if n > 1) or "1"
    if world % product:
        raise _bad(
            f"{named} is {product}, which does not divide {world} processes",
            where,
            f"{_nearest(others, world)}, or start a multiple of {product} processes",
        )
    left = world // product
    if shard is not None and shard != left:
        raise _bad(
            f"{named} x dp_shard {shard} is {product * shard} ranks, but there are {world}"
            " processes",
            where,
            f"dp_shard: {left}, or start {product * shard} processes",
        )
    borrowed = left * wanted.cp * wanted.tp
    if borrowed % wanted.ep:
        raise _bad(
            f"ep {wanted.ep} does not divide dp_shard {left} x cp {wanted.cp} x tp {wanted.tp}"
            f" = {borrowed}, whose ranks the experts are spread over",
            where,
            f"ep: {nearest_divisor(borrowed, wanted.ep)}",
        )
    return Degrees(
        pp=wanted.pp,
        dp_replicate=wanted.dp_replicate,
        dp_shard=left,
        cp=wanted.cp,
        tp=wanted.tp,
        ep=wanted.ep,
    )


def nearest_divisor(number: int, wanted: int) -> int:
    """The divisor of `number` closest to `wanted` (the smaller of two that are equally close)."""
    divisors = [n for n in range(1, number + 1) if number % n == 0]
    return min(divisors, key=lambda n: (abs(n - wanted), n))


def _nearest(others: dict[Axis, int], world: int) -> str:
    """Degrees that divide the world, innermost first: those are the dearest to change."""
    left, found = world, {}
    for axis in (Axis.TP, Axis.CP, Axis.PP, Axis.DP_REPLICATE):
        found[axis] = nearest_divisor(left, others[axis])
        left //= found[axis]
    changed = [f"{axis}: {n}" for axis, n in found.items() if n != others[axis]]
    return f"{', '.join(changed)} and dp_shard: {left}"


def _bad(what: str, where: str, fix: str) -> UsageError:
    return UsageError("ST-USAG-007", what, f"{where}: parallel", fix)
