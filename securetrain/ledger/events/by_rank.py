# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Events of the built-in trainer: inputs, gradients, checkpoints."""

import msgspec

from securetrain.core.vocabulary import Boundary
from securetrain.ledger.events.base import (
    UNWATCHED,
    Allowed,
    Observed,
    PlainRefused,
    WriterRole,
    event,
)

_RANK = WriterRole.RANK


@event("inputs-refused", Boundary.IDENTITY, _RANK)
class InputsRefused(PlainRefused, frozen=True, kw_only=True):
    """The trust root of the job's inputs is not good."""


@event("dataset-opened", Boundary.DATASET, _RANK)
class DatasetOpened(Allowed, frozen=True, kw_only=True):
    """The dataset is signed, and its content is what was signed."""

    digest: str = ""
    signer: str = ""
    bytes: int = 0
    tokens: int = 0
    format: str = ""
    index: str | None = None
    """The digest of the index of the training split."""
    validation_index: str | None = msgspec.field(name="validationIndex", default=None)
    tokenizer: str | None = None
    tokenizer_end: str | None = msgspec.field(name="tokenizerEnd", default=None)
    tokenizers: str | None = None
    """The version of the library."""


@event("dataset-refused", Boundary.DATASET, _RANK)
class DatasetRefused(PlainRefused, frozen=True, kw_only=True):
    """The dataset is not what was signed."""


@event("tensor-group-spans-machines", Boundary.FABRIC, _RANK)
class TensorGroupSpansMachines(Observed, frozen=True, kw_only=True):
    """Ranks that share matrices do not share a machine."""

    machines: int


@event("mesh-checked", Boundary.FABRIC, _RANK)
class MeshChecked(Allowed, frozen=True, kw_only=True):
    """A small copy of the model computes on the mesh what one process computes."""

    steps: int
    loss: float
    """The largest relative difference of the losses."""
    norm: float
    """The same of gradient norms."""
    left_out: str = ""
    """Settings of the job that were not compared."""


@event("mesh-refused", Boundary.FABRIC, _RANK)
class MeshRefused(PlainRefused, frozen=True, kw_only=True):
    """A small copy of the model computes something else on the mesh."""


@event("weights-loaded", Boundary.CHECKPOINT, _RANK)
class WeightsLoaded(Allowed, frozen=True, kw_only=True):
    """The run starts from signed weights."""

    digest: str
    signer: str


@event("weights-refused", Boundary.CHECKPOINT, _RANK)
class WeightsRefused(PlainRefused, frozen=True, kw_only=True):
    """The weights to start from are not good."""


@event("run-resumed", Boundary.CHECKPOINT, _RANK)
class RunResumed(Allowed, frozen=True, kw_only=True):
    """The run goes on from a checkpoint."""

    step: int
    digest: str


@event("checkpoint-signed", Boundary.CHECKPOINT, _RANK)
class CheckpointSigned(Allowed, frozen=True, kw_only=True):
    """Rank 0 has saved and signed a checkpoint."""

    step: int
    digest: str
    verdict: str = ""
    """What the guard says of the gradients."""

    @property
    def labels(self) -> tuple[str, ...]:
        """UNWATCHED."""
        return (UNWATCHED,) if self.verdict == UNWATCHED else ()


@event("checkpoint-seen", Boundary.CHECKPOINT, _RANK)
class CheckpointSeen(Observed, frozen=True, kw_only=True):
    """The first rank of another node has taken part in a checkpoint."""

    step: int
    digest: str


@event("checkpoint-removed", Boundary.CHECKPOINT, _RANK, WriterRole.LAUNCHER)
class CheckpointRemoved(Observed, frozen=True, kw_only=True):
    """An old checkpoint is gone, because the job keeps only so many. A launcher finishes a removal
    that a death has interrupted.
    """

    step: int
    digest: str


@event("checkpoint-refused", Boundary.CHECKPOINT, _RANK)
class CheckpointRefused(PlainRefused, frozen=True, kw_only=True):
    """A checkpoint could not be saved, or is not one to go on from."""


@event("step-refused", Boundary.GRADIENTS, _RANK)
class StepRefused(PlainRefused, frozen=True, kw_only=True):
    """The guard has dropped a step's gradients."""


@event("rank-excluded", Boundary.GRADIENTS, _RANK)
class RankExcluded(Observed, frozen=True, kw_only=True):
    """A rank's gradients count zero from now on, on probation."""

    rank: int
    codes: str
    """Of the verdict, a blank between two."""
    evidence: str
    effect: str
    """Out of this step's result too, or the step was dropped."""


@event("reduction-disputed", Boundary.GRADIENTS, _RANK)
class ReductionDisputed(Observed, frozen=True, kw_only=True):
    """The first rank of a node has kept the signed words of a disputed reduction, or could not."""

    digest: str
    """SHA-256 of the file in ``disputes``, which has this name."""
    pairs: str
    """Ranks that contradict each other, a blank between two pairs; no word against either."""
    named: str
    """Ranks whose own words contradict each other."""
    unsigned: str
    """Ranks that did not sign all their words."""
    lost: str = ""
    """The reason why the file is not there; empty where it is."""


@event("rank-readmitted", Boundary.GRADIENTS, _RANK)
class RankReadmitted(Observed, frozen=True, kw_only=True):
    """A rank's gradients count again: its probation is over."""

    rank: int


@event("rank-suspected", Boundary.GRADIENTS, _RANK)
class RankSuspected(Observed, frozen=True, kw_only=True):
    """The first rank of a node reports a rank of another one to the rendezvous."""

    rank: int
    cause: str
    """The code of what it was caught at."""
    said: str


@event("rolled-back", Boundary.GRADIENTS, _RANK)
class RolledBack(Observed, frozen=True, kw_only=True):
    """The run goes back to a checkpoint from before a rank's offence, and on without the rank."""

    to: int
    """The checkpoint's step; later ones are set aside."""
    ranks: str
    """Excluded from then on."""
    evidence: str


@event("rollback-impossible", Boundary.GRADIENTS, _RANK)
class RollbackImpossible(Observed, frozen=True, kw_only=True):
    """No checkpoint from before a rank's offence is left; the run goes on without the rank, with
    what it did before it was named.
    """

    since: int
    """The last step before the offence."""
    ranks: str


@event("step-settled", Boundary.GRADIENTS, _RANK)
class StepSettled(Observed, frozen=True, kw_only=True):
    """A step was reduced again, and nothing of what the guard found is in it."""

    codes: str
    """Of the verdict, a blank between two."""
    reason: str


@event("run-halted", Boundary.GRADIENTS, _RANK)
class RunHalted(PlainRefused, frozen=True, kw_only=True):
    """The guard has ended the run."""


@event("training-finished", Boundary.GRADIENTS, _RANK)
class TrainingFinished(Observed, frozen=True, kw_only=True):
    """The figures of a run that came to its end."""

    tokens: int
    refused: int
    observed: int
    loss: float
    validation_bits_per_byte: float | None = None
    validation_bits_per_token: float | None = None
