# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The nodes that take part in a run, and what they proved, by the word of the run's ledger.

They are those that were admitted in the current start; a checkpoint's statement names them.
"""

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from securetrain.artifacts.statement.statements import NodeRef
from securetrain.ledger import LedgerEvent, events

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


def admitted_nodes(said: Sequence[LedgerEvent], world: int) -> tuple[NodeRef, ...]:
    """Read the events of a verified ledger.

    Args:
        said: Its events, in order.
        world: How many ranks there are; a lone node has them all.
    """
    admitted: dict[str, NodeRef] = {}
    for event in said:
        match event:
            case events.RunStarted():
                admitted.clear()
            case events.NodeAdmitted():
                admitted[event.subject] = NodeRef(
                    node=event.subject,
                    tier=event.tier,
                    label=event.label,
                    result=event.result if _DIGEST.fullmatch(event.result) else "",
                )
            case _:
                pass
    nodes = tuple(admitted.values())
    if len(nodes) == 1:
        only = nodes[0]
        ranks = list(range(world))
        return (msgspec.structs.replace(only, ranks=ranks),)
    return nodes
