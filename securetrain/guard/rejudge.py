# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Judge the tables of a run again, step by step, with the code that judged them first. No torch.

Rules:

1. a detector follows the run from its first step. It learns from every table, and takes back what
   the guard took back: how many steps that one had learned from is recorded;
2. a process that began anew had its detector from a checkpoint: what waits in quarantine was gone,
   and so it is here;
3. a table shows less than the guard knew (disputes, buffers, numbers after the verdict). So a step
   can have been judged worse than its table says, and never better.
"""

from collections.abc import Collection, Sequence

import numpy as np

from securetrain.guard.detector import Detector
from securetrain.guard.exclusion import weights_of
from securetrain.guard.response import Findings
from securetrain.guard.step_table import StepTable
from securetrain.guard.table_reader import Shown, TableReader
from securetrain.policy.schema import Gradients


class Rejudge:
    """Judges the steps of one run again.

    Args:
        ranks: of the run.
        settings: the policy's section.
    """

    def __init__(self, ranks: int, settings: Gradients) -> None:
        self.ranks = ranks
        self._settings = settings
        self._detector = Detector.of(ranks, settings)
        self._past: list[Detector] = []
        self._reader: TableReader | None = None

    def begin_anew(self) -> None:
        """A process has begun with what a checkpoint holds (rule 2)."""
        state = self._detector.state()
        self._detector = Detector.of(self.ranks, self._settings)
        self._detector.restart(state)
        self._past, self._reader = [], None

    def judge(self, table: StepTable, *, out: Collection[int], learned: int) -> tuple[str, ...]:
        """The codes of what a table shows; none for a clean step.

        Args:
            table: the step's.
            out: ranks whose gradients count zero.
            learned: how many steps the guard's detector had learned from afterwards.

        Raises:
            ValueError: the table is of another run, or the detector cannot have learned so much.
        """
        layout = table.layout
        if layout.ranks != self.ranks:
            raise ValueError(f"a table of {layout.ranks} ranks, the run has {self.ranks}")
        reader = self._reader
        if reader is None or reader.owners != layout.owners:
            reader = self._reader = TableReader(range(self.ranks), layout.owners)
        self._past = [*self._past[-1:], self._detector.snapshot()]
        findings = Findings(scaled=table.scaled)
        shown = Shown(
            rows=table.rows,
            groups=layout.groups,
            parts=layout.parts,
            size=layout.size,
            keys=layout.keys,
            roundoff=float.fromhex(layout.roundoff),
            near_zero=float.fromhex(layout.near_zero),
            unopened=tuple(sorted({rank for ranks in table.unopened for rank in ranks})),
            weights=weights_of(self.ranks, out),
            known=tuple(sorted(out)),
        )
        with np.errstate(all="ignore"):  # a liar's numbers may be any
            reader.read(findings, shown, self._detector)
        self._settle(learned)
        return tuple(sorted(findings.codes))

    def skip(self, learned: int) -> None:
        """Pass over a step of which there is no table, and from which nothing was learned.

        Raises:
            ValueError: something was.
        """
        self._settle(learned)

    def _settle(self, learned: int) -> None:
        """Take back what the guard took back (rule 1)."""
        for one in (self._detector, *reversed(self._past)):
            if one.learned == learned:
                if one is not self._detector:
                    self._detector.rewind(one)
                return
        raise ValueError(f"{learned} steps were learned from, here {self._detector.learned}")


def transcripts_agree(table: StepTable, seeds: Sequence[bytes], out: Collection[int]) -> bool:
    """Tell whether the ranks that count sketched under some seeds, by their own rows."""
    wanted = table.transcript(seeds)
    size = len(wanted)
    return all(row[:size] == wanted for rank, row in enumerate(table.rows) if rank not in out)
