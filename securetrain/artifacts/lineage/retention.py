# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Old checkpoints of a run are removed, as many as somebody asked for and no other.

Rules, in order:

1. only a directory whose name is a finished checkpoint's and whose statement opens, is of this run
   and numbers below the newest one is a candidate: what is half-written, set aside, of another run
   or unreadable stays;
2. which of them may go is said by `machine.removable`; the caller protects where the run went back
   to after an eviction, and what is not in the log yet;
3. a checkpoint gets another name first, which nothing looks for, then the run's ledger says that it
   is gone, then its files go. A crash in between leaves that name, and the next removal finishes
   what was begun: the ledger never names as newest what is not there.

A checkpoint that was removed is one to which no eviction can go back. Whoever removes keeps at
least as many as are made while a node's last proof may be old.
"""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from securetrain.artifacts.lineage import folder as disk
from securetrain.artifacts.lineage.folder import REMOVING, Found, state_in_name, step_in_name
from securetrain.artifacts.lineage.machine import State
from securetrain.core.errors import SecureTrainError, os_error
from securetrain.core.files import sync_dir
from securetrain.identity.trust import TrustRoot


def checkpoints_of(
    folder: Path,
    run_id: str,
    trust: TrustRoot,
    named: Callable[[str], bool] = lambda name: step_in_name(name) is not None,
) -> list[Found]:
    """The checkpoints of one run in `folder`: the finished ones (rule 1), or those so named."""
    found = disk.checkpoints(
        folder,
        trust,
        lambda path: named(path.name) and not path.is_symlink(),
        passed_over=SecureTrainError,  # not this room's to judge, and not its to remove
    )
    return [one for one in found if one.checkpoint.run_id == run_id]


def remove(
    folder: Path,
    run_id: str,
    trust: TrustRoot,
    going: Sequence[Found],
    tell: Callable[[Found], None],
) -> None:
    """Remove checkpoints, and what an earlier removal left (rule 3).

    Args:
        folder: Where the run's checkpoints are.
        run_id: The run's.
        trust: Who may sign checkpoints.
        going: What goes.
        tell: Writes one into the ledger.

    Raises:
        UsageError: ST-USAG-002 or 006 on I/O errors.
    """
    try:
        for one in going:
            one.path.rename(one.path.with_name(one.path.name + REMOVING))
        sync_dir(folder)
        for one in checkpoints_of(folder, run_id, trust, _is_going):
            tell(one)
            shutil.rmtree(one.path)
    except OSError as error:
        raise os_error(error, str(folder)) from error


def _is_going(name: str) -> bool:
    return state_in_name(name) is State.REMOVING
