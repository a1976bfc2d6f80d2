# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The checkpoints that lie in one folder of a disk, by their names and their verified statements.

A name tells the state: ``step-00000012`` is finished, ``...tmp-...`` is being written or removed,
``...quarantined-...`` was set aside. A name proves nothing; the statement does.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from securetrain.artifacts.lineage.machine import State
from securetrain.artifacts.statement.listing import read_statement
from securetrain.artifacts.statement.statements import Opened, open_statement
from securetrain.artifacts.tree.layout import STATEMENT, Kind
from securetrain.core.errors import IntegrityError, SecureTrainError
from securetrain.identity.trust import TrustRoot

REMOVING: Final = ".tmp-removed"
"""Ends the name of a directory that is being removed; nothing reads names with ``.tmp-``."""
SET_ASIDE: Final = ".quarantined-"
"""In the name of a directory that was set aside, before the first digits of its save id."""
_STAGED: Final = ".tmp-"
_FINISHED: Final = re.compile(r"step-(\d{8,})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found(Opened):
    """A checkpoint on the disk, whose statement verified."""

    path: Path
    data: bytes
    """The statement's."""

    @property
    def name(self) -> str:
        """As the ledger knows it."""
        return self.path.name.removesuffix(REMOVING)


def state_in_name(name: str) -> State:
    """The state that a directory's name claims."""
    if name.endswith(REMOVING):
        return State.REMOVING
    if SET_ASIDE in name:
        return State.SET_ASIDE
    return State.STAGED if _STAGED in name else State.SAVED


def step_in_name(name: str) -> int | None:
    """The step in the name of a finished checkpoint; None in any other name."""
    match = _FINISHED.fullmatch(name)
    return None if match is None else int(match[1])


def highest_step(folder: Path) -> int | None:
    """The highest step that the names of finished checkpoints claim; None without any."""
    paths = folder.iterdir() if folder.is_dir() else ()
    steps = [step_in_name(path.name) for path in paths if path.is_dir()]
    return max((step for step in steps if step is not None), default=None)


def read(
    path: Path, trust: TrustRoot, passed_over: type[SecureTrainError] = IntegrityError
) -> Found | None:
    """One checkpoint; None when its statement is not one that a loader would accept.

    Raises:
        SecureTrainError: those that are not to be passed over: for example ST-USAG-002 when it
            cannot be read.
    """
    try:
        data = read_statement(path, Kind.CHECKPOINT)
        opened = open_statement(data, Kind.CHECKPOINT, trust, str(path))
    except passed_over:
        return None
    return Found(
        kind=opened.kind,
        predicate=opened.predicate,
        digest=opened.digest,
        key_ids=opened.key_ids,
        path=path,
        data=data,
    )


def checkpoints(
    folder: Path,
    trust: TrustRoot,
    wanted: Callable[[Path], bool],
    passed_over: type[SecureTrainError] = IntegrityError,
) -> Iterator[Found]:
    """The checkpoints in a folder, in the order of their names.

    Args:
        folder: Where they are.
        trust: Who may sign them.
        wanted: Says of a path whether it is looked at.
        passed_over: See `read`.
    """
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if wanted(path) and (path / STATEMENT).is_file():
            found = read(path, trust, passed_over)
            if found is not None:
                yield found
