# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The scale of ranks that have data of their own: each is odd only where it is odd for itself too.

A residual is taken against the centre and spread of the rank's own last 64 ones, and what counts is
the smaller of that and of the comparison with the others; nothing where their signs differ (models
lurch, and domains differ for good). The first standard deviation is not evidence: domains drift.
Offsets that are there from the first step, or slower than 64 steps, are learned and not accused.
"""

import copy
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from securetrain.guard.assessment import STATISTICS
from securetrain.guard.bets import CLIP
from securetrain.guard.medians import NORMAL, Floats, Mask, mean_of, median, spread, widened

WINDOW: Final = 64
_DEAD: Final = 1.0
_REFRESH: Final = 4
"""Steps between two looks at the past: medians of 64 steps hardly move."""
_FULL: Final = 160
_LEAST: Final = 2.0**-12
_BROAD: Final = 1


@dataclass(slots=True, kw_only=True)
class OwnMemory:
    """Residuals of the last steps."""

    steps: int = 0
    past: Floats
    """(WINDOW, slots, 4, ranks)"""
    centre: Floats
    """(slots, 4, ranks)"""
    scale: Floats


class OwnScale:
    """Centre and spread of each rank's own past.

    Args:
        ranks: of the group.
    """

    def __init__(self, ranks: int) -> None:
        shape = (2, len(STATISTICS), ranks)
        self.memory = OwnMemory(
            past=np.full((WINDOW, *shape), np.nan),
            centre=np.zeros(shape),
            scale=np.full(shape, _LEAST),
        )

    def temper(self, raw: Floats, z: Floats, base: Mask, groups_from: int) -> tuple[Floats, Floats]:
        """The part of `z` (slots, 4, ranks) that is odd for the rank itself, and what to learn."""
        memory = self.memory
        if memory.steps % _REFRESH == 0 or memory.steps < _FULL:
            self._look_back()
        memory.steps += 1
        own = (raw - memory.centre) / memory.scale
        raw = raw.copy()
        raw[_BROAD] = mean_of(np.clip(own[groups_from:], -CLIP, CLIP))
        own[_BROAD] = (raw[_BROAD] - memory.centre[_BROAD]) / memory.scale[_BROAD]
        own /= np.fmax(1.0, spread(own[..., base]))[..., None]
        own, z = np.clip(own, -CLIP, CLIP), np.clip(z, -CLIP, CLIP)
        least = np.minimum(np.abs(own), np.abs(z))
        agreed = np.where(own * z < 0, 0.0, np.sign(own) * least)  # NaN stays NaN
        return np.sign(agreed) * np.maximum(np.abs(agreed) - _DEAD, 0.0), raw

    def learn(self, raw: Floats, good: Mask) -> None:
        """Residuals (slots, 4, ranks) of a step become the past."""
        place = self.memory.steps % WINDOW
        self.memory.past[place] = np.where(good, raw, np.nan)

    def copy(self) -> "OwnScale":
        """A twin."""
        twin = copy.copy(self)
        twin.memory = replace(self.memory, past=self.memory.past.copy())
        return twin

    def restart(self, past: Floats, steps: int) -> None:
        """Go on from residuals (WINDOW, slots, 4, ranks) of the last steps."""
        shape = past.shape[1:]
        self.memory = OwnMemory(
            steps=steps, past=past, centre=np.zeros(shape), scale=np.full(shape, _LEAST)
        )
        self._look_back()

    def widen(self, fresh: int) -> None:
        """Make room for groups."""
        memory = self.memory
        memory.past = widened(memory.past, 1, fresh, np.nan)
        memory.centre = widened(memory.centre, 0, fresh, 0.0)
        memory.scale = widened(memory.scale, 0, fresh, _LEAST)

    def _look_back(self) -> None:
        memory = self.memory
        memory.centre = np.nan_to_num(median(memory.past, 0))
        around = NORMAL * median(np.abs(memory.past - memory.centre), 0)
        usual = 0.5 * median(around, -1)[..., None]
        memory.scale = np.fmax(np.fmax(around, usual), _LEAST)
