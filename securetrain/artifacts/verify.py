# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Verify a whole checkpoint or dataset directory: every byte of it, and what a policy asks.

Rules, in order; the first two end the check when they fail, because nothing else can be trusted:

1. there is a statement, and it is well-formed;
2. it is signed by enough keys of the trust root, for the role of its kind; with a proof, it was
   logged, and a key that was revoked later still counts (`folder`);
3. it is the one that was asked for, has not expired, and what the ranks signed of their own files
   holds (`members`); with a policy: age, and for checkpoints algorithm, verdict, lineage, nodes,
   the ranks' signatures and whether the run's head knows it as the newest (`freshness`);
4. it was not set aside (`quarantine`), and the listing is exactly what was signed: nothing
   missing, nothing extra, no links;
5. every byte of it is hashed and compared with what was signed (`content`);
6. all problems are collected (at most `report.MAX_PROBLEMS`); the exit code is that of the most
   telling one (`layout.most_telling`);
7. a directory in which nothing was checked is never ok.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from securetrain.artifacts.content import Progress, check_content
from securetrain.artifacts.kinds import guess
from securetrain.artifacts.lineage import folder, judging
from securetrain.artifacts.lineage.folder import LogProof
from securetrain.artifacts.lineage.judging import Asked, Floors, Freshness, judge
from securetrain.artifacts.report import Report
from securetrain.artifacts.statement.expectation import Expectation
from securetrain.artifacts.statement.reading import check_listing, read_statement
from securetrain.artifacts.statement.rules import Shown
from securetrain.artifacts.statement.statements import (
    CheckpointPredicate,
    DatasetPredicate,
    Opened,
    claimed_kind,
    open_statement,
)
from securetrain.artifacts.tree.layout import STATEMENT
from securetrain.artifacts.tree.storage import LocalStorage, Place
from securetrain.core.errors import IntegrityError, UsageError
from securetrain.identity.log import Logged
from securetrain.identity.trust import TrustRoot
from securetrain.policy.schema import Policy

if TYPE_CHECKING:
    from securetrain.artifacts.catalogue.editor import Editor

Shows: TypeAlias = Callable[[Opened], Shown]
"""Judges the tiers of a checkpoint's nodes by the evidence of its run."""


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
) -> Report:
    """Verify a signed directory by itself, without the evidence of its run (`chain.verify`).

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

    Raises:
        UsageError: ST-USAG-002 when there is nothing at the path. A file alone is no error: it is
            refused as what is not signed (100).
    """
    found = Report.of(path)
    asked = Asked(trust=trust, policy=policy, now=now, known=known, expect=expect)
    check_directory(found, asked, progress=progress, log_proof=log_proof)
    return found


def check_directory(
    found: Report,
    asked: Asked,
    *,
    progress: Progress | None = None,
    log_proof: LogProof | None = None,
    shows: Shows | None = None,
) -> None:
    """Ask a signed directory everything that it answers by itself.

    Args:
        found: takes the answers.
        asked: what is asked of its statement, and whose signature counts.
        progress: see `verify_path`.
        log_proof: see `verify_path`.
        shows: judges the tiers of its nodes by evidence; without, their evidence is missing.
    """
    root = found.root
    if isinstance(root, LocalStorage):
        target = guess(root.path)
        if not target.is_signed:
            found.kind = target.family
            found.add(*target.problems())
            return
    else:
        try:
            there = root.exists()
        except OSError as error:
            what = f"the store is unreadable: {error}"
            raise UsageError("ST-USAG-002", what, root.name) from error
        if not there:
            raise UsageError("ST-USAG-002", "there is no such directory", root.name)
    opened = _open(found, asked, log_proof)
    if opened is None:
        return
    if shows is not None and isinstance(opened.predicate, CheckpointPredicate):
        asked = replace(asked, shown=shows(opened))
    judged = judge(opened, root, asked)
    found.add(*judged.problems)
    found.excused += judged.excused
    try:
        found.add(*check_listing(root, opened.predicate))
    except OSError as error:
        found.refuse(found.kind.code(200), str(error))
    check_content(found, opened.predicate, progress)
    if not found.problems and found.num_files == 0:
        found.refuse(found.kind.code(100), "nothing was checked, so nothing is proven")


def _open(found: Report, asked: Asked, log_proof: LogProof | None) -> Opened | None:
    """Rules 1 and 2; None when nothing further can be trusted."""
    root, trust = found.root, asked.trust
    try:
        data = read_statement(root, found.kind)
        found.kind = claimed_kind(data) or found.kind
        place = _logged(found, data, asked, log_proof)
        index = None if place is None else place.index
        found.opened = open_statement(data, found.kind, trust, root.name, index)
    except IntegrityError as error:
        found.catch(error, STATEMENT if error.code[-3:] != "142" else "")
        return None
    found.logged = place
    return found.opened


def _logged(found: Report, data: bytes, asked: Asked, given: LogProof | None) -> Logged | None:
    """Look for the proof that the statement is logged, when that is asked; what is lacking is one
    more problem, and the rest is looked at all the same.
    """
    try:
        return folder.prove(
            found.root, data, found.kind, asked.trust, asked.policy, asked.now, given
        )
    except IntegrityError as error:
        found.catch(error, STATEMENT)
        return None


def remember(found: Report, floors: Floors, trust: TrustRoot) -> None:
    """Raise the floors to an artifact that held; a dataset that is older than they know does not.

    Args:
        found: what was found of it; takes what refuses it.
        floors: what this machine has seen.
        trust: the keys that may sign it.
    """
    match found.statement:
        case CheckpointPredicate():
            assert found.opened is not None
            judging.remember(found.opened, floors)
        case DatasetPredicate() as predicate:
            from securetrain.artifacts.dataset.verified import check_floor  # noqa: PLC0415 - of these

            try:
                check_floor(floors, predicate, found.digest, trust, str(found.path))
            except IntegrityError as error:
                found.catch(error, "")


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
