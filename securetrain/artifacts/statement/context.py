# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A training loop's word on the checkpoint that it saves, and who signs it.

Under ``securetrain run`` a worker finds the socket by ``SECURETRAIN_SIGNER`` and needs no key file:
`save` and its variants ask `this_run` for what they were not given. Elsewhere there is no such
run, and a key has to be given.
"""

import base64
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from securetrain.artifacts.given import check_fields
from securetrain.artifacts.statement.checkpoint_predicate import NodeSigner
from securetrain.artifacts.statement.statements import (
    DatasetRef,
    GradientRecord,
    NodeRef,
    Parent,
    PolicyRef,
)
from securetrain.core import SIGNER_VARIABLE
from securetrain.core.errors import UsageError
from securetrain.identity.keys import PublicKey, Signer
from securetrain.identity.signing import Ask, LauncherKey, Topic, nodes_of, shared_socket


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSigning:
    """The means of this worker to sign in its run."""

    run_id: str
    """The run's id, which every statement must name."""
    rank: int
    checkpoint: Signer | None
    """Signs statements; None on every rank but 0."""
    head: Signer | None
    """Signs heads; None on every rank but 0."""
    signer: NodeSigner | None = None
    """Has this rank's own file signed; None when nobody has certified a key for its node."""
    nodes: tuple[int, ...] = ()
    """The node of each rank, by the epoch's membership; empty where nobody says."""

    def show(self, statement: bytes) -> None:
        """Show the launcher a signed statement that this run starts from or reads: a dataset's, or
        that of a checkpoint of another run. The next statements bind it.

        It does nothing where this process cannot sign statements, or no launcher does it.

        Args:
            statement: The DSSE envelope, as it lies there.

        Raises:
            RuntimeRefusal: ST-RUNT-030 to 035; 032 for what is no statement.
        """
        if isinstance(self.checkpoint, LauncherKey):
            said = base64.b64encode(statement).decode()
            self.checkpoint.socket.declare(Topic.STATEMENT, said)

    def describe(self, settings: Mapping[str, object]) -> None:
        """Tell the launcher this program's own resolved settings. They are bound as its own word.

        Raises:
            RuntimeRefusal: ST-RUNT-030 to 035; 032 for settings that are no JSON.
        """
        if isinstance(self.checkpoint, LauncherKey):
            self.checkpoint.socket.declare(Topic.JOB, dict(settings))


def open_signing(path: Path) -> RunSigning:
    """Ask a launcher.

    Raises:
        RuntimeRefusal: ST-RUNT-030 when this is no worker of it, ST-RUNT-035 when it does not
            answer.
    """
    socket = shared_socket(path)
    said = socket.welcome()
    checkpoint = head = signer = None
    if said.checkpoint_key:
        pair = (said.checkpoint_key, said.checkpoint_companion)
        checkpoint = LauncherKey.of(socket, Ask.CHECKPOINT, *pair)
        head = LauncherKey.of(socket, Ask.HEAD, *pair)
    if said.rank_key:
        key = PublicKey.from_spki(base64.b64decode(said.rank_key))
        signer = NodeSigner(socket, key.key_id, said.rank_certificate)
    return RunSigning(
        run_id=said.run_id,
        rank=said.rank,
        checkpoint=checkpoint,
        head=head,
        signer=signer,
        nodes=nodes_of(said),
    )


def this_run(environ: Mapping[str, str] | None = None) -> RunSigning | None:
    """The signing of the run that this process is a worker of; None outside of any.

    Args:
        environ: The environment; this process's own by default.

    Raises:
        RuntimeRefusal: See `open_signing`.
    """
    found = (os.environ if environ is None else environ).get(SIGNER_VARIABLE, "")
    return _opened(Path(found), os.getpid()) if found else None


@cache
def _opened(path: Path, pid: int) -> RunSigning:
    """One connection for a process; a child that was forked has another (`pid`)."""
    del pid
    return open_signing(path)


@dataclass(frozen=True, slots=True)
class StepPieces:
    """The records of the steps that led to a state, for the launcher to keep."""

    digest: str
    """SHA-256 (hex) of the document; the same on every rank, which signs it with its file."""
    document: bytes
    pages: tuple[bytes, ...] = ()
    """The records themselves, which the document names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveContext:
    """The lineage of one checkpoint. The coordinator's context is the one that gets signed.

    Raises:
        UsageError: ST-USAG-001 for a field that is not what it may be.

    >>> SaveContext(run_id="toy", step=12, created=now).signed_name
    'toy'
    """

    run_id: str
    name: str = ""
    """The name by which people ask for what is saved; the run's when empty."""
    step: int
    """Optimizer steps that led to this state."""
    created: datetime
    """When it is saved, with a time zone."""
    expires: datetime | None = None
    """From when on nobody should load it; None when it keeps."""
    seq: int | None = None
    """Which checkpoint of the run this is, counted from 0; None takes one more than the newest that
    the same key has signed in the same folder."""
    epoch: int | None = None
    """The membership that is in force; None when the training loop does not know."""
    dataset: DatasetRef = field(default_factory=DatasetRef)
    policy: PolicyRef = field(default_factory=PolicyRef)
    gradients: GradientRecord = field(default_factory=GradientRecord)
    parents: tuple[Parent, ...] = ()
    nodes: tuple[NodeRef, ...] = ()
    code: dict[str, str] = field(default_factory=dict)
    """What ran: for example a git commit and a lock file's digest."""
    env: dict[str, str] = field(default_factory=dict)
    """Where it ran. The versions of torch, python and securetrain are added when saving."""
    records: StepPieces | None = None
    """The records of the steps since the parent; None where nobody made any."""
    save_id: str = ""
    """32 hex digits that no other save has; drawn by the coordinator when empty."""

    def __post_init__(self) -> None:
        check_fields(self)

    @classmethod
    def of(cls, state: Mapping[str, Any], run: str = "", step: int | None = None) -> "SaveContext":
        """The context of a state by itself: its run and its step, never guessed.

        Args:
            state: Its ``step`` counts where none is given.
            run: The run that saves; that of ``securetrain run`` when empty.
            step: Optimizer steps that led to the state.

        Raises:
            UsageError: ST-USAG-001 when nothing says them.
        """
        launched = None if run else this_run()
        if not run and launched is None:
            raise UsageError(
                "ST-USAG-001",
                "a checkpoint is signed for a run, and none is named",
                "run",
                "give the run to a Session, or start the script with securetrain run",
            )
        found = state.get("step") if step is None else step
        if type(found) is not int:
            raise UsageError(
                "ST-USAG-001",
                "nothing says at which step this is saved",
                "step",
                "give step=, or keep it in the state as 'step'",
            )
        return cls(
            run_id=run if launched is None else launched.run_id,
            step=found,
            created=datetime.now(UTC),
        )

    @property
    def recorded(self) -> str | None:
        """The digest of the steps' records; None without any."""
        return None if self.records is None else self.records.digest

    @property
    def signed_name(self) -> str:
        """The name that the statement bears."""
        return self.name or self.run_id
