# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The refusals of an attacked run, according to its own ledger."""

from datetime import UTC, datetime
from typing import Final

from securetrain.core.errors import SecureTrainError
from securetrain.core.rundir import RunDir
from securetrain.core.vocabulary import Boundary, Decision
from securetrain.identity.trust import TrustRole, TrustRoot
from securetrain.ledger import Entry, verify_ledger

_LIMIT: Final = 16 << 20


def refusals(run_dir: RunDir, boundary: Boundary) -> list[Entry]:
    """The refusals at a boundary, from a ledger whose chain and signatures hold; else none."""
    try:
        trust = TrustRoot.load(run_dir.trust, datetime.now(UTC))
        data = run_dir.ledger.read_bytes()[:_LIMIT]
        ledger = verify_ledger(data, trust.keys_for(TrustRole.LEDGER), where=str(run_dir.ledger))
    except (OSError, SecureTrainError):
        return []
    return [
        entry
        for entry in ledger.entries
        if entry.body.event.decision is Decision.REFUSE and entry.body.event.boundary is boundary
    ]
