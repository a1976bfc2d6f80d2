# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The checkpoints of a run by the word of its ledger: which there are, and when each was made.

The ledger is verified before it is read here (`read_entries`), so that entries cannot be removed,
edited or put in another order. What a single writer says of the time is still its word alone, so:

1. a checkpoint was made at the latest time that stands in the ledger up to its last entry, whoever
   wrote that. Ranks of several nodes enter each checkpoint (`SIGNED`, `SEEN`), so that one of them
   cannot date it back;
2. its epoch is the one that had begun by then. A launch counts its epochs from anew;
3. one that was set aside, or removed because it was old, is no longer among them, unless the run
   has made it again (`machine`, rule 1).
"""

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Final

from securetrain.artifacts.lineage import machine
from securetrain.artifacts.lineage.machine import NO_EPOCH, History, Made, State
from securetrain.core.files import read_file
from securetrain.identity.trust import TrustRole, TrustRoot
from securetrain.ledger import Entry, verify_ledger

LEDGER_LIMIT: Final = 1 << 30

SIGNED: Final = "checkpoint-signed"
"""Rank 0 has saved and signed a checkpoint."""
SEEN: Final = "checkpoint-seen"
"""The first rank of another node has taken part in it."""
QUARANTINED: Final = "checkpoint-quarantined"
REMOVED: Final = "checkpoint-removed"
"""An old one is gone, because the job keeps only so many."""
RUN_STARTED: Final = "run-started"
EPOCH_STARTED: Final = "epoch-started"
NODE_DISTRUSTED: Final = "node-distrusted"
RESTART_POINT: Final = "restart-point"


def read_entries(ledger: Path, trust: TrustRoot) -> Sequence[Entry]:
    """Verify a run's ledger, without a last line that another process may be writing.

    Raises:
        IntegrityError: ST-LEDG-001 to 003.
        UsageError: ST-USAG-002 when it cannot be read.
    """
    data = read_file(ledger, LEDGER_LIMIT)
    whole = data[: data.rfind(b"\n") + 1]
    keys = trust.keys_for(TrustRole.LEDGER)
    return verify_ledger(whole, keys, where=str(ledger)).entries


def read_history(entries: Sequence[Entry]) -> History:
    """Read a verified ledger's entries from first to last."""
    made: dict[str, Made] = {}
    states: dict[str, State] = {}
    distrusted: set[tuple[str, str]] = set()
    epoch, restart = NO_EPOCH, ""
    times = accumulate((entry.body.time for entry in entries), max)
    for entry, latest in zip(entries, times, strict=True):
        event, details = entry.body.event, entry.body.event.details
        digest, step = details.get("digest"), details.get("step")
        if event.event == RUN_STARTED:
            epoch = NO_EPOCH
        elif event.event == EPOCH_STARTED:
            began = details.get("epoch")
            epoch = max(epoch, began if isinstance(began, int) else NO_EPOCH)
        elif event.event == RESTART_POINT:
            restart = str(digest or "")
        elif event.event == NODE_DISTRUSTED:
            distrusted.add((event.subject, str(details.get("last_good"))))
        elif event.event in {SIGNED, SEEN} and isinstance(digest, str) and isinstance(step, int):
            _happen(states, digest, machine.Event.ENTER)
            if event.event == SIGNED:
                made.pop(digest, None)  # made again: it is the newest now
            made[digest] = Made(
                name=event.subject, step=step, digest=digest, time=latest, epoch=epoch
            )
        elif event.event in _LEAVING and isinstance(digest, str):
            _happen(states, digest, _LEAVING[event.event])
            made.pop(digest, None)
    return History(
        made=tuple(made.values()),
        set_aside=frozenset(one for one, state in states.items() if state is State.SET_ASIDE),
        epoch=epoch,
        restart=restart,
        distrusted=frozenset(distrusted),
    )


_LEAVING: Final = {QUARANTINED: machine.Event.DOUBT, REMOVED: machine.Event.GONE}


def _happen(states: dict[str, State], digest: str, event: machine.Event) -> None:
    """Take the step of one checkpoint; the ledger names none that was not saved."""
    states[digest] = machine.step(states.get(digest, State.SAVED), event)
