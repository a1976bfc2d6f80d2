# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The refusals of an attacked run, according to its own ledger."""

from datetime import UTC, datetime
from typing import Final

from securetrain.core import RunDir
from securetrain.core.errors import SecureTrainError
from securetrain.core.vocabulary import Boundary
from securetrain.identity.trust import TrustRoot
from securetrain.ledger import events, read_ledger

_LIMIT: Final = 16 << 20


def refusals(run_dir: RunDir, boundary: Boundary) -> list[events.Refused]:
    """The refusals at a boundary, from a ledger whose chain and signatures hold; else none."""
    try:
        trust = TrustRoot.load(run_dir.trust, datetime.now(UTC))
        data = run_dir.ledger.read_bytes()[:_LIMIT]
        said = read_ledger(data, trust, where=str(run_dir.ledger)).events
    except (OSError, SecureTrainError):
        return []
    return [
        event for event in said if isinstance(event, events.Refused) and event.boundary is boundary
    ]
