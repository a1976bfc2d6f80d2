# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Medians over ranks and over steps, where NaN is a value that is not there.

Sorts and halves only: the same numbers on every processor.
"""

from typing import Final, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Mask: TypeAlias = NDArray[np.bool_]
Number = TypeVar("Number", bound=np.generic)

NORMAL: Final = 1.4826
"""The standard deviation of a normal distribution, over its median absolute deviation."""


def median(values: Floats, axis: int) -> Floats:
    """Median along `axis` of the values that are there; NaN where there is none."""
    ordered = np.sort(values, axis=axis)  # NaN goes last
    count = np.isfinite(ordered).sum(axis=axis, keepdims=True)
    low = np.take_along_axis(ordered, np.maximum(count - 1, 0) // 2, axis)
    high = np.take_along_axis(ordered, np.minimum(count // 2, values.shape[axis] - 1), axis)
    result: Floats = 0.5 * (low + high)
    return result.squeeze(axis)


def spread(values: Floats) -> Floats:
    """Median absolute value along the last axis, as a standard deviation."""
    result: Floats = NORMAL * median(np.abs(values), -1)
    return result


def against_others(values: Floats, live: Mask) -> Floats:
    """Each value of the last axis minus the median of the *other* live ones, in one sort.

    Args:
        values: (..., ranks); those of live ranks are numbers, or all NaN where there is none.
        live: at least two ranks.
    """
    ranks = np.flatnonzero(live)
    mine = values[..., ranks]
    ordered = np.sort(mine, axis=-1)
    result = values - middle_of(ordered)
    last = len(ranks) - 1
    # Without x, the values from x's place on move down by one.
    halves = [
        np.where(
            mine <= ordered[..., place : place + 1],
            ordered[..., place + 1 : place + 2],
            ordered[..., place : place + 1],
        )
        for place in ((last - 1) // 2, last // 2)
    ]
    result[..., ranks] = mine - 0.5 * (halves[0] + halves[1])
    return result


def mean_of(values: Floats) -> Floats:
    """Mean over the first axis of the values that are there; NaN where there is none."""
    there = np.isfinite(values)
    count = there.sum(axis=0)
    total = np.where(there, values, 0.0).sum(axis=0)
    result: Floats = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    return result


def widened(values: NDArray[Number], axis: int, more: int, fill: float) -> NDArray[Number]:
    """`values` with `more` places at the end of `axis`."""
    shape = list(values.shape)
    shape[axis] = more
    return np.concatenate([values, np.full(shape, fill, values.dtype)], axis=axis)


def middle_of(ordered: Floats) -> Floats:
    """The median of numbers in order along the last axis, (..., 1); all are there."""
    count = ordered.shape[-1]
    both: Floats = ordered[..., (count - 1) // 2, None] + ordered[..., count // 2, None]
    return 0.5 * both
