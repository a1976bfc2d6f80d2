# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Questions of the catalogue that no check answers, and why.

The reference page and ``audit --explain`` are made from this table. A test refuses an entry that a
check answers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from securetrain.core.vocabulary import Boundary


@dataclass(frozen=True, slots=True)
class NotJudged:
    """A question without an answer."""

    boundary: Boundary
    title: str
    because: str


NOT_JUDGED: Final[Mapping[str, NotJudged]] = {
    "ST-RDZ-001": NotJudged(
        Boundary.RENDEZVOUS,
        "A store answers whoever asks",
        "it takes a question to the running store, and an audit asks nobody over a network;"
        " ST-RDZ-002 sees where a store listens",
    ),
    "ST-RDZ-007": NotJudged(
        Boundary.RENDEZVOUS,
        "The rendezvous can be reached from users' or login machines",
        "it takes an attempt from there; ST-NET-006 and ST-FAB-018 see the node's own filters",
    ),
    "ST-INT-003": NotJudged(
        Boundary.GRADIENTS,
        "Ranks do not compare their parameters",
        "no control of this project hashes parameters across ranks: the guard compares what ranks"
        " send (ST-INT-001), and checkpoints say what each rank wrote",
    ),
}
"""By the id that a check would have."""
