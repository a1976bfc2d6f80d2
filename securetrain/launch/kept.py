# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What one node keeps of its run while the workers train: put together here for `session`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from securetrain.artifacts.floors import Floors
from securetrain.attest.local import default_state
from securetrain.core.nodestate import STATE_VARIABLE, NodeState
from securetrain.launch.keeper import Keeper
from securetrain.launch.newest import Newest
from securetrain.launch.setup import RunSetup
from securetrain.ledger import Ledger


@dataclass(frozen=True, slots=True)
class Kept:
    """What is kept, and who keeps it."""

    newest: Newest
    keeper: Keeper


def node_state(environ: Mapping[str, str], *, is_root: bool) -> NodeState:
    """What this machine keeps between runs.

    Args:
        environ: May name the folder (``SECURETRAIN_STATE``).
        is_root: Whether this is the machine's own root; in a user namespace, root is just the user.
    """
    given = environ.get(STATE_VARIABLE)
    return NodeState(Path(given or default_state(Path.home(), 0 if is_root else -1)).absolute())


def keep(setup: RunSetup, ledger: Ledger, clock: Callable[[], datetime], state: NodeState) -> Kept:
    """Begin; the keeper is stopped by the caller."""
    newest = Newest(
        run=setup.run,
        run_id=setup.job,
        floors=Floors(state.floors(setup.job)),
        ledger=ledger,
        clock=clock,
    )
    keeper = Keeper(chores={"newest": newest.look}, ledger=ledger)
    keeper.start()
    return Kept(newest, keeper)
