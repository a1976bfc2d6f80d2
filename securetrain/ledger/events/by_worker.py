# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Events of the shim in a worker."""

from securetrain.core.vocabulary import (
    DATA_NOT_KNOWN,
    LOADS_NOT_HELD,
    NOT_SIGNED,
    NOT_WATCHED,
    PROGRAMS_NOT_PROTECTED,
    Boundary,
)
from securetrain.ledger.events.base import Allowed, Observed, PlainRefused, WriterRole, event

_WORKER = WriterRole.WORKER


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
