# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""From a verdict to entries of the ledger."""

from collections.abc import Iterator
from typing import Final

from securetrain.guard.verdict import Verdict
from securetrain.ledger import events

_TEXT: Final = 1000
"""Characters of a verdict's reason that an event keeps."""


def verdict_events(verdict: Verdict) -> Iterator[events.Observed]:
    """The ledger's entries about who is excluded, on what evidence, and what came of the step."""
    subject, codes, reason = f"step {verdict.step}", " ".join(verdict.codes), verdict.reason[:_TEXT]
    if verdict.settled:
        yield events.StepSettled(subject=subject, codes=codes, reason=reason)
    for rank in verdict.newly_excluded:
        yield events.RankExcluded(
            subject=subject,
            rank=rank,
            codes=codes,
            evidence=reason,
            effect="reduced without it" if rank in verdict.excluded else "step dropped",
        )
    for rank in verdict.readmitted:
        yield events.RankReadmitted(subject=subject, rank=rank)
