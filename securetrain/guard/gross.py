# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Upward leaps of norm or distance beyond anything seen: there is nothing to accumulate for. Pure.

The bound is a factor of four for the whole gradient and sixteen for one group (a rare batch may do
that), four times as much in the first steps, and never less than twice the largest residual of a
rank that was not gross, which is forgotten slowly.
"""

import copy
import math
from typing import Final

import numpy as np

from securetrain.guard.medians import Floats, Mask, widened
from securetrain.guard.own_past import EARLY, FORGET, TWICE

_WATCHED: Final = 2
"""Norm and distance, the first of the statistics."""
_WHOLE: Final = math.log(4.0)
_GROUP: Final = math.log(16.0)
_EARLY_MORE: Final = math.log(4.0)


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

    def find(self, raw: Floats, live: Mask, steps: int) -> dict[int, tuple[int, int]]:
        """Live ranks beyond the bound, and the slot and statistic that is farthest beyond.

        Args:
            raw: (slots, 4, ranks) residuals.
            live: ranks that are finite and not excluded.
            steps: seen so far.
        """
        leap = np.nan_to_num(raw[:, :_WATCHED], nan=-np.inf)
        first = np.full((len(raw), 1), _GROUP)
        first[0] = _WHOLE
        bound = np.maximum(first + (_EARLY_MORE if steps < EARLY else 0.0), TWICE * self.largest)
        beyond = np.where(live, leap - bound[..., None], -np.inf)
        gross = (beyond > 0).any(axis=(0, 1))
        calm = np.where(np.isfinite(leap) & live & ~gross, np.abs(leap), 0.0)
        self.largest = np.maximum(FORGET * self.largest, calm.max(axis=-1))
        found = {}
        for rank in np.flatnonzero(gross):
            slot, statistic = divmod(int(beyond[..., rank].argmax()), _WATCHED)
            found[int(rank)] = (slot, statistic)
        return found
