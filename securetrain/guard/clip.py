# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The norm by which all ranks clip, bound to what was delivered. Pure.

Under FSDP each rank knows the norm of its own shard only, and all ranks divide by the norm of the
whole. So one rank that says NaN, 1e18 or 0 decides what everybody's gradient is multiplied by, long
after the gradients were judged. The sketches of the judged step say how long each shard is:

1. a partial norm is believed when it is within `ROOM` of its shard's sketched length, times a
   factor that most ranks' norms agree on (a script may divide all gradients by the same number:
   a loss scale, tokens). Otherwise the sketched length takes its place in the sum;
2. where only some of a shard's numbers are in the norm, or its order is not 2, the sketched length
   is an upper bound: the 2-norm is never below the norms of higher order, nor above those of lower
   order times ``numel ** (1/p - 1/2)``;
3. what is not finite, or more than `GROSS` times what the shard and the mean shard could have, no
   draw of a sketch explains: that alone names its rank. A sketch of numbers that are nearly all in
   two places may be short by accident, so a smaller contradiction is corrected and names nobody
   (after.py counts them);
4. when most ranks' norms are contradicted nothing is corrected and nobody named: the cause lies in
   the script. With two or three ranks there is no majority, and only rule 3 names, where another
   rank's norm is as sketched.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Numbers: TypeAlias = NDArray[np.float64]

ROOM: Final = 2.5
"""Six standard deviations of a sketch's length and more, also of one of 64 numbers."""
GROSS: Final = 16.0
_MAJORITY: Final = 4
"""Ranks from which on one liar is outvoted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundNorm:
    """The norm of the whole gradient; ranks count from zero in their group."""

    total: float
    wrong: tuple[int, ...] = ()
    """Ranks whose partial norm is not in it."""
    gross: tuple[int, ...] = ()
    """Of these, the ones that no accident explains."""


def bind_norms(
    said: Sequence[float],
    lengths: Sequence[float],
    owners: Sequence[int],
    *,
    order: float = 2.0,
    whole: bool = True,
    numel: int = 1,
) -> BoundNorm:
    """Add up partial norms.

    Args:
        said: each rank's norm of its shard.
        lengths: each rank's shard's sketched 2-norm, finite.
        owners: the shard that each rank holds.
        order: of the norm, above 0.
        whole: all numbers of the shards are in it.
        numel: of all shards.
    """
    partial, known = np.asarray(said, np.float64), np.asarray(lengths, np.float64)
    partial = np.where(partial >= 0, partial, math.nan)  # no norm is below zero
    if order < 2.0:
        known = known * max(1, numel) ** (1.0 / order - 0.5)
    exact = whole and order == 2.0
    with np.errstate(all="ignore"):
        ratio = np.where(known > 0, partial / known, np.where(partial == 0, 1.0, math.inf))
    factor, outvoted = _factor(ratio, exact=exact)
    if not math.isfinite(factor):
        return BoundNorm(total=_add_up(partial, owners, order))
    expected = factor * known
    with np.errstate(all="ignore"):
        wrong = ~(partial <= ROOM * expected)
        if exact:
            wrong |= ROOM * partial < expected
        mean = float(np.sqrt((expected**2).mean()))
        gross = ~(partial <= GROSS * np.maximum(expected, mean))
    values = np.where(wrong, expected, partial)
    for part in set(owners):  # a copy that is wrong counts as the one that is not
        held = [rank for rank, owner in enumerate(owners) if owner == part]
        right = [float(partial[rank]) for rank in held if not wrong[rank]]
        if right:
            values[held] = np.where(wrong[held], sorted(right)[(len(right) - 1) // 2], values[held])
    return BoundNorm(
        total=_add_up(values, owners, order),
        wrong=tuple(int(rank) for rank in np.flatnonzero(wrong)),
        gross=tuple(int(rank) for rank in np.flatnonzero(wrong & gross)) if outvoted else (),
    )


def _factor(ratio: Numbers, *, exact: bool) -> tuple[float, bool]:
    """The factor of most norms, and whether a rank without it can be named."""
    middle = float(np.sort(ratio)[(len(ratio) - 1) // 2])
    as_sketched = ratio <= ROOM
    if exact:
        as_sketched &= ROOM * ratio >= 1.0
    if len(ratio) < _MAJORITY:
        return (1.0, True) if as_sketched.any() else (middle, False)
    if middle <= ROOM and (not exact or ROOM * middle >= 1.0):
        return 1.0, True
    return middle, True


def _add_up(values: Numbers, owners: Sequence[int], order: float) -> float:
    """The norm of all shards, each once."""
    shards = np.array(
        [
            np.sort(values[[rank for rank, owner in enumerate(owners) if owner == part]])[0]
            for part in sorted(set(owners))
        ]
    )
    with np.errstate(all="ignore"):
        if math.isinf(order):
            return float(shards.max())
        largest = float(shards.max())
        if not 0.0 < largest < math.inf:
            return largest
        return float(largest * ((shards / largest) ** order).sum() ** (1.0 / order))
