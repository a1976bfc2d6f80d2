# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Scales and levels that a few bad values cannot move: medians over rolling windows.

- `Scale`: how far apart honest ranks are. For each rank a high quantile of its accepted
  deviations in the last steps (tails matter: log-distances have heavier ones than a normal), then
  the median over the ranks (a minority that stays just below the limit does not widen it). Never
  below a floor; before enough values exist, never below a prior.
- `Level`: where a number should be, from its own past: the median of its last values. Values
  enter clipped, so that one bad value moves nothing and a lasting change is learned.

All state is plain numbers, so that it can stand in a checkpoint.
"""

import math
import statistics
from typing import Final

import msgspec
from torch import Tensor

_TAILS: Final = ((0.9, 1.645), (0.965, 2.11))
"""Quantiles of the absolute deviations, and the same of a standard normal."""
_SCALE_VALUES: Final = 32
_SCALE_READY: Final = 5
_LEVEL_VALUES: Final = 9
_LEVEL_RESIDUALS: Final = 32
_LEVEL_READY: Final = 5
_CLIP: Final = 3.0


class LevelState(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The numbers of one level."""

    values: list[float] = []
    residuals: list[float] = []


class Scale:
    """Spread of a quantity whose honest centre is zero.

    Args:
        floor: the smallest scale ever used.
        prior: the smallest scale used while calibrating.
        ranks: size of the group.
    """

    def __init__(self, floor: float, prior: float, ranks: int) -> None:
        self._floor = floor
        self._prior = prior
        self.values: list[list[float]] = [[] for _ in range(ranks)]

    def get(self, *, calibrating: bool) -> float:
        """The scale to divide by."""
        floor = self._prior if calibrating else self._floor
        tails = [_tail(values) for values in self.values if len(values) >= _SCALE_READY]
        if not tails:
            return max(floor, self._prior)
        return max(floor, statistics.median(tails))

    def add(self, rank: int, value: float) -> None:
        """Learn from an accepted value."""
        self.values[rank] = [*self.values[rank], abs(value)][-_SCALE_VALUES:]


def _tail(values: list[float]) -> float:
    ordered = sorted(values)
    return max(
        ordered[math.ceil(quantile * len(values)) - 1] / normal for quantile, normal in _TAILS
    )


class Level:
    """A number against its own past.

    Args:
        floor: the smallest scale ever used.
        prior: the smallest scale used while calibrating.
    """

    def __init__(self, floor: float, prior: float) -> None:
        self._floor = floor
        self._prior = prior
        self.state = LevelState()

    def z(self, value: float, *, calibrating: bool) -> float:
        """Signed robust z of `value`; 0 until there is a past to compare with."""
        if len(self.state.values) < _LEVEL_READY:
            return 0.0
        return (value - self._center()) / self._scale(calibrating=calibrating)

    def add(self, value: float, *, calibrating: bool) -> None:
        """Learn from a value, clipped to what its past allows."""
        if len(self.state.values) >= _LEVEL_READY:
            center = self._center()
            reach = _CLIP * self._scale(calibrating=calibrating)
            value = min(max(value, center - reach), center + reach)
            self.state.residuals = [*self.state.residuals, abs(value - center)][-_LEVEL_RESIDUALS:]
        self.state.values = [*self.state.values, value][-_LEVEL_VALUES:]

    def _center(self) -> float:
        return statistics.median(self.state.values)

    def _scale(self, *, calibrating: bool) -> float:
        floor = self._prior if calibrating else self._floor
        if not self.state.residuals:
            return max(floor, self._prior)
        return max(floor, _tail(self.state.residuals))


def coordinate_median(rows: Tensor) -> Tensor:
    """Median over the first dimension, the mean of the middle two for an even count."""
    ordered = rows.sort(dim=0).values
    middle = len(rows) // 2
    if len(rows) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2


def against_others(values: list[float]) -> list[float]:
    """Each value minus the median of the *other* values (at least one)."""
    order = sorted(range(len(values)), key=values.__getitem__)
    ordered = [values[i] for i in order]
    upper = (len(values) - 1) // 2
    lower = (len(values) - 2) // 2
    result = [0.0] * len(values)
    for place, i in enumerate(order):
        low = ordered[lower if lower < place else lower + 1]
        high = ordered[upper if upper < place else upper + 1]
        result[i] = values[i] - (low + high) / 2
    return result
