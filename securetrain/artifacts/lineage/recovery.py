# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The first thing that a run does when it starts again: finish what a death has interrupted.

A save is five steps, each whole or absent: the data below a temporary name, the final name, the
head, the ledger's entry, the removal of old ones. A death may come between any two, and another one
in here. So, in this order, and as often as anybody likes:

1. what was being written goes, with the temporaries of small files: nobody is left to finish it.
   What was being removed is removed (`folder`, rule 3);
2. a checkpoint that has its final name and no entry is entered (`machine`, rule 6). Everything else
   stays as it is, for a reader to refuse: a name proves nothing, and a planted directory is not
   signed by the run, or does not follow its last checkpoint;
3. the head names the ledger's last checkpoint, unless it names that or a later one.

Whoever recovers is alone: rank 0, or its node's launcher, before any rank of the new start has
saved.
"""

import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Final

from securetrain.artifacts.lineage import head, machine
from securetrain.artifacts.lineage.folder import Found, checkpoints_of, remove, step_in_name
from securetrain.artifacts.lineage.judging import Floors
from securetrain.artifacts.lineage.machine import HEAD, History, Known
from securetrain.artifacts.lineage.quarantine import check
from securetrain.artifacts.tree.storage import LocalStorage
from securetrain.core.errors import IntegrityError, os_error
from securetrain.core.files import remove_temporaries
from securetrain.identity.keys import Signer
from securetrain.identity.trust import TrustRole, TrustRoot
from securetrain.ledger import Journal, events

_STAGED: Final = re.compile(r"step-\d{8,}\.tmp-[0-9a-f]{32}(?:\.lease)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """One run's; `begin` may be called at every start."""

    folder: Path
    """Of its checkpoints."""
    run_id: str
    trust: TrustRoot
    ledger: Journal
    """The launcher's: no worker may say that a checkpoint was recovered."""
    key: Callable[[], Signer]
    """Gives a checkpoint key, which signs the head; called only when there is something to sign."""
    clock: Callable[[], datetime]
    floors: Floors | None = None
    """What this node has seen of the run."""
    files: tuple[Path, ...] = ()
    """Other files of the run that are replaced whole: their temporaries go, too."""

    def begin(self, history: History) -> tuple[Found, ...]:
        """Finish what was interrupted; returns what was entered.

        Args:
            history: What the run's verified ledger says.

        Raises:
            SecureTrainError: something cannot be read or written.
        """
        if not self.folder.is_dir():
            return ()
        self._sweep()
        found = [
            one
            for one in checkpoints_of(self.folder, self.run_id, self.trust)
            if step_in_name(one.path.name) == one.checkpoint.step
        ]
        known = self._known(found, history)
        ahead = machine.not_entered(found, known)
        for one in ahead:
            said = one.checkpoint
            self.ledger.write(
                events.CheckpointRecovered(
                    subject=one.path.name,
                    step=said.step,
                    digest=one.digest,
                    verdict=said.gradients.verdict.value,
                )
            )
        self._show(ahead[-1] if ahead else _last(found, known))
        return tuple(ahead)

    def _sweep(self) -> None:
        """Rule 1."""
        try:
            for path in sorted(self.folder.iterdir()):
                if not _STAGED.fullmatch(path.name) or path.is_symlink():
                    continue
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink()
            for whole in (self.folder / HEAD, *self.files):
                remove_temporaries(whole)
        except OSError as error:
            raise os_error(error, str(self.folder)) from error
        remove(self.folder, self.run_id, self.trust, (), self._tell_removed)

    def _tell_removed(self, old: Found) -> None:
        self.ledger.write(
            events.CheckpointRemoved(subject=old.name, step=old.checkpoint.step, digest=old.digest)
        )

    def _known(self, found: list[Found], history: History) -> Known:
        records = {
            one.digest: problem for one in found for problem in check(one.path, one, self.trust)
        }
        known = Known(now=self.clock(), history=history, records=records)
        if self.floors is None:
            return known
        keys = self.trust.keys_for(TrustRole.CHECKPOINT).keys()
        aside = {one.digest for one in found if self.floors.is_set_aside(self.run_id, one.digest)}
        return replace(
            known,
            floor=self.floors.floor(self.run_id, keys),
            excused=self.floors.excused(self.run_id, keys),
            set_aside=frozenset(aside),
        )

    def _show(self, newest: Found | None) -> None:
        """Rule 3; a head that is not good is left to who asks for it."""
        if newest is None:
            return
        folder, said = LocalStorage(self.folder), newest.checkpoint
        try:
            present = head.read_head(folder, self.trust)
        except IntegrityError:
            return
        if present is None or (present.run_id == self.run_id and present.seq < said.seq):
            head.advance(folder, said, self.key(), self.trust, self.clock())


def _last(found: list[Found], known: Known) -> Found | None:
    """The ledger's last checkpoint, if it is there and may be believed."""
    last = known.history.last if known.history is not None else None
    for one in found:
        if last is not None and one.digest == last.digest and not machine.doubts(one, known):
            return one
    return None
