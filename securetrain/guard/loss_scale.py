# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Gradients that overflow under a loss scale. Pure.

A `GradScaler` finds its scale by overflowing: now and then the gradients of a rank are not finite,
the scaler skips the step on all ranks and halves the scale. Whose batch it was says nothing about
the rank. So such steps are left to the scaler and name nobody, as long as a scale can be the cause:

1. a rank that alone, or with less than half of the others, overflows more than `_ALONE` times in
   `_WINDOW` steps is not the scale's fault: the others are finite at 64 times its scale;
2. most ranks together may do it `_TOGETHER` times in as many steps: from the first scale of torch
   down to one, and once more.

Beyond that the step is judged as any other.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final

_ALONE: Final = 6
_TOGETHER: Final = 32
_WINDOW: Final = 200
OVERFLOW: Final = "gradients overflow under the loss scale: the scaler skips the step"


class Overflows:
    """Those of one group of ranks.

    Args:
        ranks: size of the group.
    """

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._past: deque[frozenset[int]] = deque(maxlen=_WINDOW)

    def forgive(self, broken: Sequence[int]) -> bool:
        """Count a step made under a loss scale; true when the scale explains what is broken.

        Args:
            broken: the ranks whose gradients are not finite.
        """
        self._past.append(frozenset(broken))
        if not broken:
            return False
        minorities = [step for step in self._past if 2 * len(step) < self._ranks]
        majorities = sum(1 for step in self._past if 2 * len(step) >= self._ranks)
        if 2 * len(broken) >= self._ranks:
            return majorities <= _TOGETHER
        return all(sum(rank in step for step in minorities) <= _ALONE for rank in broken)
