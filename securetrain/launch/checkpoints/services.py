# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The background services of one node while its workers train, assembled for the run."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from securetrain.artifacts.lineage import folder as run_folder
from securetrain.artifacts.lineage import judging
from securetrain.core import STATE_VARIABLE, NodeState, default_state
from securetrain.core.errors import UsageError
from securetrain.identity import open_signer
from securetrain.identity.keys import Signer
from securetrain.identity.log import machine_witness, witness_key
from securetrain.identity.trust import TrustRoot
from securetrain.launch.checkpoints.background import BackgroundTasks, Task
from securetrain.launch.checkpoints.checkpoint_log import CheckpointLog
from securetrain.launch.checkpoints.head_tracker import HeadTracker
from securetrain.launch.options import RunOptions
from securetrain.launch.setup import LOG_KEY, RunSetup, node_name
from securetrain.ledger import Ledger, events
from securetrain.network import rootless
from securetrain.policy.schema import TransparencyLog


@dataclass(frozen=True, slots=True)
class NodeServices:
    """The services of one node's run."""

    head_tracker: HeadTracker
    background: BackgroundTasks
    checkpoint_log: CheckpointLog | None
    """None when the policy asks for no log."""

    @property
    def sentence(self) -> str:
        """The log, for people; empty without one."""
        book = self.checkpoint_log
        if book is None:
            return ""
        asked = book.asked
        watched = f"{asked.quorum} of {max(1, len(asked.witnesses))} witnesses must cosign"
        return f"{book.folder}, {watched}"


def node_state(environ: Mapping[str, str], *, is_root: bool) -> NodeState:
    """The folder of what this machine keeps between runs.

    Args:
        environ: May name the folder (``SECURETRAIN_STATE``).
        is_root: Whether this is the machine's own root; in a user namespace, root is just the user.
    """
    given = environ.get(STATE_VARIABLE)
    return NodeState(Path(given or default_state(Path.home(), 0 if is_root else -1)).absolute())


def this_node(environ: Mapping[str, str]) -> NodeState:
    """`node_state` of the machine and user that this process runs as."""
    is_root = os.geteuid() == 0 and rootless.forwarded_endpoint(environ) is None
    return node_state(environ, is_root=is_root)


def start_services(
    setup: RunSetup,
    options: RunOptions,
    ledger: Ledger,
    clock: Callable[[], datetime],
    state: NodeState,
) -> NodeServices:
    """Start the services; the caller stops the background tasks.

    Raises:
        UsageError: ST-USAG-001 when the policy's log is not to be found.
        IdentityError: ST-IDEN-001, 010 or 019 when a key cannot be used; ST-IDEN-040 or 044 when
            the trust root's log is not the policy's.
    """
    floors = judging.Floors(state.floors(setup.job))
    floors.adopt()
    head_tracker = HeadTracker(
        run=setup.run,
        run_id=setup.job,
        floors=floors,
        ledger=ledger,
        clock=clock,
    )
    tasks: dict[type[events.PlainRefused], Task] = {events.NewestRefused: head_tracker.refresh}
    asked = setup.policy.policy.checkpoint.log
    if asked is None:
        background = BackgroundTasks(tasks=tasks, ledger=ledger)
        background.start()
        return NodeServices(head_tracker, background, None)
    book = _start_checkpoint_log(setup, options, asked, ledger, clock, state)
    background = BackgroundTasks(
        tasks={**tasks, events.LogRefused: book.run_once},
        ledger=ledger,
        unfinished=lambda: bool(book.pending),
        at_end=book.require_all,
    )
    background.start()
    return NodeServices(head_tracker, background, book)


def _start_checkpoint_log(  # noqa: PLR0917 - what it is made of
    setup: RunSetup,
    options: RunOptions,
    asked: TransparencyLog,
    ledger: Ledger,
    clock: Callable[[], datetime],
    state: NodeState,
) -> CheckpointLog:
    folder, key = _where(setup, options, asked)
    trust = TrustRoot.load(setup.run.trust, clock())
    policy = run_folder.log_policy(trust, asked)
    witness = machine_witness(
        f"{setup.policy.policy.identity.trust_domain}/{node_name()}",
        witness_key(state.witness_key),
        state.witness_seen,
        {policy.origin: policy},
    )
    return CheckpointLog(
        run=setup.run,
        run_id=setup.job,
        folder=folder,
        asked=asked,
        key=key,
        witness=witness,
        ledger=ledger,
        clock=clock,
    )


def _where(
    setup: RunSetup, options: RunOptions, asked: TransparencyLog
) -> tuple[Path, Signer | None]:
    """The log's folder, and its key when this node has it."""
    if not asked.keys:
        return setup.run.log, open_signer(str(setup.run.key(LOG_KEY)), _ask_nobody)
    if not options.log:
        raise UsageError(
            "ST-USAG-001",
            f"the policy names the log {asked.origin}, and nothing says where it is",
            "--transparency-log",
            "give --transparency-log DIR, and --transparency-log-key KEY on a node that writes it",
        )
    key = open_signer(options.log_key, _ask_nobody) if options.log_key else None
    return Path(options.log), key


def _ask_nobody(what: str) -> bytes:
    raise UsageError(
        "ST-USAG-001",
        f"the {what} is needed, and a launcher cannot ask for it",
        "--transparency-log-key",
        "use a key without a passphrase, or in a token whose PIN a file holds",
    )
