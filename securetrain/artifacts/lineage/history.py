# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What a run's ledger says of its checkpoints: which there are, and when each was made.

The ledger is verified before it is read here (`securetrain.ledger.read_ledger`), so that entries
cannot be removed, edited or put in another order, and one under another role's key does not count.
What a single writer says of the time is still its word alone, so:

1. a checkpoint was made at the latest time that stands in the ledger up to its last entry, whoever
   wrote that. Ranks of several nodes enter each checkpoint (`checkpoint-signed`,
   `checkpoint-seen`), so that one of them cannot date it back;
2. its epoch is the one that had begun by then. A launch counts its epochs from anew;
3. one that was set aside, or removed because it was old, is no longer among them, unless the run
   has made it again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from securetrain.ledger import Recorded, events

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


def read_history(recorded: Sequence[Recorded]) -> History:
    """Read the events of a verified ledger from first to last."""
    made: dict[str, Made] = {}
    set_aside: set[str] = set()
    distrusted: set[tuple[str, str]] = set()
    epoch, restart = NO_EPOCH, ""
    latest: datetime | None = None
    for line in recorded:
        latest = line.time if latest is None else max(latest, line.time)
        match line.event:
            case events.RunStarted():
                epoch = NO_EPOCH
            case events.EpochStarted(epoch=began):
                epoch = max(epoch, began)
            case events.RestartPoint(digest=digest):
                restart = digest
            case events.NodeDistrusted(subject=node, last_good=last_good):
                distrusted.add((node, last_good))
            case events.CheckpointSigned() | events.CheckpointSeen() as said:
                set_aside.discard(said.digest)
                if isinstance(said, events.CheckpointSigned):
                    made.pop(said.digest, None)  # made again: it is the newest now
                made[said.digest] = Made(
                    name=said.subject, step=said.step, digest=said.digest, time=latest, epoch=epoch
                )
            case events.CheckpointQuarantined(digest=digest):
                set_aside.add(digest)
                made.pop(digest, None)
            case events.CheckpointRemoved(digest=digest):
                made.pop(digest, None)
            case _:
                pass
    return History(
        made=tuple(made.values()),
        set_aside=frozenset(set_aside),
        epoch=epoch,
        restart=restart,
        distrusted=frozenset(distrusted),
    )
