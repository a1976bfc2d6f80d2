# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""One number a step against its own past: all that there is where ranks cannot be compared.

A value's residual is taken from the median of its past. It **leaps** when that is larger than twice
any residual that was not a leap, and than a factor of four (sixteen in the first steps): no
accumulation is needed. What is smaller is bet on as in evidence.py, against the series' own past,
and added up; the bets on less than one deviation are not made, since a training's numbers drift.

Unlike ranks of one step, steps of one rank are exchangeable only where training stands still, so
this evidence refuses steps and names nobody.
"""

import math
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from securetrain.guard.bets import Bets

EARLY: Final = 20
"""Steps in which only coarse limits hold."""
LEAP: Final = math.log(4.0)
EARLY_LEAP: Final = math.log(16.0)
TWICE: Final = 2.0
FORGET: Final = 0.995
_RESIDUALS: Final = 64
_READY: Final = 5
_DEAD: Final = 1.0
_LEAST: Final = 2.0**-12
_CLIP: Final = 3.0
_REACH: Final = math.log(2.0)
"""A value is learned at least as far from its past as this."""
_KEEP: Final = 1.0 - 1.0 / 64
_LARGEST: Final = math.exp(24.0)

Numbers = Annotated[list[float], Meta(max_length=256)]


class Series(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The memory of one number; plain, so that it can stand in a checkpoint."""

    level: Annotated[int, Meta(ge=1, le=64)] = 9
    """Values whose median is the level."""
    lag: Annotated[int, Meta(ge=0, le=64)] = 0
    """Steps that a value waits before it counts."""
    values: Numbers = []
    residuals: Numbers = []
    largest: float = 0.0
    cusum: Numbers = []
    pool: Numbers = []
    count: float = 0.0
    steps: Annotated[int, Meta(ge=0)] = 0

    def observe(self, value: float, bets: Bets) -> tuple[bool, float]:
        """Score a value, and learn it; returns whether it leaps, and the evidence ln E."""
        past = self.values[: max(0, len(self.values) - self.lag)]
        early = self.steps < EARLY
        self.steps += 1
        if len(past) < _READY:
            self._keep(value)
            return False, self.evidence
        residual = value - _median(past)
        bound = max(EARLY_LEAP if early else LEAP, TWICE * self.largest)
        leaps = abs(residual) > bound
        unit = max(1.4826 * _median([abs(x) for x in self.residuals]), _LEAST)
        if len(self.residuals) >= _RESIDUALS // 2:
            z = residual / unit
            self._bet(math.copysign(max(abs(z) - _DEAD, 0.0), z), bets)
        if not leaps:
            self.largest = max(FORGET * self.largest, abs(residual))
        reach = max(_CLIP * unit, _REACH)
        clipped = min(max(residual, -reach), reach)
        self.residuals = [*self.residuals, clipped][-_RESIDUALS:]
        self._keep(value - residual + clipped)
        return leaps, self.evidence

    def copy(self) -> "Series":
        """A twin; lists are replaced when they change, but for these two."""
        return msgspec.structs.replace(self, cusum=[*self.cusum], pool=[*self.pool])

    @property
    def evidence(self) -> float:
        """Ln E, at least zero."""
        mean = sum(self.cusum) / len(self.cusum) if self.cusum else 1.0
        return round(math.log(max(mean, 1.0)) * 1024) / 1024

    def settle(self, most: float) -> None:
        """Cut the evidence to ln E = `most`: new evidence decides what comes next."""
        factor = math.exp(min(0.0, most - self.evidence))
        self.cusum = [one * factor for one in self.cusum]

    def _bet(self, z: float, bets: Bets) -> None:
        powers, shares = bets.powers_of(z), bets.epsilon.tolist()
        if len(self.cusum) != len(powers):
            self.cusum, self.pool, self.count = [1.0] * len(powers), [0.0] * len(powers), 0.0
        for place, power in enumerate(powers):
            epsilon = shares[place]
            # A calm step after restless ones is no evidence either: the mean is at least one.
            mean = max((self.pool[place] + power) / (self.count + 1.0), 1.0)
            factor = 1.0 - epsilon + epsilon * power / mean
            self.cusum[place] = min(max(self.cusum[place], 1.0) * factor, _LARGEST)
            self.pool[place] = _KEEP * self.pool[place] + power
        self.count = _KEEP * self.count + 1.0

    def _keep(self, value: float) -> None:
        self.values = [*self.values, value][-(self.level + self.lag) :]


def _median(values: list[float]) -> float:
    ordered = sorted(values)
    if not ordered:
        return 0.0
    return 0.5 * (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2])
