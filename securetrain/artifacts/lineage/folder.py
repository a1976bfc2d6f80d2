# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The checkpoints in one folder of a disk: found by names and verified statements, and removed.

A name tells the state: ``step-00000012`` is finished, ``...tmp-...`` is being written or removed,
``...quarantined-...`` was set aside. A name proves nothing; the statement does. Old checkpoints are
removed, as many as somebody asked for and no other. Rules, in order:

1. only a directory whose name is a finished checkpoint's and whose statement opens, is of this run
   and numbers below the newest one is a candidate: what is half-written, set aside, of another run
   or unreadable stays;
2. which of them may go is said by `machine.removable`; the caller protects where the run went back
   to after an eviction, and what is not in the log yet;
3. a checkpoint gets another name first, which nothing looks for, then the run's ledger says that it
   is gone, then its files go, its statement last. A crash in between leaves that name, and the next
   removal finishes what was begun before it begins another: the ledger never names as newest what
   is not there. What has that name and no statement was said to be gone.

A checkpoint that was removed is one to which no eviction can go back. Whoever removes keeps at
least as many as are made while a node's last proof may be old.

A statement that is proven to stand in the transparency log.

The proof lies beside the directory, not in it (`identity.log.proof`): it is made after the
directory was signed. What it proves is an index, and by when enough witnesses had seen it there,
which is later than the signature. Rules, in order; whatever is lacking is 180, with the log's own
reason:

1. a proof that is given must hold, and so must the one beside a checkpoint when the policy asks for
   one (``checkpoint.log``): none is a refusal;
2. the log, its keys, its witnesses and their quorum are those of the trust root;
3. and of the policy, where it names them: only keys that both name count, and the higher quorum.
"""

import base64
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Final, Protocol

from securetrain.artifacts.lineage.machine import State
from securetrain.artifacts.statement.reading import read_statement
from securetrain.artifacts.statement.statements import Opened, open_statement
from securetrain.artifacts.tree.layout import STATEMENT, Kind, Problem
from securetrain.core.errors import (
    IdentityError,
    IntegrityError,
    SecureTrainError,
    UsageError,
    os_error,
)
from securetrain.core.files import sync_dir
from securetrain.identity.keys import PublicKey
from securetrain.identity.log import LIMIT, SUFFIX, Logged, LogPolicy, verify_logged
from securetrain.identity.trust import TrustRoot
from securetrain.policy.schema import Policy, TransparencyLog

REMOVING: Final = ".tmp-removed"
"""Ends the name of a directory that is being removed; nothing reads names with ``.tmp-``."""
SET_ASIDE: Final = ".quarantined-"
"""In the name of a directory that was set aside, before the first digits of its save id."""
_STAGED: Final = ".tmp-"
_FINISHED: Final = re.compile(r"step-(\d{8,})")


class CheckpointFiles(Protocol):
    """The files in and around a checkpoint that speak of it: in its storage, or in a pack."""

    @property
    def name(self) -> str:
        """For messages."""

    @property
    def base(self) -> str:
        """Its own name, without what is above it."""

    def has(self, name: str) -> bool:
        """Tell whether a file of this name is in it."""

    def read(self, name: str, limit: int) -> bytes:
        """A small file; UsageError when it is larger or cannot be read."""

    def above(self) -> "CheckpointFiles":
        """The folder that this directory lies in."""

    def names(self, folder: str) -> Sequence[str]:
        """The files in a folder inside it, each by its path from here; none without the folder."""


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
        trust: The keys that may sign them.
        wanted: Says of a path whether it is looked at.
        passed_over: See `read`.
    """
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if wanted(path):
            found = read(path, trust, passed_over)
            if found is not None:
                yield found


