# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Four numbers about each rank's gradient of each group, against the other ranks. Pure.

=========  ======================================================  ============================
statistic  of row `y_i`, with `u = y / |y|`                        moved by
=========  ======================================================  ============================
norm       `ln |y_i|`                                              scaling, noise
distance   `ln |y_i - mean of min(|y_j|, 2 med) u_j, j not i|`     noise, constant drift
cosine     `atanh cos(u_i, sum of u_j, j not i)`                   flips (-), averages (+)
momentum   `atanh cos(u_i, m)`                                     whatever is repeated
=========  ======================================================  ============================

`m` is the optimizer's first moment under the same signs: it holds what a rank did in earlier
steps, so that a lie which is repeated grows along it, although nobody keeps a memory and no seed is
ever used twice. Each number is taken minus the median of the *other* ranks that count.

Rules:

1. a row that is longer than twice the median moves the others' centre no more than that;
2. lengths are not told apart below a millionth of the median norm, distances below a thousandth:
   ranks with the same batch differ by rounding, which says nothing;
3. results are multiples of 2^-20: products are rounded otherwise on another processor, and all
   ranks must come to the same decision;
4. inner products with three vectors a group are all that is computed: O(groups * ranks * k).
"""

from typing import Final

import numpy as np

from securetrain.guard.assessment import STATISTICS
from securetrain.guard.medians import Floats, Mask, against_others, median, middle_of

GRID: Final = 2.0**-20
_TINY: Final = 1e-300
_SHORT: Final = 1e-6
_SAME: Final = 1e-3
_STRAIGHT: Final = 0.999
_REACH: Final = 2.0
_COPY: Final = 0.25
"""A pair nearer than this share of the usual distance holds the same gradient."""
_HUGE: Final = 1e6
"""Rows longer than this many medians are cut: squares must not overflow."""
_LARGEST: Final = 1e100


def bounded(rows: Floats, live: Mask) -> Floats:
    """Rows (groups, ranks, k), those without finite numbers zero, none of absurd length."""
    whole = np.isfinite(rows).all(axis=-1, keepdims=True)
    rows = np.minimum(np.maximum(np.where(whole, rows, 0.0), -_LARGEST), _LARGEST)
    size = np.sqrt(np.square(rows).sum(axis=-1))
    limit = _HUGE * middle_of(np.sort(size[:, live], axis=1))
    shrink = np.where((size > limit) & (limit > 0), limit / np.maximum(size, _TINY), 1.0)
    result: Floats = rows * shrink[..., None]
    return result


def residuals(values: Floats, base: Mask) -> Floats:
    """Values (..., ranks) minus the median of the other ranks in `base`, on the grid.

    Ranks outside `base` are compared with all of it.
    """
    return np.round(against_others(values, base) / GRID) * GRID


def copies(rows: Floats, live: Mask) -> tuple[tuple[int, int], ...]:
    """Pairs of live ranks whose rows (ranks, k) are much nearer than rows usually are."""
    ranks = np.flatnonzero(live)
    mine = rows[ranks]
    squares = np.square(mine).sum(axis=1)
    apart = squares[:, None] + squares[None] - 2 * mine @ mine.T
    distance = np.sqrt(np.maximum(apart, 1e-9 * np.median(squares)))
    np.fill_diagonal(distance, np.inf)
    usual = np.median(distance.min(axis=1))
    if not usual > 0.0:
        return ()
    near = np.round(distance / usual / GRID) * GRID < _COPY
    return tuple((int(ranks[a]), int(ranks[b])) for a, b in np.argwhere(near) if a < b)


def measure(rows: Floats, momentum: Floats | None, base: Mask) -> Floats:
    """The four statistics of every rank, against the ranks in `base`.

    Args:
        rows: (groups, ranks, k), bounded.
        momentum: (groups, k).
        base: at least two ranks.

    Returns:
        (groups, 4, ranks); NaN where a group has no gradient in this step, or no momentum.
    """
    out = np.full((len(rows), len(STATISTICS), rows.shape[1]), np.nan)
    live = base.astype(np.float64)
    others = live.sum() - live
    square = np.square(rows).sum(axis=-1)
    norm = np.sqrt(square)
    usual = median(norm[:, base], 1)[:, None]
    length = np.where(norm > _SHORT * usual, norm, np.inf)  # a zero row has no direction
    gain = live * np.minimum(1.0, _REACH * usual / np.maximum(norm, _TINY))
    unit = live / length
    # Everything follows from inner products of a row with three vectors of its group.
    towards = np.stack([gain, unit], axis=1) @ rows
    if momentum is not None:
        towards = np.concatenate([towards, momentum[:, None]], axis=1)
    inner = rows @ towards.transpose(0, 2, 1)
    squares = np.square(towards).sum(axis=-1)
    centre, lean = inner[..., 0], inner[..., 1] / length
    # |y - (C - g y) / m|^2 = |(m + g) y - C|^2 / m^2
    scale = others + gain
    apart = (scale**2 * square - 2 * scale * centre + squares[:, :1]) / others**2
    own = np.where(np.isfinite(length), live, 0.0)
    # cos(u, L - u), and |L - u|^2 = |L|^2 - 2 u L + 1
    rest = np.maximum(squares[:, 1:2] - 2 * own * lean + own, _TINY)
    out[:, 0] = np.log(np.maximum(norm + _SHORT * usual, _TINY))
    out[:, 1] = 0.5 * np.log(np.maximum(apart, 0.0) + np.maximum((_SAME * usual) ** 2, _TINY))
    out[:, 2] = _angle((lean - own) / np.sqrt(rest))
    if momentum is not None:
        size = np.sqrt(squares[:, 2:])
        along = _angle(inner[..., 2] / length / np.maximum(size, _TINY))
        out[:, 3] = np.where(size > 0, along, np.nan)
    out[~(usual[:, 0] > 0)] = np.nan
    return out


def _angle(cosine: Floats) -> Floats:
    result: Floats = np.arctanh(np.clip(cosine, -_STRAIGHT, _STRAIGHT))
    return result
