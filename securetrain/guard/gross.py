# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Upward leaps of norm or distance beyond anything seen: there is nothing to accumulate for. Pure.

The bound is a factor of six for the whole gradient and sixteen for one group (of 25,600 honest
rank-steps the largest leap was 5.9, and one of 4.6 came after so calm steps that a bound of four
called it gross), more in the first steps, and never less than twice the largest residual of a rank
that was not gross, which is forgotten slowly. Of a leap no more than four times is learned: who
leaps a little higher each time does not raise the bound above sixteen. A gradient that is turned
against the others' is gross at four times, whatever was before (of 49,920 honest rank-steps 607
were turned, and none of these was longer than 3.4 times).
"""

import copy
import math
from typing import Final

import numpy as np

from securetrain.guard.medians import Floats, Mask, widened
from securetrain.guard.own_past import EARLY, FORGET, TWICE

_WATCHED: Final = 2
"""Norm and distance, the first of the statistics."""
_WHOLE: Final = math.log(6.0)
_GROUP: Final = math.log(16.0)
_EARLY_WHOLE: Final = math.log(16.0)
_EARLY_GROUP: Final = math.log(64.0)
_TURNED: Final = math.log(4.0)
TURNED: Final = math.atanh(-0.25)
"""The angle with the others' sum below which a gradient is turned against them."""
_LEARNED: Final = math.log(4.0)
"""The most that is learned of a leap of the whole gradient."""


class Gross:
    """The largest honest residuals."""

    def __init__(self, slots: int) -> None:
        self.largest: Floats = np.zeros((slots, _WATCHED))

    def widen(self, slots: int) -> None:
        """Make room for groups."""
        self.largest = widened(self.largest, 0, slots - len(self.largest), 0.0)

    def copy(self) -> "Gross":
        """A twin; the table is never written in place."""
        return copy.copy(self)

    def find(self, raw: Floats, live: Mask, steps: int, turned: Mask) -> dict[int, tuple[int, int]]:
        """Live ranks beyond the bound, and the slot and statistic that is farthest beyond.

        Args:
            raw: (slots, 4, ranks) residuals.
            live: ranks that are finite and not excluded.
            steps: seen so far.
            turned: ranks whose whole gradient is turned against the others'.
        """
        leap = np.nan_to_num(raw[:, :_WATCHED], nan=-np.inf)
        first = np.full((len(raw), 1), _EARLY_GROUP if steps < EARLY else _GROUP)
        first[0] = _EARLY_WHOLE if steps < EARLY else _WHOLE
        bound = np.repeat(np.maximum(first, TWICE * self.largest)[..., None], len(live), axis=2)
        if steps >= EARLY:
            bound[0, :, turned] = _TURNED
        beyond = np.where(live, leap - bound, -np.inf)
        gross = (beyond > 0).any(axis=(0, 1))
        calm = np.where(np.isfinite(leap) & live & ~gross, np.abs(leap), 0.0)
        calm[0] = np.minimum(calm[0], _LEARNED)
        self.largest = np.maximum(FORGET * self.largest, calm.max(axis=-1))
        found = {}
        for rank in np.flatnonzero(gross):
            slot, statistic = divmod(int(beyond[..., rank].argmax()), _WATCHED)
            found[int(rank)] = (slot, statistic)
        return found
