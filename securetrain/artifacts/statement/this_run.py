# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Sign as a worker of a run: with the launcher's keys, through its signing socket.

Under ``securetrain run`` a worker finds the socket by ``SECURETRAIN_SIGNER`` and needs no key file:
`save` and its variants ask `this_run` for what they were not given. Elsewhere there is no such
run, and a key has to be given.
"""

import base64
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from securetrain.artifacts.statement.node_signatures import NodeSigner
from securetrain.core import SIGNER_VARIABLE
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
    signer: NodeSigner | None
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
