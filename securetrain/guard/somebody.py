# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Evidence that somebody lies, where another rank does so in each step. Pure.

A rotating liar leaves no evidence on any rank. So the group is bet against as a whole: what one
step wins is the mean over the ranks of what a bet on each of them wins, and that is added up. It
names nobody.

The bets are on the one lie that hides best, a gradient that is turned around. Its cosine `c` with
the others and with the momentum becomes `-c` in every group at once, so what is to be expected of
each `z` is known: a shift by `-2 c` over the honest deviation, `c` being the median of the last 16
steps' honest cosines. A rank's score is the projection of its `z` of cosine and momentum on these
shifts: of two normal distributions the likelihood ratio. Groups that agree in nothing weigh nothing
(measured, eight ranks: the turned rank has the highest score in 88 to 100 % of steps; it has the
lowest mean of all `z` in 80 to 98 %, the lowest cosine of the whole gradient in half of them).

Scores are taken minus the median of the others, in units of their usual deviation, or of this
step's where that is larger. The bets' honest mean is the past's, which begins 32 steps ago: the
larger of the means over about 64 and about 256 steps. Steps of a training are exchangeable only
roughly, so this evidence is a reason for an audit, not for a refusal. Who lies so from the first
step on is not seen, in the first 48 steps nothing is said, and a checkpoint keeps nothing of it.
"""

import copy
import math
from collections import deque
from typing import Final

import numpy as np

from securetrain.guard.bets import CLIP, Bets, Powers, index_of
from securetrain.guard.medians import Floats, Mask, against_others, median, spread, widened

_TURNED: Final = slice(2, 4)
"""Cosine and momentum, the last of the statistics."""
_RECENT: Final = 16
_LAG: Final = 32
_WINDOW: Final = 64
_READY: Final = 16
_KEEP: Final = np.array([[1 - 1 / 64], [1 - 1 / 256]])
_LEAST: Final = 0.05
_LARGEST: Final = np.float32(np.e**24)


class Somebody:
    """The e-CUSUM of a group of ranks.

    Args:
        bets: of which those on larger values are made.
    """

    def __init__(self, bets: Bets) -> None:
        self._bets = bets
        self._chosen = np.flatnonzero(bets.high & (bets.epsilon == 1))
        self._steps = 0
        self._level: Floats = np.full((_RECENT, 0, 2), np.nan)
        self._deviation: Floats = np.full(_WINDOW, np.nan)
        self.waiting: deque[Powers] = deque()
        self.learned = 0
        self._pool: Floats = np.zeros((len(_KEEP), len(self._chosen)))
        self._count: Floats = np.zeros((len(_KEEP), 1))
        self.cusum: Powers = np.ones(len(self._chosen), np.float32)

    def observe(self, z: Floats, level: Floats, unit: Floats, base: Mask) -> float:
        """E that somebody is turned.

        Args:
            z: (groups, 4, ranks), of which those in `base` count.
            level: (groups, 4), the median of the ranks' statistics.
            unit: (groups, 4), their honest deviation.
            base: three ranks or more.
        """
        score = self._score(z[:, _TURNED][..., base], level[:, _TURNED], unit[:, _TURNED])
        if score is not None:
            self._bet(self._standardised(score))
        return float(self.cusum.mean(dtype=np.float64))

    def copy(self) -> "Somebody":
        """A twin."""
        twin = copy.copy(self)
        twin._level, twin._deviation = self._level.copy(), self._deviation.copy()  # noqa: SLF001
        twin.waiting, twin.cusum = self.waiting.copy(), +self.cusum
        return twin

    def scale(self, factor: float) -> None:
        """Multiply the evidence."""
        self.cusum *= np.float32(factor)

    def _score(self, z: Floats, level: Floats, unit: Floats) -> Floats | None:
        """The likelihood ratio of each rank, in deviations; None where nothing can be expected."""
        self._level = widened(self._level, 1, len(level) - self._level.shape[1], np.nan)
        self._level[self._steps % _RECENT] = level
        self._steps += 1
        # Half the shift: only its direction counts.
        shift = np.maximum(np.nan_to_num(median(self._level, 0)), 0.0) / unit
        there: Mask = np.asarray(np.isfinite(z).all(axis=-1))
        shift = np.where(there, shift, 0.0)
        size = math.sqrt(float(np.square(shift).sum()))
        if not size > 0.0:
            return None
        turned = np.where(there[..., None], np.clip(-z, -CLIP, CLIP), 0.0)
        score: Floats = (shift[..., None] * turned).sum(axis=(0, 1)) / size
        return score

    def _standardised(self, score: Floats) -> Floats:
        odd = against_others(score, np.ones(len(score), dtype=bool))
        at = self._steps % _WINDOW
        self._deviation[at] = spread(odd)
        usual = median(self._deviation, 0)
        unit: Floats = np.maximum(np.fmax(usual, self._deviation[at]), _LEAST)
        return odd / unit

    def _bet(self, odd: Floats) -> None:
        now = self._bets.powers(index_of(odd))[self._chosen].mean(axis=1)
        if self.learned >= _READY:
            mean = ((self._pool + now) / (self._count + 1.0)).max(axis=0)
            grown = np.maximum(self.cusum, np.float32(1)) * (now / mean)
            self.cusum = np.minimum(grown, _LARGEST).astype(np.float32)
        self.waiting.append(now)
        if len(self.waiting) > _LAG:
            self._pool = _KEEP * self._pool + self.waiting.popleft()
            self._count = _KEEP * self._count + 1.0
            self.learned += 1
