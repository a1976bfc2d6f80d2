# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Verify a whole checkpoint or dataset directory: every byte of it, and what a policy asks.

Rules, in order; the first two end the check when they fail, because nothing else can be trusted:

1. there is a statement, and it is well-formed;
2. it is signed by enough keys of the trust root, for the role of its kind; with a proof, it was
   logged, and a key that was revoked later still counts (`logged`);
3. it is the one that was asked for, has not expired, and what the ranks signed of their own files
   holds (`members`); with a policy: age, and for checkpoints algorithm, verdict, lineage, nodes,
   the ranks' signatures and whether the run's head knows it as the newest (`freshness`);
4. it was not set aside (`quarantine`), and the listing is exactly what was signed: nothing
   missing, nothing extra, no links;
5. every byte of it is hashed and compared with what was signed (`content`);
6. all problems are collected (at most `MAX_PROBLEMS`); the exit code is that of the most telling
   one (`problems.most_telling`);
7. a directory in which nothing was checked is never ok.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from securetrain.artifacts.content import MAX_PROBLEMS, Progress, Report, check_content
from securetrain.artifacts.kinds import guess
from securetrain.artifacts.lineage import logged
from securetrain.artifacts.lineage.freshness import Freshness
from securetrain.artifacts.lineage.judging import Asked, judge
from securetrain.artifacts.lineage.logged import LogProof
from securetrain.artifacts.statement.expectation import Expectation
from securetrain.artifacts.statement.listing import check_listing, read_statement
from securetrain.artifacts.statement.rules import NOTHING_SHOWN, Shown
from securetrain.artifacts.statement.statements import (
    CheckpointPredicate,
    Opened,
    Predicate,
    claimed_kind,
    open_statement,
)
from securetrain.artifacts.tree.layout import STATEMENT, TREES, Kind
from securetrain.artifacts.tree.problems import Problem, most_telling
from securetrain.artifacts.tree.storage import LocalStorage, Place, shown, storage_of
from securetrain.core import CODES, ExitCode
from securetrain.core.errors import IntegrityError, UsageError
from securetrain.identity.log import Logged
from securetrain.identity.trust import TrustRoot
from securetrain.policy.schema import Policy

if TYPE_CHECKING:
    from securetrain.artifacts.catalogue.editor import Editor

Shows: TypeAlias = Callable[[Opened], Shown]
"""Judges the tiers of a checkpoint's nodes by the evidence of its run."""

__all__ = ["MAX_PROBLEMS", "Progress", "Shows", "VerifyResult", "add_name", "verify_path"]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyResult:
    """The result of verifying a directory."""

    kind: Kind
    path: Path | str
    problems: tuple[Problem, ...]
    num_files: int
    """Files of which every byte was checked."""
    num_bytes: int
    opened: Opened | None
    """The verified statement with who signed it; None when there is none that verifies."""
    logged: Logged | None = None
    """Where it stands in the log, if a proof was given and holds."""
    truncated: bool = False
    """Whether there were more problems than are listed."""
    shown: Shown = NOTHING_SHOWN
    """What evidence shows of the nodes' tiers."""

    @property
    def ok(self) -> bool:
        """Tell whether everything held and something was checked."""
        return not self.problems and self.num_files > 0

    @property
    def statement(self) -> Predicate | None:
        """Its predicate; None when there is no statement that verifies."""
        return self.opened.predicate if self.opened else None

    @property
    def digest(self) -> str:
        """The digest that it names; empty without one."""
        return self.opened.digest if self.opened else ""

    @property
    def key_ids(self) -> frozenset[str]:
        """The keys that signed it."""
        return self.opened.key_ids if self.opened else frozenset()

    @property
    def exit_code(self) -> ExitCode:
        """0 when ok, else the exit code of the most telling problem."""
        if self.problems:
            return CODES[most_telling(self.problems).code].exit
        return ExitCode.OK if self.ok else ExitCode.FAILURE


