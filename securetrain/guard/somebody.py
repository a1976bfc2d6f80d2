# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Evidence that somebody lies, where another rank does so in each step. Pure.

A rotating liar leaves no evidence on any rank, but in each step one rank is turned farther away
from the others and from the momentum than the most turned of honest ranks usually is. So the step's
gap, between that rank and the mean of the rest, is a number of its own (`z` of cosine and momentum,
mean over all groups). It is compared with its last 64 values, which wait 48 steps until they count
(a liar of the last minute is not yet the usual), bet on as in evidence.py, upwards only and in each
step, and added up. It names nobody.

The past is the only reference, and steps of a training are exchangeable only roughly: this evidence
is a reason for an audit, not for a refusal (measured: raised once in 3,200 clean steps). Who lies
so from the first step on is not seen, in the first 64 steps nothing is said, and a checkpoint keeps
nothing of it.
"""

import copy
import math
from collections import deque
from typing import Final

import numpy as np

from securetrain.guard.bets import CLIP, Bets, Powers, index_of
from securetrain.guard.medians import Floats, Mask, mean_of, median, spread

_TURNED: Final = slice(2, 4)
"""Cosine and momentum, the last of the statistics."""
_LAG: Final = 48
_WINDOW: Final = 64
_READY: Final = 16
_LEAST: Final = 0.05
_LARGEST: Final = np.float32(np.e**24)


class Somebody:
    """The e-CUSUM of the steps' extremes.

    Args:
        bets: of which those on larger values are made.
    """

    def __init__(self, bets: Bets) -> None:
        self._bets = bets
        self.waiting: deque[float] = deque()
        self.past: Floats = np.full(_WINDOW, np.nan)
        self.learned = 0
        self._chosen = np.flatnonzero(bets.high & (bets.epsilon == 1))
        self.cusum: Powers = np.ones(len(self._chosen), np.float32)

    def observe(self, z: Floats, base: Mask) -> float:
        """E that somebody is odd; `z` is (groups, 4, ranks), of which those in `base` count."""
        turned = np.clip(z[:, _TURNED][..., base], -CLIP, CLIP).reshape(-1, int(base.sum()))
        mean = np.sort(mean_of(turned))
        gap = float(mean[1:].mean() - mean[0])
        if not math.isfinite(gap):
            return float(self.cusum.mean(dtype=np.float64))
        if self.learned >= _READY:
            self._bet(gap)
        self.waiting.append(gap)
        if len(self.waiting) > _LAG:
            self.past[self.learned % _WINDOW] = self.waiting.popleft()
            self.learned += 1
        return float(self.cusum.mean(dtype=np.float64))

    def copy(self) -> "Somebody":
        """A twin."""
        twin = copy.copy(self)
        twin.waiting, twin.past, twin.cusum = self.waiting.copy(), self.past.copy(), +self.cusum
        return twin

    def scale(self, factor: float) -> None:
        """Multiply the evidence."""
        self.cusum *= np.float32(factor)

    def _bet(self, gap: float) -> None:
        centre = median(self.past, 0)
        unit = np.maximum(spread(self.past - centre), _LEAST)
        now = self._powers((np.array([gap]) - centre) / unit)[:, 0]
        known = self._powers((self.past - centre) / unit)
        there = np.isfinite(self.past)
        mean = (known[:, there].sum(axis=1) + now) / np.float32(there.sum() + 1)
        self.cusum = np.minimum(np.maximum(self.cusum, np.float32(1)) * now / mean, _LARGEST)

    def _powers(self, z: Floats) -> Powers:
        return self._bets.powers(index_of(z))[self._chosen]
