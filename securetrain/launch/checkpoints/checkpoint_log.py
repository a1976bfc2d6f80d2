# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A run's transparency log: its agents log every checkpoint, watch the log, and keep the proofs.

The workers save and go on; what is here is done beside them (`background`). Every turn, in order:

1. this machine looks at what the log says now, and at the proof that it extends what this machine
   saw last, in any run. If so it cosigns, once for each checkpoint of the log; a log that shrank or
   has another history is never cosigned nor built upon, what contradicts is kept, and the run ends
   (ST-IDEN-042, ST-IDEN-043). Machines whose keys the trust root does not name watch all the same;
2. each checkpoint of this run whose statement verifies and that has no good proof yet is logged, by
   whoever has the log's key, once. Several agents may try: the log has one writer at a time. Then
   rule 1 again;
3. when enough witnesses have cosigned, the proof is judged as any reader will judge it, and put
   beside the checkpoint (``<checkpoint>.tlog-proof``). The run's head then says the index.

A run that ends waits a little for the others' cosignatures; what is still without a proof then is a
refusal (ST-CKPT-180).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final, TypeAlias

from securetrain.artifacts import STATEMENT, Kind, storage
from securetrain.artifacts.lineage import (
    LogProof,
    head,
    machine,
    proof_name,
)
from securetrain.artifacts.lineage import folder as disk
from securetrain.artifacts.lineage import (
    folder as run_folder,
)
from securetrain.core import RunDir
from securetrain.core.errors import IdentityError, IntegrityError, UsageError
from securetrain.core.files import read_file, write_atomic
from securetrain.identity.keys import PrivateKey, Signer
from securetrain.identity.log import Log, Witness, entry_of, request_for
from securetrain.identity.log import proof as proofs
from securetrain.identity.trust import TrustRoot
from securetrain.ledger import Ledger, events
from securetrain.policy.schema import TransparencyLog

_TOO_FEW: Final = "ST-IDEN-044"

_Mark: TypeAlias = tuple[int, int]
"""Which file a statement is."""


@dataclass(slots=True, kw_only=True)
class CheckpointLog:
    """One agent's part of it; `run_once` is a background task."""

    run: RunDir
    run_id: str
    folder: Path
    """The log's folder, which all agents of the run reach."""
    asked: TransparencyLog
    key: Signer | None
    """The log's; None on a machine that only watches."""
    witness: Witness
    ledger: Ledger
    clock: Callable[[], datetime]
    num_logged: int = 0
    """Checkpoints that this agent has put a proof beside."""
    pending: tuple[str, ...] = ()
    """Names of those without one, after the last turn."""
    _done: dict[str, _Mark] = field(default_factory=dict)
    """By name: which file of a statement needs nothing more (`_mark`)."""
    _cosigned: str = ""
    """The log's checkpoint at this machine's last look."""

    def run_once(self) -> None:
        """Log, watch, prove.

        Raises:
            IdentityError: ST-IDEN-040 to 046: the log is not what it was.
            IntegrityError: those of the run's head.
            UsageError: ST-USAG-002 when something cannot be written.
        """
        trust = TrustRoot.load(self.run.trust, self.clock())
        log = Log(self.folder, run_folder.log_policy(trust, self.asked))
        self._watch(log)  # nobody builds on a log that is not what it was
        waiting = list(self._waiting(trust))
        if self.key is not None and waiting:
            for found, _ in waiting:
                log.append_once(entry_of(found.data, trust.keys, str(found.path)), self.key)
            self._watch(log)
        left = [found for found, mark in waiting if not self._prove(found, mark, log, trust)]
        self.pending = tuple(found.path.name for found in left)

    def require_all(self) -> None:
        """At the end of a run.

        Raises:
            IntegrityError: ST-CKPT-180 when a checkpoint has no proof.
        """
        if self.pending:
            shown = ", ".join(self.pending[:8])
            raise IntegrityError(
                "ST-CKPT-180",
                f"{len(self.pending)} checkpoints are not proven to be logged ({shown}): too few"
                " witnesses have cosigned in time, or nobody here has the log's key",
                str(self.folder),
                "let the missing nodes cosign (securetrain log witness), then: securetrain log"
                " prove LOG CHECKPOINT/statement.json --out CHECKPOINT.tlog-proof",
            )

    def _waiting(self, trust: TrustRoot) -> Iterator[tuple[run_folder.Found, _Mark]]:
        """Rule 2: what a loader would accept a statement of. The rest is nobody's checkpoint."""
        folder = self.run.checkpoints
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            if run_folder.state_in_name(path.name) is not machine.State.SAVED or not path.is_dir():
                continue
            mark = _mark(path)
            if mark is None or self._done.get(path.name) == mark:
                continue
            found = disk.read(path, trust)
            if found is None:
                continue
            if found.checkpoint.run_id != self.run_id or self._is_proven(found, trust):
                self._done[path.name] = mark
            else:
                yield found, mark

    def _is_proven(self, found: run_folder.Found, trust: TrustRoot) -> bool:
        """Return whether there is a proof from an earlier start."""
        try:
            data = read_file(_beside(found.path), proofs.LIMIT)
            LogProof(data).judge(found.data, Kind.CHECKPOINT, trust, self.clock(), self.asked)
        except (UsageError, IntegrityError):
            return False
        return True

    def _watch(self, log: Log) -> None:
        """Rule 1."""
        state, signed = log.state()
        if signed.text == self._cosigned:
            return
        seen = self.witness.seen(state.origin)
        line = self.witness.cosign(request_for(log, seen), self.clock())
        try:
            log.add_cosignatures(signed.text, [line])
        except UsageError:
            return  # it has grown meanwhile: the next turn sees that
        self._cosigned = signed.text
        if state.size != seen:
            self.ledger.write(
                events.LogWitnessed(subject=state.origin, size=state.size, before=seen)
            )

    def _prove(self, found: run_folder.Found, mark: _Mark, log: Log, trust: TrustRoot) -> bool:
        """Rule 3; False as long as it is not logged, or too few have cosigned."""
        index = log.find(entry_of(found.data, trust.keys, str(found.path)))
        if index is None:
            return False
        data = log.prove(index)
        try:
            logged = proofs.verify_logged(
                found.data, data, trust.keys, log.policy, self.clock(), str(self.folder)
            )
        except IdentityError as error:
            if error.code == _TOO_FEW:
                return False
            raise
        write_atomic(_beside(found.path), data)
        self._done[found.path.name] = mark
        self._note(found, logged.index, trust)
        self.num_logged += 1
        self.ledger.write(
            events.CheckpointLogged(
                subject=found.path.name,
                step=found.checkpoint.step,
                digest=found.digest,
                index=logged.index,
                origin=log.policy.origin,
                witnesses=len(logged.signed.cosigned),
            )
        )
        return True

    def _note(self, found: run_folder.Found, index: int, trust: TrustRoot) -> None:
        """The head says where its own checkpoint is logged."""
        key, place = PrivateKey.load(self.run.key("checkpoint")), self.run.checkpoints
        head.note_logged(storage.LocalStorage(place), found.digest, index, key, trust)


def _mark(path: Path) -> _Mark | None:
    """Identify the file of a statement; None without one. Statements are never written over."""
    try:
        info = (path / STATEMENT).stat(follow_symlinks=False)
    except OSError:
        return None
    return info.st_ino, info.st_mtime_ns


def _beside(path: Path) -> Path:
    return path.with_name(proof_name(path.name))
