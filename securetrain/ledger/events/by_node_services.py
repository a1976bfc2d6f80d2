# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Events of a node's launcher about the checkpoints of its run: epochs, heads, log, evictions."""

from securetrain.core.vocabulary import Boundary
from securetrain.ledger.events.base import (
    UNWATCHED,
    Allowed,
    Observed,
    PlainRefused,
    Refused,
    WriterRole,
    event,
)

_LAUNCHER = WriterRole.LAUNCHER


@event("epoch-started", Boundary.RENDEZVOUS, _LAUNCHER)
class EpochStarted(Observed, frozen=True, kw_only=True):
    """An epoch's members are known, and its workers are about to start."""

    epoch: int
    nodes: str = ""
    ranks: str = ""
    """The first and last rank of each of them; empty until all have said what they run."""


@event("checkpoint-quarantined", Boundary.CHECKPOINT, _LAUNCHER)
class CheckpointQuarantined(Refused, frozen=True, kw_only=True):
    """A checkpoint is set aside, because a node was evicted that may have had part in it."""

    step: int
    digest: str
    node: str = ""


@event("checkpoint-recovered", Boundary.CHECKPOINT, _LAUNCHER)
class CheckpointRecovered(Allowed, frozen=True, kw_only=True):
    """A checkpoint that was whole and signed when the run died, before it was entered."""

    step: int
    digest: str
    verdict: str = ""
    """What the guard says of the gradients."""

    @property
    def labels(self) -> tuple[str, ...]:
        """UNWATCHED."""
        return (UNWATCHED,) if self.verdict == UNWATCHED else ()


@event("node-distrusted", Boundary.NODE, _LAUNCHER)
class NodeDistrusted(Observed, frozen=True, kw_only=True):
    """An eviction was dealt with."""

    cause: str = ""
    last_good: str
    last_good_here: str = ""
    """The same by this node's clock."""
    epoch: int = -1


@event("restart-point", Boundary.CHECKPOINT, _LAUNCHER)
class RestartPoint(Observed, frozen=True, kw_only=True):
    """The workers go back to a checkpoint, or to the beginning."""

    step: int
    digest: str
    """Empty for the beginning."""


@event("head-refused", Boundary.CHECKPOINT, _LAUNCHER)
class HeadRefused(PlainRefused, frozen=True, kw_only=True):
    """The head beside the checkpoints is not good."""


@event("floor-not-proven", Boundary.CHECKPOINT, _LAUNCHER)
class FloorNotProven(Refused, frozen=True, kw_only=True):
    """A member has shown a head that is not good."""

    epoch: int


@event("floor-raised", Boundary.CHECKPOINT, _LAUNCHER)
class FloorRaised(Observed, frozen=True, kw_only=True):
    """A member has shown a newer head than this node knew."""

    seq: int
    step: int
    digest: str


@event("run-forked", Boundary.CHECKPOINT, _LAUNCHER)
class RunForked(PlainRefused, frozen=True, kw_only=True):
    """Two heads of one number are signed."""


@event("log-witnessed", Boundary.CHECKPOINT, _LAUNCHER)
class LogWitnessed(Observed, frozen=True, kw_only=True):
    """This machine has cosigned the transparency log."""

    size: int
    before: int


@event("checkpoint-logged", Boundary.CHECKPOINT, _LAUNCHER)
class CheckpointLogged(Allowed, frozen=True, kw_only=True):
    """A checkpoint is in the transparency log, and the proof lies beside it."""

    step: int
    digest: str
    index: int
    origin: str
    witnesses: int


@event("newest-refused", Boundary.CHECKPOINT, _LAUNCHER)
class NewestRefused(PlainRefused, frozen=True, kw_only=True):
    """Looking at the run's newest checkpoint was refused; the run ends."""


@event("log-refused", Boundary.CHECKPOINT, _LAUNCHER)
class LogRefused(PlainRefused, frozen=True, kw_only=True):
    """The transparency log is not what it was, or cannot be used; the run ends."""


@event("end-refused", Boundary.CHECKPOINT, _LAUNCHER)
class EndRefused(PlainRefused, frozen=True, kw_only=True):
    """A run that ends lacks what it must have, such as proofs that its checkpoints are logged."""