def checkpoints_of(
    folder: Path,
    run_id: str,
    trust: TrustRoot,
    named: Callable[[str], bool] = lambda name: step_in_name(name) is not None,
) -> list[Found]:
    """The checkpoints of one run in `folder`: the finished ones (rule 1), or those so named."""
    found = checkpoints(
        folder,
        trust,
        lambda path: named(path.name),  # the statement of a link is not read
        passed_over=SecureTrainError,  # not to be judged here, and not to be removed
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
        trust: The keys that may sign checkpoints.
        going: What goes.
        tell: Writes one into the ledger.

    Raises:
        UsageError: ST-USAG-002 or 006 on I/O errors.
    """
    try:
        _finish(folder, run_id, trust, tell)
        for one in going:
            one.path.rename(one.path.with_name(one.path.name + REMOVING))
        sync_dir(folder)
        _finish(folder, run_id, trust, tell)
    except OSError as error:
        raise os_error(error, str(folder)) from error


def _finish(folder: Path, run_id: str, trust: TrustRoot, tell: Callable[[Found], None]) -> None:
    for one in checkpoints_of(folder, run_id, trust, _is_going):
        tell(one)
        for path in one.path.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.name != STATEMENT:
                path.unlink()
        shutil.rmtree(one.path)
    for path in folder.iterdir():
        # A crash came between the last file and its folder.
        if _is_going(path.name) and not path.is_symlink() and not any(path.iterdir()):
            path.rmdir()


def _is_going(name: str) -> bool:
    return (
        state_in_name(name) is State.REMOVING
        and step_in_name(name.removesuffix(REMOVING)) is not None
    )


@dataclass(frozen=True, slots=True)
class LogProof:
    """A proof that nobody has judged yet."""

    data: bytes

    @classmethod
    def beside(cls, storage: CheckpointFiles) -> "LogProof":
        """The proof beside a checkpoint's directory.

        Raises:
            IntegrityError: 180 when there is none.
        """
        name, folder = proof_name(storage.base), storage.above()
        try:
            if not folder.has(name):
                raise _unproven(Kind.CHECKPOINT, f"there is no {name} beside it")
            return cls(folder.read(name, LIMIT))
        except UsageError as error:
            raise _unproven(Kind.CHECKPOINT, f"{name}: {error.what}") from error

    def judge(
        self,
        statement: bytes,
        kind: Kind,
        trust: TrustRoot,
        now: datetime,
        asked: TransparencyLog | None = None,
    ) -> Logged:
        """Verify that a statement was logged, in the log that the trust root names.

        Args:
            statement: The statement's bytes.
            kind: What it is about.
            trust: Names the log, its keys and its witnesses.
            now: The time.
            asked: What a policy asks of the log besides.

        Raises:
            IntegrityError: 180.
        """
        try:
            policy = log_policy(trust, asked)
            return verify_logged(statement, self.data, trust.keys, policy, now)
        except IdentityError as error:
            raise _unproven(kind, f"{error.code}: {error.what}") from error


def proof_name(base: str) -> str:
    """The name of the proof of a directory of this name, beside it."""
    return f"{base}{SUFFIX}"


def log_policy(trust: TrustRoot, asked: TransparencyLog | None) -> LogPolicy:
    """The log that counts, and who must have seen what it says: rules 2 and 3.

    Raises:
        IdentityError: ST-IDEN-040 or ST-IDEN-044 when nothing could count.
    """
    policy = LogPolicy.from_trust_root(trust)
    if asked is None:
        return policy
    if asked.origin not in {"", policy.origin}:
        raise IdentityError(
            "ST-IDEN-040",
            f"the policy asks for the log {asked.origin}, the trust root names {policy.origin}",
            "checkpoint.log.origin",
            "use the trust root that names that log",
        )
    quorum = max(policy.quorum, asked.quorum)
    return replace(
        policy,
        keys=_named(policy.keys, asked.keys),
        witnesses=_named(policy.witnesses, asked.witnesses),
        quorum=quorum,
    )


def prove(  # noqa: PLR0917 - what is proven, by what, and when
    storage: CheckpointFiles,
    statement: bytes,
    kind: Kind,
    trust: TrustRoot,
    policy: Policy | None,
    now: datetime,
    given: LogProof | None = None,
) -> Logged | None:
    """The place of a directory's statement in the log; None when nobody asks.

    Args:
        storage: The directory.
        statement: Its statement's bytes.
        kind: What that is about.
        trust: Names the log, its keys and its witnesses.
        policy: May ask for a proof.
        now: The time.
        given: The proof to take instead of the one beside the directory.

    Raises:
        IntegrityError: 180.
    """
    is_checkpoint = kind is Kind.CHECKPOINT
    asked = policy.checkpoint.log if policy is not None and is_checkpoint else None
    if given is None and asked is not None:
        given = LogProof.beside(storage)
    return None if given is None else given.judge(statement, kind, trust, now, asked)


def _named(keys: Mapping[str, PublicKey], spki: tuple[str, ...]) -> Mapping[str, PublicKey]:
    """Those of some keys that a policy names too; all of them when it names none."""
    if not spki:
        return keys
    named = set(spki)
    return {i: key for i, key in keys.items() if base64.b64encode(key.spki).decode() in named}


def _unproven(kind: Kind, what: str) -> IntegrityError:
    return Problem(kind.code(180), what, STATEMENT).error()
