# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The guard's word on a step in TensorBoard's events, of the trainer and of scripts alike."""

import importlib.util
from pathlib import Path
from typing import Any, Final

from securetrain.guard.verdict import Verdict

_WRITER: Final = "tensorboardX"


def add_verdict(board: Any, verdict: Verdict) -> None:
    """Add evidence and norm of every rank, the integrity and who is excluded.

    Args:
        board: a ``SummaryWriter``.
        verdict: of the step.
    """
    for score in verdict.table:
        for name, value in (("evidence", score.evidence), ("norm", score.norm)):
            if value is not None:
                board.add_scalar(f"guard/{name}/rank-{score.rank}", value, verdict.step)
    if verdict.integrity is not None:
        board.add_scalar("guard/integrity", verdict.integrity, verdict.step)
    board.add_scalar("guard/excluded", len(verdict.excluded), verdict.step)


def open_board(folder: Path, step: int) -> Any:
    """A writer of events, which go on before a step; None where tensorboardX is not installed."""
    if importlib.util.find_spec(_WRITER) is None:
        return None
    from tensorboardX import SummaryWriter  # noqa: PLC0415 - only where it is asked for

    return SummaryWriter(str(folder), purge_step=step if step > 1 else None)
