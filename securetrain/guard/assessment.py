# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The detector's answer about one step: data only, in words where a person reads it.

Ranks are counted from zero inside their group; watch.py knows their numbers in the job.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final

WHOLE: Final = "global"
"""The stream of the whole gradient."""
BROAD: Final = "broad"
"""The stream of the mean over all groups."""


class Statistic(StrEnum):
    """A number that is compared with the other ranks'."""

    NORM = "norm"
    DISTANCE = "distance"
    COSINE = "cosine"
    MOMENTUM = "momentum"


STATISTICS: Final = tuple(Statistic)
"""In the order of every table."""


_TEXTS: Final = {
    (Statistic.NORM, True): "is longer than the others'",
    (Statistic.NORM, False): "is shorter than the others'",
    (Statistic.DISTANCE, True): "is farther from the others than they are from each other",
    (Statistic.DISTANCE, False): "is nearer to the others than they are to each other",
    (Statistic.COSINE, True): "is more like the others' than they are like each other",
    (Statistic.COSINE, False): "points away from the others'",
    (Statistic.MOMENTUM, True): "pulls the way in which the optimizer already moves",
    (Statistic.MOMENTUM, False): "pulls against the way in which the optimizer moves",
}


@dataclass(frozen=True, slots=True)
class Reason:
    """The stream that speaks loudest against a rank."""

    group: str
    """A group of parameters, `WHOLE` or `BROAD`."""
    statistic: Statistic
    high: bool
    """True: the value is higher than the others'."""

    def __str__(self) -> str:
        match self.group:
            case "global":
                subject = "its gradient"
            case "broad":
                subject = "its gradient in most groups"
            case _:
                subject = f"its gradient of {self.group}"
        return f"{subject} {_TEXTS[self.statistic, self.high]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """The findings of one step about the ranks of a group."""

    ranks: int
    norms: tuple[float | None, ...]
    """Estimated norm of each rank's whole gradient; None where it is not finite."""
    cosines: tuple[float | None, ...] = ()
    """With the sum of the others' directions; empty below two comparable ranks."""
    evidence: tuple[float, ...] = ()
    """ln E of each rank, at least 0; empty below three ranks."""
    limit: float = 0.0
    """A rank is named from this ln E on."""
    peak: float = 0.0
    """The largest ln E of a rank that was not named, as a share of the limit, since the start."""
    not_finite: tuple[int, ...] = ()
    """Their gradients count zero in this step."""
    gross: tuple[int, ...] = ()
    """Beyond anything that was seen: their gradients count zero in this step."""
    named: tuple[int, ...] = ()
    """On probation: their gradients count zero from this step on."""
    newly_named: tuple[int, ...] = ()
    readmitted: tuple[int, ...] = ()
    """Back after a probation without new evidence."""
    layers: tuple[tuple[str, int, float], ...] = ()
    """Groups with what they say about the rank they speak against loudest: its ln E there."""
    why: Mapping[int, Reason] = field(default_factory=lambda: MappingProxyType({}))
    """For ranks that are gross or newly named."""
    copies: tuple[tuple[int, int], ...] = ()
    """Pairs with the same gradient; which of the two copied is not known."""
    undecided: bool = False
    """More ranks are over the limit than may be excluded, or somebody is and cannot be named."""
    somebody: float = 0.0
    """ln E that there is an odd rank in every step, whoever it is."""
    spike: bool = False
    """All ranks' norm left its own past; nobody is named."""
    pair: bool = False
    """Two ranks differ as they never did."""
    learning: bool = False
    """There is too little past for more than coarse limits."""

    @property
    def excluded(self) -> tuple[int, ...]:
        """Ranks whose gradients count zero in this step."""
        return tuple(sorted({*self.not_finite, *self.gross, *self.named}))

    @property
    def clean(self) -> bool:
        """True when nothing stands against applying the step as it is."""
        odd = self.excluded or self.newly_named
        return not (odd or self.undecided or self.spike or self.pair)
