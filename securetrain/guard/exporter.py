# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""guard.prom: what the guard says of the last step, for node-exporter's textfile collector.

The file is replaced whole, at most every few seconds, and at once when somebody is excluded or a
step is refused. Nothing listens.
"""

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from securetrain.core import exposition
from securetrain.core.files import write_whole
from securetrain.guard.verdict import StepRecord

EVERY: Final = 5.0
_PREFIX: Final = "securetrain_guard"


class GuardTextfile:
    """Writes the file of one run.

    Args:
        path: The file.
        labels: Of every number.
        every: Seconds between writes: collectors read no oftener.
        clock: Seconds.
    """

    def __init__(
        self,
        path: Path,
        labels: Mapping[str, str],
        *,
        every: float = EVERY,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._labels = dict(labels)
        self._every, self._clock = every, clock
        self._next = -math.inf
        self._last: StepRecord | None = None

    def write(self, record: StepRecord) -> None:
        """Take a step, and replace the file when it is time.

        Raises:
            UsageError: ST-USAG-002 or 006 on I/O errors.
        """
        self._last = record
        news = record.verdict.newly_excluded or record.verdict.readmitted or not record.verdict.ok
        if news or self._clock() >= self._next:
            self.close()

    def close(self) -> None:
        """Write what was held back.

        Raises:
            UsageError: ST-USAG-002 or 006 on I/O errors.
        """
        record, self._last = self._last, None
        if record is None:
            return
        self._next = self._clock() + self._every
        write_whole(self._path, ("\n".join(self._lines(record)) + "\n").encode(), mode=0o644)

    def _lines(self, record: StepRecord) -> list[str]:
        verdict, totals = record.verdict, record.totals
        mine = exposition.labels(self._labels)
        counters = {
            "steps_judged": ("Steps judged.", totals.judged),
            "steps_refused": ("Steps whose gradients were dropped.", totals.refused),
            "steps_settled": ("Steps reduced again without a rank.", totals.settled),
            "steps_without_a_rank": ("Steps applied without a rank.", totals.without),
            "rollbacks": ("Times the run went back to an earlier state.", totals.rolled_back),
        }
        lines: list[str] = []
        for name, (text, value) in counters.items():
            lines += exposition.metric(
                f"{_PREFIX}_{name}_total", "counter", text, [(mine, float(value))]
            )
        evidence = [
            (self._rank(s.rank), s.evidence) for s in verdict.table if s.evidence is not None
        ]
        limit = max((s.limit for s in verdict.table if s.limit), default=None)
        excluded = {*verdict.excluded, *verdict.newly_excluded} - set(verdict.readmitted)
        ranks = sorted({s.rank for s in verdict.table} | excluded)
        gauges: list[tuple[str, str, list[tuple[str, float]]]] = [
            ("evidence", "ln E: how strongly all steps so far speak against the rank.", evidence),
            ("limit", "The ln E from which on a rank is excluded.", _one(mine, limit)),
            (
                "excluded",
                "Whether the rank's gradients count zero.",
                [(self._rank(rank), float(rank in excluded)) for rank in ranks],
            ),
            (
                "integrity",
                "Difference of the reduction from what ranks sent, of its limit.",
                _one(mine, verdict.integrity),
            ),
        ]
        for name, text, samples in gauges:
            if samples:
                lines += exposition.metric(f"{_PREFIX}_{name}", "gauge", text, samples)
        return lines

    def _rank(self, rank: int) -> str:
        return exposition.labels({**self._labels, "rank": str(rank)})


def _one(labels: str, value: float | None) -> list[tuple[str, float]]:
    return [] if value is None else [(labels, value)]