def verify_path(
    path: Place,
    *,
    trust: TrustRoot,
    policy: Policy | None,
    now: datetime,
    progress: Progress | None = None,
    known: Freshness | None = None,
    log_proof: LogProof | None = None,
    expect: Expectation | None = None,
    shows: Shows | None = None,
) -> VerifyResult:
    """Verify a signed directory.

    Args:
        path: the directory of a checkpoint or dataset: a path, or a URL of an object store.
        trust: the keys that may sign it.
        policy: what is asked of it besides integrity and signature; None asks for nothing more.
        now: the time of the check.
        progress: called from the calling thread while bytes are hashed.
        known: what is known of the run besides; given, a checkpoint must be the newest one.
        log_proof: the proof that its statement was logged; given, it must hold. Without it, the one
            beside the directory is taken when the policy asks for one.
        expect: which artifact is wanted; None takes any that a trusted key has signed.
        shows: judges the tiers of its nodes by evidence; without, their evidence is missing.

    Raises:
        UsageError: ST-USAG-002 when there is nothing at the path. A file alone is no error: it is
            refused as what is not signed (100).
    """
    storage = storage_of(path)
    found = guess(storage.path) if isinstance(storage, LocalStorage) else None
    try:
        kind = Kind.DATASET if found is None and storage.has(TREES) else Kind.CHECKPOINT
        if found is None and not storage.exists():
            raise UsageError("ST-USAG-002", "there is no such directory", storage.name)
    except OSError as error:
        raise UsageError(
            "ST-USAG-002", f"the store is unreadable: {error}", storage.name
        ) from error
    report = _Report(root=storage, kind=found.family if found else kind, path=shown(path))
    if found is not None and not found.is_signed:
        report.add(*found.problems())
        return report.result()
    try:
        asked = Asked(trust=trust, policy=policy, now=now, known=known, expect=expect)
        opened = _open(report, asked, log_proof)
        if shows is not None and isinstance(opened.predicate, CheckpointPredicate):
            report.shown = shows(opened)
            asked = replace(asked, shown=report.shown)
        report.add(*judge(opened, storage, asked).problems)
        try:
            report.add(*check_listing(storage, opened.predicate))
        except OSError as error:
            report.add(Problem(code=report.kind.code(200), what=str(error)))
        check_content(report, opened.predicate, progress)
    except _Stop:
        pass
    return report.result()


class _Stop(Exception):  # noqa: N818 - not an error
    """Nothing further can be trusted."""


@dataclass(slots=True, kw_only=True)
class _Report(Report):
    path: Path | str
    opened: Opened | None = None
    logged: Logged | None = None
    shown: Shown = NOTHING_SHOWN

    def result(self) -> VerifyResult:
        opened = self.opened
        if not self.problems and self.num_files == 0:
            self.add(
                Problem(code=self.kind.code(100), what="nothing was checked, so nothing is proven")
            )
        return VerifyResult(
            kind=self.kind,
            path=self.path,
            problems=tuple(self.problems),
            num_files=self.num_files,
            num_bytes=self.num_bytes,
            opened=opened,
            logged=self.logged if opened else None,
            shown=self.shown,
            truncated=self.truncated,
        )


def _open(report: _Report, asked: Asked, log_proof: LogProof | None) -> Opened:
    """Rules 1 and 2."""
    trust = asked.trust
    try:
        data = read_statement(report.root, report.kind)
        report.kind = claimed_kind(data) or report.kind
        index = _logged(report, data, asked, log_proof)
        report.opened = open_statement(data, report.kind, trust, report.root.name, index)
    except IntegrityError as error:
        report.catch(error, STATEMENT if error.code[-3:] != "142" else "")
        raise _Stop from error
    return report.opened


def _logged(report: _Report, data: bytes, asked: Asked, given: LogProof | None) -> int | None:
    """Look for the proof that the statement is logged, when that is asked; what is lacking is one
    more problem, and the rest is looked at all the same.
    """
    try:
        report.logged = logged.prove(
            report.root, data, report.kind, asked.trust, asked.policy, asked.now, given
        )
    except IntegrityError as error:
        report.catch(error, STATEMENT)
        return None
    return None if report.logged is None else report.logged.index


def add_name(editor: "Editor", name: str, path: Path, trust: TrustRoot, now: datetime) -> None:
    """Draft that a name means the checkpoint or dataset at a path, which is verified.

    Raises:
        UsageError: ST-USAG-001, also when it does not lie below the catalogue's folder.
        IntegrityError: The first problem of it.
    """
    from securetrain.artifacts.catalogue.entry import Entry, read_signed  # noqa: PLC0415

    place, base = path.resolve(), editor.store.resolve()
    if not place.is_relative_to(base) or place == base:
        what = f"it does not lie below {editor.store}"
        raise UsageError("ST-USAG-001", what, str(path), "move or copy it there")
    opened = read_signed(place, trust)
    meant = Expectation(digest=opened.digest, statement=opened.statement)
    found = verify_path(place, trust=trust, policy=None, now=now, expect=meant)
    for problem in found.problems:
        raise problem.error(str(path))
    location = place.relative_to(base).as_posix()
    entry = Entry(
        digest=opened.digest,
        statement=opened.statement,
        location=location,
        kind=str(found.kind),
    )
    editor.put(name, entry, opened.statement_size)
