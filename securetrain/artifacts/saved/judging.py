# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Verify files that a script saved in other people's formats, by the statements beside them.

Rules:

1. a file counts under its own statement; without one, under that of the nearest directory around
   it that has one. It is no statement on a file of another name or in another folder. Where both
   speak of a file they must say the same: a file of another save of the same name does not pass;
2. links in a path are followed before it is judged, so that ``latest`` is what it points to;
3. in a directory every file must be covered, everything that was signed must be there, and there
   are no links; the mark of a save that did not end is a problem as well;
4. what a policy asks of a checkpoint and such a statement does not say is a problem: it has no
   head, no ranks' signatures, no verdict, no dataset and no nodes.

No file is parsed. The bytes are hashed from an open file; what is loaded later must be hashed
again when it is loaded (`launch.verified_loads`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from securetrain.artifacts.report import Report
from securetrain.artifacts.statement.expectation import Expectation, Identified, compare
from securetrain.artifacts.statement.rules import CLOCK_SKEW, expected_by
from securetrain.artifacts.statement.saved_files import (
    SUFFIX,
    Form,
    OpenedSave,
    SavedFile,
    digest_file,
    is_sidecar,
    open_saved,
    read_sidecar,
    sidecar,
)
from securetrain.artifacts.tree.layout import Kind, Problem
from securetrain.core.errors import IntegrityError, UsageError
from securetrain.core.files import open_regular, survey
from securetrain.core.vocabulary import NodeTier
from securetrain.identity.trust import TrustRoot
from securetrain.policy.schema import GuardMode, Policy

_RENAMED: Final = "ST-CKPT-143"


@dataclass(frozen=True, slots=True, kw_only=True)
class Covered:
    """A statement, and what it says of one file."""

    opened: OpenedSave
    file: SavedFile

    def check(self, size: int, sha256: str, where: str) -> None:
        """Compare what was read with what was signed.

        Raises:
            IntegrityError: ST-CKPT-131 or 130.
        """
        if problem := _differs(self.file, size, sha256):
            raise problem.error(where)


def covering(path: Path, trust: Sequence[TrustRoot]) -> Covered:
    """Find and verify the statement on one file (rule 1).

    Args:
        path: The file, with every link followed.
        trust: The roots whose checkpoint keys may have signed it; one is enough.

    Raises:
        IntegrityError: ST-CKPT-100, 101, 110, 120, 143, 161 or 200.
    """
    own = sidecar(path, Form.FILE)
    alone: Covered | None = None
    if _is_there(own):
        opened = _open(own, trust)
        _check_name(opened, own, Form.FILE, path)
        alone = Covered(opened=opened, file=opened.said.files[0])
    together = _in_folder(path, trust, is_own_there=alone is not None)
    if alone is None or together is None:
        problem = None
    else:
        problem = _differs(together.file, alone.file.size, alone.file.sha256)
    if problem is not None:
        what = "its own statement does not say what that of its folder says"
        raise Problem(problem.code, what).error(str(path))
    if (covered := alone or together) is not None:
        return covered
    what = "there is no statement on it: nothing says who made this"
    raise Problem("ST-CKPT-100", what).error(str(path))


def _in_folder(path: Path, trust: Sequence[TrustRoot], *, is_own_there: bool) -> Covered | None:
    """The word of the nearest directory's statement on a file.

    The mark of a save of the folder says nothing of a file that has a statement of its own.
    """
    for folder in path.parents:
        place = folder / SUFFIX
        if _is_there(place):
            if is_own_there and not place.is_symlink() and place.stat().st_size == 0:
                return None
            opened = _open(place, trust)
            _check_name(opened, place, Form.DIRECTORY, folder)
            name = path.relative_to(folder).as_posix()
            for file in opened.said.files:
                if file.name == name:
                    return Covered(opened=opened, file=file)
            return None
    return None


def check_saved(
    found: Report,
    path: Path,
    *,
    trust: TrustRoot | Sequence[TrustRoot],
    policy: Policy | None,
    now: datetime,
    expect: Expectation | None = None,
) -> None:
    """Ask a file, or everything in a directory, that a script saved; `found` takes the answers.

    Args:
        found: Of the file or directory.
        path: Where it lies.
        trust: The root whose checkpoint keys may have signed, or several, of which one is enough.
        policy: Its demands on a checkpoint are asked, too.
        now: The time.
        expect: More that is expected.

    Raises:
        UsageError: ST-USAG-002 when there is no such file, or it cannot be read.
    """
    real = path.resolve()
    reader = _Reader(real, [trust] if isinstance(trust, TrustRoot) else trust, found)
    try:
        if real.is_dir():
            reader.directory()
        else:
            reader.one_file()
    except OSError as error:
        raise UsageError("ST-USAG-002", f"it cannot be read: {error}", str(path)) from error
    found.saves = tuple(reader.statements.values())
    for opened in found.saves:
        said = Identified(
            code=Kind.CHECKPOINT.code,
            digest=opened.statement,
            statement=opened.statement,
            signers=opened.key_ids,
            run=opened.said.run_id,
            name=opened.said.name,
            step=opened.said.step,
            version=opened.said.number,
        )
        found.add(*compare(expect, said))
        if policy is not None:
            found.add(*compare(expected_by(policy), said))
            found.add(*lacking(policy, "the saves of a script lack"))
            days, age = policy.checkpoint.max_age_days, now - opened.said.created
            if days is not None and age > timedelta(days=days):
                found.refuse("ST-CKPT-150", f"signed {age.days} days ago, the policy allows {days}")
        if opened.said.created > now + CLOCK_SKEW:
            found.refuse("ST-CKPT-150", f"signed in the future ({opened.said.created.isoformat()})")


@dataclass(slots=True)
class _Reader:
    """Everything about one path."""

    root: Path
    trust: Sequence[TrustRoot]
    found: Report
    statements: dict[Path, OpenedSave] = field(default_factory=dict)

    def one_file(self) -> None:
        """Judge one file (rule 1)."""
        try:
            covered = covering(self.root, self.trust)
        except IntegrityError as error:
            self.found.refuse(error.code, error.what, self.root.name)
            return
        self.statements[self.root] = covered.opened
        self._content(self.root.name, self.root, [covered.file])

    def directory(self) -> None:
        """Judge all that is in a directory (rule 3)."""
        files, unsafe = survey(self.root)
        for entry in unsafe:
            self.found.refuse("ST-CKPT-142", entry.reason, entry.name)
        names = {file.name for file in files}
        signed: dict[str, list[SavedFile]] = {}
        for name in sorted(name for name in names if is_sidecar(name)):
            for covered, file in self._said(name):
                signed.setdefault(covered, []).append(file)
        data = {name for name in names if not is_sidecar(name)}
        refused = {entry.name for entry in unsafe}
        for name in sorted(signed.keys() - data - refused):
            self.found.refuse("ST-CKPT-140", "a signed file is missing", name)
        begun = {_covered_by(problem.file) for problem in self.found.problems if problem.file}
        for name in sorted(data - signed.keys() - begun):
            self.found.refuse("ST-CKPT-141", "a file that was not signed", name)
        for name in sorted(signed.keys() & data):
            self._content(name, self.root / name, signed[name])

    def _said(self, name: str) -> Iterator[tuple[str, SavedFile]]:
        """Give the files of one statement in the directory, by their names below it."""
        place = self.root / name
        form = Form.DIRECTORY if place.name == SUFFIX else Form.FILE
        about = place.parent if form is Form.DIRECTORY else self.root / _covered_by(name)
        try:
            opened = _open(place, self.trust)
            _check_name(opened, place, form, about)
        except IntegrityError as error:
            self.found.refuse(error.code, error.what, name)
            return
        self.statements[place] = opened
        for file in opened.said.files:
            yield (place.parent / file.name).relative_to(self.root).as_posix(), file

    def _content(self, name: str, path: Path, signed: Sequence[SavedFile]) -> None:
        try:
            with open(open_regular(path), "rb", buffering=0) as file:  # noqa: PTH123 - a descriptor
                size, sha256 = digest_file(file)
        except (OSError, UsageError) as error:
            self.found.refuse("ST-CKPT-200", str(error), name)
            return
        self.found.num_files += 1
        self.found.num_bytes += size
        for one in signed:
            if problem := _differs(one, size, sha256, name):
                self.found.add(problem)


def _covered_by(name: str) -> str:
    return name.removesuffix(SUFFIX) if is_sidecar(name) else name


def _differs(signed: SavedFile, size: int, sha256: str, name: str = "") -> Problem | None:
    if size != signed.size:
        what = f"{size} bytes, {signed.size} were signed"
        return Problem("ST-CKPT-131", what, name)
    if sha256 != signed.sha256:
        what = "the content is not what was signed"
        return Problem("ST-CKPT-130", what, name)
    return None


def _is_there(path: Path) -> bool:
    return path.is_symlink() or path.exists()


def _open(place: Path, trust: Sequence[TrustRoot]) -> OpenedSave:
    """Open a statement by the first of the roots that knows its signer."""
    data = read_sidecar(place)
    first: IntegrityError | None = None
    for root in trust:
        try:
            return open_saved(data, root, str(place))
        except IntegrityError as error:
            first = first or error
    assert first is not None, "no trust root"
    raise first


def _check_name(opened: OpenedSave, place: Path, form: Form, about: Path) -> None:
    """Refuse a statement that lies elsewhere than where it was written (rule 1)."""
    said = opened.said
    here = about.name if form is Form.DIRECTORY else f"{about.parent.name}/{about.name}"
    there = said.place
    if said.form is Form.FILE:
        there += f"/{said.files[0].name}"
    if said.form is not form or here != there:
        what = f"it was signed as {said.form} {there}, and lies at {here}"
        raise Problem(_RENAMED, what).error(str(place))


def lacking(policy: Policy, who: str) -> Iterator[Problem]:
    """Say what a policy asks of a checkpoint and statements without a run do not say (rule 4)."""
    asked = policy.checkpoint
    verdict = asked.require_clean_verdict or policy.gradients.mode is not GuardMode.OFF
    verdict = verdict or asked.counts_steps
    own_word = policy.node.allow_self_asserted is not None
    nodes = policy.node.min_tier > NodeTier.SELF_ASSERTED or not own_word

    def lacks(code: str, what: str, *, is_asked: bool) -> Iterator[Problem]:
        if is_asked:
            yield Problem(code, f"the policy asks for {what}, which {who}")

    yield from lacks("ST-CKPT-122", "the ranks' signatures", is_asked=asked.require_rank_signatures)
    yield from lacks("ST-CKPT-152", "a head of the run", is_asked=asked.require_head)
    yield from lacks("ST-CKPT-180", "a proof that it was logged", is_asked=asked.log is not None)
    yield from lacks("ST-CKPT-170", "a dataset", is_asked=asked.require_lineage)
    yield from lacks("ST-CKPT-121", "encryption", is_asked=bool(asked.encrypt_to))
    yield from lacks("ST-CKPT-121", "a verdict on the gradients", is_asked=verdict)
    yield from lacks("ST-CKPT-121", "the nodes that took part", is_asked=nodes)
