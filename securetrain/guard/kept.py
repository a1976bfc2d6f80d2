# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""State that hooks and judge share about one step: whose gradient counts, and how to do it again.

Rules:

1. `Weights` says before a step how much each rank's gradient counts; it changes between steps only,
   and on all ranks alike. A rank that counts zero sends zeros: never zero times what may be NaN;
2. `Keeper` holds what a step reduced until it is judged, so that a refused step can be reduced
   again without whoever spoiled it. A step in which a piece was reduced twice, or whose pieces are
   more than the budget allows, cannot (`complete`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor


class Weights:
    """The weight of each rank of a group in the reductions of this step."""

    def __init__(self, ranks: int) -> None:
        self.values: tuple[float, ...] = (1.0,) * ranks

    @property
    def live(self) -> int:
        """Ranks that count."""
        return sum(1 for value in self.values if value)

    @property
    def even(self) -> bool:
        """Nobody is excluded."""
        return all(value == 1.0 for value in self.values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """One reduction that can be done again."""

    chunk: str
    local: Tensor
    """This rank's flat gradient, unweighted; nobody changes it before the verdict."""
    parts: int
    """Equal parts of it that belong to the ranks of the group in order; 1: it belongs to all."""
    replace: Callable[[Tensor], None]
    """Puts another mean into the model's gradients: of the whole, or of this rank's part."""


class Keeper:
    """The reductions of one step.

    Args:
        budget: bytes that are held only for the sake of this (`Kept` with `extra`).
    """

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self.clear()

    def clear(self) -> None:
        """A step is over."""
        self._kept: dict[str, Kept] = {}
        self._bytes = 0
        self._complete = True

    @property
    def complete(self) -> bool:
        """True when all that was reduced in this step is here, once."""
        return self._complete and bool(self._kept)

    @property
    def kept(self) -> Sequence[Kept]:
        """In the order of reduction."""
        return list(self._kept.values())

    def add(self, one: Kept, *, extra: bool) -> None:
        """Hold a reduction.

        Args:
            one: the reduction.
            extra: whether its memory would be free by now otherwise.
        """
        self._bytes += one.local.numel() * one.local.element_size() if extra else 0
        if one.chunk in self._kept or self._bytes > self._budget:
            self.give_up()
        if self._complete:
            self._kept[one.chunk] = one

    def give_up(self) -> None:
        """This step cannot be reduced again."""
        self._complete = False
        self._kept.clear()
