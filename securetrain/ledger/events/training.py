# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Events of training: checkpoints, inputs, gradients, and what a worker refuses."""

import msgspec

from securetrain.core.vocabulary import (
    DATA_NOT_KNOWN,
    LOADS_NOT_HELD,
    NOT_SIGNED,
    NOT_WATCHED,
    PROGRAMS_NOT_PROTECTED,
    Boundary,
)
from securetrain.ledger.events.event import (
    UNWATCHED,
    Allowed,
    Observed,
    PlainRefused,
    Refused,
    WriterRole,
    event,
)

_LAUNCHER, _RANK, _WORKER = WriterRole.LAUNCHER, WriterRole.RANK, WriterRole.WORKER


# A launcher, of the checkpoints of its run: heads, log, evictions.


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


# The built-in trainer: inputs, gradients, checkpoints.


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


# The shim of a worker.


@event("socket-outside-network", Boundary.NETWORK, _WORKER)
class SocketOutsideNetwork(PlainRefused, frozen=True, kw_only=True):
    """A worker listens where the job's network is not."""


@event("stranger-connected", Boundary.NETWORK, _WORKER)
class StrangerConnected(PlainRefused, frozen=True, kw_only=True):
    """Another process than the job's is connected to a worker."""


@event("nccl-not-encrypted", Boundary.FABRIC, _WORKER)
class NcclNotEncrypted(PlainRefused, frozen=True, kw_only=True):
    """An NCCL library could not be given the job's key."""


@event("debug-server-refused", Boundary.DEBUG, _WORKER)
class DebugServerRefused(PlainRefused, frozen=True, kw_only=True):
    """The script asked for torch's debug server."""


@event("pickle-refused", Boundary.CHECKPOINT, _WORKER)
class PickleRefused(PlainRefused, frozen=True, kw_only=True):
    """A pickle named something that is not on the allow-list."""


@event("pickle-let-through", Boundary.CHECKPOINT, _WORKER)
class PickleLetThrough(Observed, frozen=True, kw_only=True):
    """The same, where the policy only warns."""

    rank: int


@event("saved-file-refused", Boundary.CHECKPOINT, _WORKER)
class SavedFileRefused(PlainRefused, frozen=True, kw_only=True):
    """The script was about to load a file that no statement covers, or that was altered."""


@event("gradients-watched", Boundary.GRADIENTS, _WORKER)
class GradientsWatched(Allowed, frozen=True, kw_only=True):
    """A guard has moved into a model of an unmodified script."""


@event("gradients-not-watched", Boundary.GRADIENTS, _WORKER, WriterRole.LAUNCHER)
class GradientsNotWatched(Observed, frozen=True, kw_only=True):
    """A rank has made a step on gradients that nobody judged; said again at the end of the run."""

    reason: str

    @property
    def labels(self) -> tuple[str, ...]:
        """The honest labels that it carries."""
        return (NOT_WATCHED,)


@event("unwatched-step-refused", Boundary.GRADIENTS, _WORKER)
class UnwatchedStepRefused(PlainRefused, frozen=True, kw_only=True):
    """The same, where the policy requires that gradients are watched."""


@event("checkpoints-not-signed", Boundary.CHECKPOINT, _WORKER, WriterRole.LAUNCHER)
class CheckpointsNotSigned(Observed, frozen=True, kw_only=True):
    """The script has saved what nobody signed; said at a worker's first such save, and counted at
    the end of the run.
    """

    ways: str
    """The functions that were called."""
    place: str = ""
    """Where the first was saved."""
    saves: int = 0
    """Those of the whole run, at its end."""
    fields: str = ""
    """The fields of the policy that are not enforced on them."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The honest labels that it carries."""
        return (NOT_SIGNED,)


@event("unsigned-save-refused", Boundary.CHECKPOINT, _WORKER)
class UnsignedSaveRefused(PlainRefused, frozen=True, kw_only=True):
    """The same, where the policy requires that all of it is enforced: nothing was written."""


@event("loads-not-held", Boundary.CHECKPOINT, _WORKER, WriterRole.LAUNCHER)
class LoadsNotHeld(Observed, frozen=True, kw_only=True):
    """The script has loaded a checkpoint by a call that the policy's demands on loads do not reach;
    said at a worker's first such load, and counted at the end of the run.
    """

    ways: str
    """The functions that were called."""
    fields: str
    """The demands."""
    loads: int = 0
    """Those of the whole run, at its end."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The honest labels that it carries."""
        return (LOADS_NOT_HELD,)


@event("programs-not-protected", Boundary.SUPPLY_CHAIN, _WORKER, WriterRole.LAUNCHER)
class ProgramsNotProtected(Observed, frozen=True, kw_only=True):
    """The script has started a program in Python without the shim; said at a worker's first one,
    and counted at the end of the run. Or the workers themselves had no shim.
    """

    programs: int = 0
    """Those of the whole run, at its end."""
    fields: str = ""
    """Of workers without the shim: the fields of the policy that are not enforced on them."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The honest labels that it carries."""
        return (PROGRAMS_NOT_PROTECTED,)


@event("data-not-known", Boundary.DATASET, WriterRole.LAUNCHER)
class DataNotKnown(Observed, frozen=True, kw_only=True):
    """No worker has opened a signed dataset, and the policy asks something of data; said at the end
    of the run.
    """

    fields: str
    """The demands."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The honest labels that it carries."""
        return (DATA_NOT_KNOWN,)


@event("outside-refused", Boundary.SUPPLY_CHAIN, _WORKER)
class OutsideRefused(PlainRefused, frozen=True, kw_only=True):
    """Such a load or program, where the policy requires that all of it is enforced."""
