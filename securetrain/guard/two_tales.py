# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A rank that told one gradient and sends another, when a step is reduced again in the open. Pure.

A step is reduced again because what was received was not what was told. In the open each rank tells
of what it sends now, under another seed, so that the two tales cannot be compared number by number.
Lengths and angles can: sketches keep them.

1. a rank whose gradient is `FACTOR` times as long as it told, or as short, has sent another one;
2. so has a rank whose angles with more than `most` others are others than before: an honest rank's
   change only with those who lie, and these are at most `most`.

Sketches of honest gradients are off by chance, so this is no proof: it excludes as a gross gradient
does, and is not reported as one.
"""

from typing import Final

import numpy as np

from securetrain.guard.medians import Floats

FACTOR: Final = 2.0
"""Of lengths; the estimates of one gradient differ by 13 % (one deviation) at 64 numbers."""
TURN: Final = 0.75
"""Of cosines; those of one pair differ by 0.18 (one deviation) at 64 numbers."""


def changed_tales(told: Floats, sent: Floats, *, most: int) -> tuple[int, ...]:
    """The ranks that send another gradient than they told.

    Args:
        told: (ranks, k), in the step.
        sent: (ranks, k), in the open.
        most: ranks that may lie.
    """
    with np.errstate(all="ignore"):
        first, second = _lengths(told), _lengths(sent)
        known = np.isfinite(first) & np.isfinite(second)
        ratio = np.where(known, (second + _TINY) / (first + _TINY), 1.0)
        longer = (ratio > FACTOR) | (ratio < 1 / FACTOR)
        turned = np.abs(_cosines(told, first) - _cosines(sent, second)) > TURN
    turned &= known[:, None] & known[None, :]
    odd = known & (longer | (turned.sum(axis=1) > max(1, most)))
    return tuple(int(rank) for rank in np.flatnonzero(odd))


_TINY: Final = 1e-30


def _lengths(rows: Floats) -> Floats:
    lengths: Floats = np.sqrt(np.square(rows).sum(axis=1))
    return lengths


def _cosines(rows: Floats, lengths: Floats) -> Floats:
    units = rows / (lengths[:, None] + _TINY)
    cosines: Floats = units @ units.T
    return cosines
