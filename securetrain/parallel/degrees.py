# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""How many ranks each mesh axis has: plain numbers, checked against the world before any group is
made. Free of torch, so that a job file can be checked anywhere.

Rules: every degree is at least one; their product is the number of processes; one axis may be left
open and takes what the others leave; every refusal says why and names the nearest choice that
works.
"""

from dataclasses import dataclass
from enum import StrEnum

from securetrain.core.errors import UsageError


class Axis(StrEnum):
    """The names of mesh axes, outermost first."""

    DP_REPLICATE = "dp_replicate"
    DP_SHARD = "dp_shard"


@dataclass(frozen=True, slots=True, kw_only=True)
class Degrees:
    """Ranks along each axis."""

    dp_replicate: int = 1
    """Copies of the model that see different rows."""
    dp_shard: int = 1
    """Ranks that share one copy's parameters, gradients and optimizer state."""

    def __post_init__(self) -> None:
        for axis in Axis:
            if (degree := self.degree(axis)) < 1:
                raise ValueError(f"{axis} is {degree}; a degree is at least 1")

    def degree(self, axis: Axis) -> int:
        """The number of ranks along one axis."""
        degree: int = getattr(self, axis.value)
        return degree

    @property
    def dp(self) -> int:
        """Ranks that see different rows."""
        return self.dp_replicate * self.dp_shard

    @property
    def world(self) -> int:
        """Processes in all."""
        return self.dp

    def __str__(self) -> str:
        return ", ".join(f"{axis} {self.degree(axis)}" for axis in Axis)


def fit(*, dp_replicate: int, dp_shard: int | None, world: int, where: str) -> Degrees:
    """The degrees for `world` processes; `dp_shard` None takes what `dp_replicate` leaves.

    Args:
        dp_replicate: Copies of the model.
        dp_shard: Ranks that share one copy, or None.
        world: How many processes there are.
        where: The file that asked, for the message.

    Raises:
        UsageError: ST-USAG-007 with the reason and the nearest valid choice.
    """
    if dp_replicate < 1 or (dp_shard is not None and dp_shard < 1):
        raise _bad(
            f"dp_replicate {dp_replicate}, dp_shard {dp_shard}: a degree is at least 1",
            where,
            f"dp_replicate: 1 and dp_shard: {world}",
        )
    if world % dp_replicate:
        nearest = nearest_divisor(world, dp_replicate)
        raise _bad(
            f"dp_replicate {dp_replicate} does not divide {world} processes",
            where,
            f"dp_replicate: {nearest} and dp_shard: {world // nearest},"
            f" or start a multiple of {dp_replicate} processes",
        )
    left = world // dp_replicate
    if dp_shard is None:
        return Degrees(dp_replicate=dp_replicate, dp_shard=left)
    if dp_shard != left:
        raise _bad(
            f"dp_replicate {dp_replicate} x dp_shard {dp_shard} is {dp_replicate * dp_shard}"
            f" ranks, but there are {world} processes",
            where,
            f"dp_shard: {left}, or start {dp_replicate * dp_shard} processes",
        )
    return Degrees(dp_replicate=dp_replicate, dp_shard=dp_shard)


def nearest_divisor(number: int, wanted: int) -> int:
    """The divisor of `number` closest to `wanted` (the smaller of two that are equally close)."""
    divisors = [n for n in range(1, number + 1) if number % n == 0]
    return min(divisors, key=lambda n: (abs(n - wanted), n))


def _bad(what: str, where: str, fix: str) -> UsageError:
    return UsageError("ST-USAG-007", what, f"{where}: parallel", fix)
