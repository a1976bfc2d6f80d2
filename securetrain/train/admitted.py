# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The nodes that take part in a run, and what they proved, by the word of the run's ledger.

They are those that were admitted in the current start; a checkpoint's statement names them.
"""

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from securetrain.artifacts.lineage.history import RUN_STARTED
from securetrain.artifacts.statement.statements import NodeRef
from securetrain.core.vocabulary import Decision, NodeTier
from securetrain.ledger import Entry

NODE_ADMITTED: Final = "node-admitted"
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


def admitted_nodes(entries: Sequence[Entry], world: int) -> tuple[NodeRef, ...]:
    """Read a verified ledger.

    Args:
        entries: Its entries.
        world: How many ranks there are; a lone node has them all.
    """
    events = [entry.body.event for entry in entries]
    starts = [number for number, event in enumerate(events) if event.event == RUN_STARTED]
    admitted: dict[str, NodeRef] = {}
    for event in events[starts[-1] if starts else 0 :]:
        if event.event == NODE_ADMITTED and event.decision is Decision.ALLOW:
            admitted[event.subject] = NodeRef(
                node=event.subject,
                tier=NodeTier(str(event.details.get("tier", NodeTier.SELF_ASSERTED))),
                label=str(event.details.get("label", "")),
                result=_digest(event.details.get("result")),
            )
    nodes = tuple(admitted.values())
    if len(nodes) == 1:
        only = nodes[0]
        ranks = list(range(world))
        return (msgspec.structs.replace(only, ranks=ranks),)
    return nodes


def _digest(found: object) -> str:
    """The digest of an attestation result; empty in ledgers that do not name it."""
    return found if isinstance(found, str) and _DIGEST.fullmatch(found) else ""
