# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Statistics of at least three sketched gradients, each robust to a lying minority. Pure.

Logarithms, because honest spread is then the same whether the gradients agree (large batches) or
are mostly noise. Distances are blurred by a thousandth of the median norm: ranks that hold the
same batch differ by rounding only, and rounding says nothing.
"""

import math
import statistics
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from securetrain.guard.robust import coordinate_median
from securetrain.guard.verdict import Test

_TINY: Final = 1e-30
_SAME: Final = 1e-3
"""Distances are not told apart below this fraction of the median norm."""
_MANY: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStatistics:
    """One number per rank in every list."""

    values: dict[Test, list[float]]
    """Log-statistics for norm, far, close and cosine."""
    distance: list[float]
    """Median distance to the others, over the median norm."""
    nearest: list[float]
    """Distance to the nearest other, over the median norm."""
    cosine: list[float]
    """With the others' consensus."""


def statistics_of(fresh: Tensor, size: Tensor) -> GroupStatistics:
    """Compute them.

    Args:
        fresh: (ranks, size) fp64, all finite.
        size: (ranks,) the rows' lengths.
    """
    n = fresh.shape[0]
    distances = torch.cdist(fresh, fresh, compute_mode="donot_use_mm_for_euclid_dist")
    apart = distances[~torch.eye(n, dtype=torch.bool)].view(n, n - 1).sort(dim=1).values
    far = apart[:, (n - 2) // 2].tolist()  # the lower median: one liar of three does not enter it
    near = apart[:, 0].tolist()
    norms = size.tolist()
    cosine = _consensus_cosine(fresh / size.clamp_min(_TINY).unsqueeze(1)).tolist()
    reference = statistics.median(norms)
    same = _SAME * reference + _TINY
    unit = max(reference, _TINY)
    return GroupStatistics(
        values={
            Test.NORM: [math.log(x + _TINY) for x in norms],
            Test.FAR: [math.log(x + same) for x in far],
            Test.CLOSE: [math.log(x + same) for x in near],
            Test.COSINE: [math.log(1.02 - x) for x in cosine],
        },
        distance=[x / unit for x in far],
        nearest=[x / unit for x in near],
        cosine=cosine,
    )


def _consensus_cosine(unit: Tensor) -> Tensor:
    """Cosine of each unit row with the coordinate-wise median of the others.

    With three ranks a median of two would follow one liar, so the better of both pairs counts; with
    many, a rank hardly moves the median, and the median of all stands for that of the others.
    """
    n = unit.shape[0]
    if n == 3:
        gram = unit @ unit.T
        return gram.fill_diagonal_(-1.0).amax(dim=1).clamp(-1.0, 1.0)
    if n > _MANY:
        centers = coordinate_median(unit).expand_as(unit)
    else:
        centers = torch.stack(
            [coordinate_median(torch.cat([unit[:i], unit[i + 1 :]])) for i in range(n)]
        )
    return torch.nn.functional.cosine_similarity(unit, centers, dim=1).clamp(-1.0, 1.0)
