# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Old checkpoints of a run are removed, as many as somebody asked for and no other.

Rules, in order:

1. only a directory whose name is a finished checkpoint's and whose statement opens, is of this run
   and numbers below the newest one is a candidate: what is half-written, set aside, of another run
   or unreadable stays;
2. the newest `keep` stay, and those of steps that `every` divides, and those that the caller
   protects (where the run went back to after an eviction; what is not in the log yet);
3. a checkpoint gets another name first, which nothing looks for, then the run's ledger says that it
   is gone, then its files go. A crash in between leaves that name, and the next removal finishes
   what was begun: the ledger never names as newest what is not there.

A checkpoint that was removed is one to which no eviction can go back. Whoever removes keeps at
least as many as are made while a node's last proof may be old.
"""

import re
import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from securetrain.artifacts.statement.listing import read_statement
from securetrain.artifacts.statement.statements import CheckpointPredicate, open_statement
from securetrain.artifacts.tree.layout import STATEMENT, Kind
from securetrain.core.errors import SecureTrainError, os_error
from securetrain.core.files import sync_dir
from securetrain.identity.trust import TrustRoot

REMOVING: Final = ".tmp-removed"
"""Ends the name of a directory that is being removed; nothing reads names with ``.tmp-``."""
_FINISHED: Final = re.compile(r"step-\d{8,}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Old:
    """One checkpoint on the disk."""

    path: Path
    step: int
    seq: int
    digest: str

    @property
    def name(self) -> str:
        """As the ledger knows it."""
        return self.path.name.removesuffix(REMOVING)


def removable(
    found: Sequence[Old], *, keep: int, every: int, protected: Collection[str]
) -> list[Old]:
    """Which of a run's checkpoints may go, oldest first (rule 2).

    Args:
        found: All of them.
        keep: How many of the newest stay; 0 keeps all.
        every: Those of steps that this divides stay; 0 for none.
        protected: Digests of those that stay.
    """
    if keep < 1:
        return []
    oldest_first = sorted(found, key=lambda one: one.seq)
    return [
        one
        for one in oldest_first[:-keep]
        if one.digest not in protected and not (every and one.step % every == 0)
    ]


def checkpoints_of(folder: Path, run_id: str, trust: TrustRoot) -> list[Old]:
    """The finished checkpoints of one run in `folder` (rule 1)."""
    return list(_opened(folder, run_id, trust, lambda name: bool(_FINISHED.fullmatch(name))))


def remove(
    folder: Path,
    run_id: str,
    trust: TrustRoot,
    going: Sequence[Old],
    tell: Callable[[Old], None],
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
        for one in _opened(folder, run_id, trust, lambda name: name.endswith(REMOVING)):
            tell(one)
            shutil.rmtree(one.path)
    except OSError as error:
        raise os_error(error, str(folder)) from error


def _opened(
    folder: Path, run_id: str, trust: TrustRoot, named: Callable[[str], bool]
) -> Iterator[Old]:
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if not named(path.name) or path.is_symlink() or not (path / STATEMENT).is_file():
            continue
        try:
            data = read_statement(path, Kind.CHECKPOINT)
            opened = open_statement(data, Kind.CHECKPOINT, trust, str(path))
        except SecureTrainError:
            continue  # not this room's to judge, and not its to remove
        said = opened.predicate
        if isinstance(said, CheckpointPredicate) and said.run_id == run_id:
            yield Old(path=path, step=said.step, seq=said.seq, digest=opened.digest)
