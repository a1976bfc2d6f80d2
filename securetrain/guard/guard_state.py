# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The part of a guard that survives in a checkpoint."""

from typing import Final

import msgspec

from securetrain.guard.detector_state import DetectorState
from securetrain.guard.exclusion import ExclusionState
from securetrain.guard.verdict import Totals

STATE_VERSION: Final = 3


class PieceState(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Everything learned about one piece of the model, and who is excluded from it."""

    ranks: tuple[int, ...]
    piece: str
    detector: DetectorState
    exclusion: ExclusionState


class GuardState(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The part of the guard that survives in a checkpoint: plain numbers, no secret."""

    version: int = STATE_VERSION
    totals: Totals
    pieces: list[PieceState]
    calm: dict[str, int] = {}
    """The last step in which nothing spoke against a rank (`suspicions.Beginnings`)."""
