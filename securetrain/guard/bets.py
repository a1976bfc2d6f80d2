# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Bets against honest ranks: `1 - eps + eps * exp(lambda z)`, over its honest mean.

A bet says: in a fraction `eps` of the steps a rank is shifted by about `lambda`. Divided by the
mean over honest ranks (evidence.py) its expectation is one for an honest rank, whatever the
distribution of `z` is: there is no table of normal quantiles that could be wrong.

Honest `z` have heavy tails, and then `exp(lambda z)` has a mean that a few steps make: a bet that
wins little. So some bets do not grow beyond a `reach`: what a rank that is off by one deviation in
every step wins is more by half (measured: one layer flipped, four ranks).

`z` has steps of 1/256, so that the powers are looked up, and the table is made by multiplications
alone: the same on every processor.
"""

from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from securetrain.guard.assessment import STATISTICS, Statistic
from securetrain.guard.medians import Floats
from securetrain.policy.schema import GradientData

Index: TypeAlias = NDArray[np.int16]
Powers: TypeAlias = NDArray[np.float32]

CLIP: Final = 4.0
_STEPS: Final = 256
_MIDDLE: Final = int(CLIP) * _STEPS
MISSING: Final = 2 * _MIDDLE + 1
"""The index of a value that is not there: its power is one."""
_ROOT: Final = float.fromhex("0x1.0080200556001p+0")
"""exp(1 / 512): the power of lambda 1/2 and one step."""
_BETS: Final = (
    (0.5, 1.0, CLIP),
    (1.0, 1.0, 2.0),
    (1.5, 1.0, 1.5),
    (2.0, 1.0, CLIP),
    (3.0, 0.1, CLIP),
)
"""Lambda, eps and reach."""
_LEAST_PER_RANK: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bets:
    """All bets, both signs of each; `P` of them."""

    tables: Powers
    """(P, 2 * MIDDLE + 2): exp(lambda z) by index, z within reach."""
    epsilon: Powers
    """(P,)"""
    high: NDArray[np.bool_]
    """(P,): the bet is on larger values."""
    allowed: NDArray[np.bool_]
    """(P, 4): the bets that count for each statistic."""

    @property
    def count(self) -> int:
        """P."""
        return len(self.epsilon)

    def powers(self, index: Index) -> Powers:
        """exp(lambda z) of every bet: (...) -> (P, ...)."""
        return self.tables[:, index]

    def powers_of(self, z: float) -> list[float]:
        """The same for one finite z; numpy takes longer over a single number than Python."""
        step = round(min(max(z, -CLIP), CLIP) * _STEPS)
        found: list[float] = self.tables[:, step + _MIDDLE].tolist()
        return found

    def weights(self, groups: int) -> Powers:
        """Shares of streams and bets, (P, groups + 2, 4), that add up to one.

        A quarter is bet on the whole gradient, a quarter on the mean of the groups, half on single
        groups.
        """
        slots = np.full(groups + 2, 0.5 / max(1, groups))
        slots[:2] = 0.25
        weights = slots[None, :, None] * self.allowed[:, None, :]
        result: Powers = (weights / weights.sum()).astype(np.float32)
        return result


def index_of(z: Floats) -> Index:
    """Clip and round z to a place in the tables; NaN is `MISSING`."""
    there = np.isfinite(z)
    steps = np.round(np.clip(np.where(there, z, 0.0), -CLIP, CLIP) * _STEPS).astype(np.int16)
    return np.where(there, steps + np.int16(_MIDDLE), np.int16(MISSING)).astype(np.int16)


def bets_for(data: GradientData) -> Bets:
    """The bets for one kind of data.

    Ranks with data of their own differ a little for good, so bets on small shifts are not made.
    There, a smaller norm or distance does no harm (padding, easy text), and a liar inside the
    momentum would turn it against the others: only its own side counts.
    """
    own = data is GradientData.PER_RANK
    bets = [bet for bet in _BETS if bet[0] >= _LEAST_PER_RANK or not own]
    up = np.cumprod(np.full(_MIDDLE, _ROOT))
    half = np.concatenate([1.0 / up[::-1], [1.0], up])
    tables, epsilon, high = [], [], []
    steps = np.arange(-_MIDDLE, _MIDDLE + 1)
    for strength, share, reach in bets:
        power = np.ones_like(half)
        for _ in range(int(2 * strength)):
            power *= half
        power = power[np.clip(steps, -reach * _STEPS, reach * _STEPS).astype(int) + _MIDDLE]
        for sign in (1, -1):
            tables.append([*power[::sign], 1.0])
            epsilon.append(share)
            high.append(sign > 0)
    up_only = np.array([own and one is not Statistic.COSINE for one in STATISTICS])
    return Bets(
        tables=np.array(tables, dtype=np.float32),
        epsilon=np.array(epsilon, dtype=np.float32),
        high=np.array(high),
        allowed=np.array(high)[:, None] | ~up_only[None],
    )
