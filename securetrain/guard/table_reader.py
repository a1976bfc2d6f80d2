# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The findings that the table of one step shows, in training and to whoever reads it later. Pure.

Rules, in order:

1. ranks that did not open their commitments, or whose transcript is not that of most, are found;
   where a rank that counts is among the latter, the sketches cannot be compared;
2. numbers that are not finite under a loss scale are left to the scaler (loss_scale.py);
3. a rank whose own rows contradict each other is named; one whose rows lean on each other by
   accident is named the second time in `_MEMORY` steps;
4. copies of the optimizer's first moment that differ name their holders;
5. the detector observes the rows (detector.py), and the reduction is compared with them
   (integrity.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from securetrain.guard.detector import Detector
from securetrain.guard.integrity import check, leaning, unequal
from securetrain.guard.loss_scale import OVERFLOW, Overflows
from securetrain.guard.response import Findings
from securetrain.guard.rows import StepRows
from securetrain.guard.statements import Table, decode, first_moment

_MEMORY: Final = 64
"""Steps in which a rank that contradicts itself a second time is named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """The table of one step, and what is known besides."""

    rows: Sequence[bytes]
    """Of each rank."""
    groups: tuple[str, ...]
    parts: int
    size: int
    """Numbers of one sketch."""
    keys: int
    roundoff: float
    near_zero: float
    unopened: tuple[int, ...]
    """Ranks that did not open a commitment."""
    weights: tuple[float, ...]
    known: tuple[int, ...]
    """Ranks about whom nothing new refuses a step: they are excluded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """The part of a table that can be used."""

    rows: StepRows | None = None
    """None when nothing could be compared."""
    table: Table | None = None
    """None when it does not say what was received."""


class TableReader:
    """Reads the tables of one group of ranks, step by step.

    Args:
        ranks: of the group, by their numbers in the job.
        owners: which part of the model each of them holds.
    """

    def __init__(self, ranks: Sequence[int], owners: Sequence[int]) -> None:
        self.owners = tuple(owners)
        self._ranks = tuple(ranks)
        self._steps = 0
        self._leaned: dict[int, int] = {}
        self._overflows = Overflows(len(self._ranks))

    def read(self, findings: Findings, shown: Shown, detector: Detector) -> Read:
        """Add what a table shows."""
        live = [rank for rank, weight in enumerate(shown.weights) if weight]
        findings.add_unopened(shown.unopened, self._ranks, shown.known)
        table = decode(shown.rows, shown.parts, len(shown.groups), shown.size)
        apart = table.apart
        if set(apart) & set(live):
            # Other seeds or other pieces: the sketches cannot be compared, nothing is learned.
            findings.add_disagreement()
            return Read()
        usable = table.finite
        if findings.scaled and self._overflows.forgive([r for r in live if not usable[r]]):
            findings.leave_to_scaler(OVERFLOW)
            return Read()
        usable[list(apart)] = False
        gradients = np.where(usable[:, None, None], table.groups, np.nan)
        self._check_words(findings, table, [rank for rank in live if usable[rank]], shown.known)
        moment, odd = first_moment(table, self.owners)
        self.compare_moments(findings, odd, shown.known)
        rows = StepRows(
            groups=shown.groups,
            gradients=gradients.transpose(1, 0, 2),
            momentum=moment,
        )
        findings.add_assessment(detector.observe(rows), self._ranks, shown.known)
        if not all(usable[rank] for rank in live):
            return Read(rows=rows)
        result = check(
            table.parts,
            table.received,
            groups=table.groups,
            roundoff=shown.roundoff,
            owners=self.owners,
            weights=shown.weights,
            keys=shown.keys,
            rounding=shown.near_zero,
        )
        findings.add_integrity(result, self._ranks)
        return Read(rows=rows, table=table)

    def compare_moments(self, findings: Findings, odd: Sequence[int], known: Sequence[int]) -> None:
        """Name the ranks whose copy of the first moment is not the others'."""
        for rank in odd:
            text = f"rank {self._ranks[rank]}'s optimizer state is not the others'"
            findings.accuse("ST-GRAD-012", text, rank, self._ranks, known)

    def _check_words(
        self, findings: Findings, table: Table, speak: list[int], known: Sequence[int]
    ) -> None:
        """Name the ranks whose own rows do not describe one gradient."""
        self._steps += 1
        if table.parts.shape[1] < 2 or not speak:
            return
        parts, groups = table.parts[speak], table.groups[speak]
        wrong = {speak[i] for i in unequal(parts, groups)}
        lean = leaning(parts).any(axis=1) | leaning(groups).any(axis=1)
        for rank in (speak[i] for i in np.flatnonzero(lean)):
            if self._steps - self._leaned.get(rank, -_MEMORY) < _MEMORY:
                wrong.add(rank)
            elif rank not in wrong:
                text = "the rows of one rank contradict each other"
                findings.add("ST-GRAD-011", text, attributed=False)
            self._leaned[rank] = self._steps
        for rank in sorted(wrong):
            text = f"rank {self._ranks[rank]}'s own rows contradict each other"
            findings.accuse("ST-GRAD-011", text, rank, self._ranks, known)
