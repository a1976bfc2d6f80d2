# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Something opaque at every place of the audit's corpus (`tests/audit/opaque/worlds.py`).

A case is one file with all its places: nothing that could depend on one passes there, and what is
transparent changes no verdict.
"""

import random
from pathlib import Path
from typing import Final

from tests.audit.opaque import worlds as opaque
from tools.campaigns import Campaign, Missed


def walk(number: int, folder: Path) -> str:
    """All places of one file, by its number."""
    path, form = opaque.sources()[number % len(opaque.sources())]
    faults = [fault for place in opaque.places(path, form) for fault in place.faults(folder)]
    if faults:
        raise Missed(f"{len(faults)} in {path.name}: {'; '.join(faults[:3])}")
    return "held"


def case(rng: random.Random, folder: Path) -> str:
    """One place, drawn."""
    faults = [fault for place in opaque.drawn(rng, 1) for fault in place.faults(folder)]
    if faults:
        raise Missed("; ".join(faults[:3]))
    return "held"


CAMPAIGN: Final = Campaign(
    title="opaque constructs at every place", count=len(opaque.sources()), case=case, walk=walk
)
