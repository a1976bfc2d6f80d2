# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The sketches of one step, from all ranks of a group.

The protocol (watch.py) fills it, after every number was checked against what was delivered; the
detector (detector.py) reads it. Data only.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRows:
    """Sketches of one step under seeds that nobody knew before delivery.

    A group is a part of the model that is judged by itself: an FSDP module, or one block of
    parameters under DDP. Rows preserve norms: their Euclidean length estimates the gradient's.
    """

    groups: tuple[str, ...]
    """Names of the groups with a gradient in this step; the same in every step."""
    gradients: NDArray[np.float64]
    """(groups, ranks, k): each rank's local gradient, unweighted, also of excluded ranks."""
    momentum: NDArray[np.float64] | None
    """(groups, k): the optimizer's first moment, or a running mean of reduced gradients, under the
    same seeds; None before there is one."""
