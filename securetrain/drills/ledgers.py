# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""An attacked run, according to its own ledger."""

from datetime import UTC, datetime
from typing import Final

from securetrain.core import RunDir
from securetrain.core.errors import SecureTrainError
from securetrain.core.vocabulary import Boundary
from securetrain.identity.trust import TrustRoot
from securetrain.ledger import LedgerEvent, events, read_ledger

LACKING: Final = "ST-RUNT-020"
"""The end of a run that requires a sandbox where there is none."""

_LIMIT: Final = 16 << 20


def recorded(run_dir: RunDir) -> list[LedgerEvent]:
    """The events of a ledger whose chain and signatures hold; else none."""
    try:
        trust = TrustRoot.load(run_dir.trust, datetime.now(UTC))
        data = run_dir.ledger.read_bytes()[:_LIMIT]
        return list(read_ledger(data, trust, where=str(run_dir.ledger)).events)
    except (OSError, SecureTrainError):
        return []


def refusals(run_dir: RunDir, boundary: Boundary) -> list[events.Refused]:
    """The refusals at a boundary."""
    found = [event for event in recorded(run_dir) if isinstance(event, events.Refused)]
    return [event for event in found if event.boundary is boundary]


def endings(run_dir: RunDir) -> list[events.RunEnded]:
    """The words about how the run ended: one, unless somebody lied."""
    return [event for event in recorded(run_dir) if isinstance(event, events.RunEnded)]
