# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Probation: exclusion for a time, and the way back. Pure.

1. A rank is named when its evidence reaches the limit: one a step, because a liar bends its
   neighbours' numbers, and at most a third of the ranks (less one) at a time. Beyond that the step
   is undecided.
2. A named rank counts zero for 50 steps, twice as many for each further offence. Its evidence is
   cut to half the limit, so that a pause does not erase it.
3. New evidence over the limit starts its time again.
4. After its time it comes back when its evidence has sunk below 3 nats.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from securetrain.guard.detector_state import Served

TERM: Final = 50
_LONGEST: Final = 1 << 20
_LOW: Final = math.log(20.0)


@dataclass(slots=True)
class Sentence:
    """One rank's probation."""

    served: int
    term: int


@dataclass(slots=True, kw_only=True)
class Decision:
    """The changes of one step."""

    named: int | None = None
    again: tuple[int, ...] = ()
    """On probation, with new evidence over the limit."""
    readmitted: tuple[int, ...] = ()
    undecided: bool = False


@dataclass(slots=True)
class Probation:
    """The ranks that are out, and their offences."""

    most: int
    """Ranks that may be out at once."""
    out: dict[int, Sentence] = field(default_factory=dict)
    offences: dict[int, int] = field(default_factory=dict)

    def decide(self, evidence: Sequence[float], limit: float) -> Decision:
        """Name, readmit; `evidence` and `limit` are logarithms."""
        decision = Decision()
        over = [rank for rank, one in enumerate(evidence) if one >= limit and rank not in self.out]
        if over and len(self.out) >= self.most:
            decision.undecided = True
        elif over:
            worst = max(over, key=lambda rank: (evidence[rank], -rank))
            decision.named = worst
            offences = self.offences[worst] = self.offences.get(worst, 0) + 1
            self.out[worst] = Sentence(-1, min(TERM << min(offences - 1, 16), _LONGEST))
        for rank, sentence in list(self.out.items()):
            sentence.served += 1
            if rank == decision.named:
                continue
            if evidence[rank] >= limit:
                sentence.served = 0
                decision.again += (rank,)
            elif sentence.served >= sentence.term and evidence[rank] < _LOW:
                del self.out[rank]
                decision.readmitted += (rank,)
        return decision

    def copy(self) -> "Probation":
        """A twin."""
        out = {rank: Sentence(one.served, one.term) for rank, one in self.out.items()}
        return Probation(self.most, out, dict(self.offences))

    def record(self, rank: int) -> Served:
        """One rank's part of a checkpoint."""
        sentence = self.out.get(rank, Sentence(0, 0))
        return Served(
            rank=rank,
            offences=self.offences.get(rank, 0),
            served=sentence.served,
            term=sentence.term,
        )

    def restart(self, records: Sequence[Served], ranks: int) -> None:
        """Go on from a checkpoint.

        Raises:
            ValueError: a rank stands in it twice, is not of this group, or too many are out.
        """
        self.offences = {one.rank: one.offences for one in records}
        self.out = {one.rank: Sentence(one.served, one.term) for one in records if one.term}
        if len(self.offences) != len(records) or len(self.out) > self.most:
            raise ValueError(f"{len(self.out)} ranks on probation, where {self.most} may be")
        if max(self.offences, default=0) >= ranks:
            raise ValueError(f"a rank on probation is not one of {ranks}")
