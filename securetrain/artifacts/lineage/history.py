# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What a run's ledger says of its checkpoints: which there are, and when each was made.

The ledger is verified before it is read here (`securetrain.ledger.verify_ledger`), so that entries
cannot be removed, edited or put in another order. What a single writer says of the time is still
its word alone, so:

1. a checkpoint was made at the latest time that stands in the ledger up to its last entry, whoever
   wrote that. Ranks of several nodes enter each checkpoint (`SIGNED`, `SEEN`), so that one of them
   cannot date it back;
2. its epoch is the one that had begun by then. A launch counts its epochs from anew;
3. one that was set aside, or removed because it was old, is no longer among them, unless the run
   has made it again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from securetrain.ledger import Entry

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

NO_EPOCH: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """One checkpoint."""

    name: str
    step: int
    digest: str
    time: datetime
    epoch: int
    """`NO_EPOCH` when none had begun."""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What the ledger says."""

    made: tuple[Made, ...] = ()
    """Oldest first."""
    set_aside: frozenset[str] = frozenset()
    """Digests of those that were set aside and not made again."""
    epoch: int = NO_EPOCH
    """The one that has begun last, in this launch."""
    restart: str = ""
    """The digest of the checkpoint that the run went back to last; empty when it never did, or went
    back to the beginning."""
    distrusted: frozenset[tuple[str, str]] = frozenset()
    """Evictions that were dealt with: the node, and its ``last_good``."""

    @property
    def by_digest(self) -> dict[str, Made]:
        """The checkpoints by their digests."""
        return {made.digest: made for made in self.made}


def read_history(entries: Sequence[Entry]) -> History:
    """Read a verified ledger's entries from first to last."""
    made: dict[str, Made] = {}
    set_aside: set[str] = set()
    distrusted: set[tuple[str, str]] = set()
    epoch, restart = NO_EPOCH, ""
    latest: datetime | None = None
    for entry in entries:
        event, details = entry.body.event, entry.body.event.details
        latest = entry.body.time if latest is None else max(latest, entry.body.time)
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
            set_aside.discard(digest)
            if event.event == SIGNED:
                made.pop(digest, None)  # made again: it is the newest now
            made[digest] = Made(
                name=event.subject, step=step, digest=digest, time=latest, epoch=epoch
            )
        elif event.event == QUARANTINED and isinstance(digest, str):
            set_aside.add(digest)
            made.pop(digest, None)
        elif event.event == REMOVED and isinstance(digest, str):
            made.pop(digest, None)
    return History(
        made=tuple(made.values()),
        set_aside=frozenset(set_aside),
        epoch=epoch,
        restart=restart,
        distrusted=frozenset(distrusted),
    )
