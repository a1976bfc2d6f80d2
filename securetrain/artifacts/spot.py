# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Look at an artifact in a second: who signed it, what lies in it, and a few of its bytes.

For an audit, which looks at many things and has little time. Rules:

1. statement, signatures, listing and expiry are judged as `verify` judges them, whole;
2. of a dataset's content, leaves picked at random are verified, at most so many bytes of them; a
   checkpoint's content is left to whoever loads it, who verifies all of it;
3. a scan looks at everything or at nothing: what is more than the limits is said to be unseen.
"""

import os
import random
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from securetrain.artifacts.dataset.verified import Dataset
from securetrain.artifacts.lineage import head as head_file
from securetrain.artifacts.lineage.folder import LogProof
from securetrain.artifacts.lineage.judging import Asked, judge
from securetrain.artifacts.scan.findings import NOTHING, Finding
from securetrain.artifacts.scan.formats import Format, Window, recognise
from securetrain.artifacts.scan.scanner import scan_path
from securetrain.artifacts.statement.reading import check_listing, read_statement
from securetrain.artifacts.statement.statements import (
    CheckpointPredicate,
    DatasetPredicate,
    Opened,
    claimed_kind,
    open_statement,
)
from securetrain.artifacts.tree.layout import STATEMENT, TREES, Kind, Problem
from securetrain.artifacts.tree.storage import LocalStorage
from securetrain.core import CODES, ExitCode
from securetrain.core.errors import IntegrityError
from securetrain.core.files import open_regular, survey
from securetrain.identity.trust import TrustRoot

SAMPLE_BYTES: Final = 8 << 20
SAMPLE_FILES: Final = 16
MAX_FILES: Final = 2_000
UNPACKED_BYTES: Final = 32 << 20
"""Bytes of pickles and of packed files that a quick scan goes through."""
_WHOLE: Final = frozenset({Format.PICKLE, Format.GZIP, Format.BZIP2, Format.XZ, Format.TAR})
"""Formats that are read from end to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spotted:
    """The state of a signed directory."""

    kind: Kind
    problems: tuple[Problem, ...]
    opened: Opened | None = None
    """None when there is no statement that verifies."""
    ordered: bool = False
    """Whether a signed head or a log knows it, so that an older one cannot stand in for it."""
    sampled: int = 0
    """Bytes of content that were verified."""
    damage: Problem | None = None
    """The first part of the sample that is not what was signed."""


def spot_check(
    path: Path, *, trust: TrustRoot, now: datetime, sample: int = SAMPLE_BYTES
) -> Spotted:
    """Judge a directory by its statement, and a dataset by a sample as well (rules 1 and 2)."""
    storage = LocalStorage(path)
    kind = Kind.DATASET if storage.has(TREES) else Kind.CHECKPOINT
    try:
        data = read_statement(storage, kind)
        kind = claimed_kind(data) or kind
        opened = open_statement(data, kind, trust, str(path))
        problems = list(judge(opened, storage, Asked(trust=trust, policy=None, now=now)).problems)
        problems += check_listing(storage, opened.predicate)
    except IntegrityError as error:
        problem = Problem(error.code, error.what)
        return Spotted(kind=kind, problems=(problem,))
    if isinstance(opened.predicate, CheckpointPredicate):
        ordered = _is_ordered(storage, data, opened, trust, now)
        return Spotted(kind=kind, problems=tuple(problems), opened=opened, ordered=ordered)
    sampled, damage = (0, None) if problems else _sample(path, trust, now, sample)
    return Spotted(
        kind=kind, problems=tuple(problems), opened=opened, sampled=sampled, damage=damage
    )


def _is_ordered(
    storage: LocalStorage, data: bytes, opened: Opened, trust: TrustRoot, now: datetime
) -> bool:
    """Return whether a head of its run or the log's proof beside it verifies."""
    try:
        head = head_file.read_head(storage.above(), trust)
        if head is not None and head.run_id == opened.checkpoint.run_id:
            return True
        LogProof.beside(storage).judge(data, opened.kind, trust, now, None)
    except IntegrityError:
        return False
    return True


def _sample(path: Path, trust: TrustRoot, now: datetime, most: int) -> tuple[int, Problem | None]:
    chance = random.SystemRandom()
    done = 0
    try:
        with Dataset.open(path, trust=trust, policy=None, now=now, cache_bytes=0) as data:
            predicate = data.predicate
            assert isinstance(predicate, DatasetPredicate)
            leaf = predicate.tree.leaf_size
            files = [(name, size) for name, size in data.files.items() if size]
            for name, size in chance.sample(files, min(SAMPLE_FILES, len(files))):
                if done >= most:
                    break
                if any(one.file == name for one in predicate.removed):
                    continue  # a part of it must not be read
                start = chance.randrange(-(-size // leaf)) * leaf
                done += len(data.read(name, start, min(leaf, size - start)))
    except IntegrityError as error:
        return done, Problem(error.code, error.what, error.where)
    return done, None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotScan:
    """The content of a directory, as a loader would take it."""

    pickles: tuple[str, ...]
    """Files that a loader would unpickle, or parts of them."""
    unseen: str
    """A thing that was not looked into, a link or a pipe; empty when there is none."""
    unsafe: tuple[Finding, ...] = ()
    """Findings of things that a loader would run."""
    unjudged: str = ""
    """Why it is not known whether there is more; empty when all was judged."""


def spot_scan(path: Path) -> SpotScan:
    """Scan a directory (rule 3).

    Raises:
        OSError: when it cannot be listed.
        UsageError: ST-USAG-002 when a file of it cannot be read.
    """
    files, unsafe = survey(path)
    unseen = f"{unsafe[0].name} is {unsafe[0].reason}" if unsafe else ""
    pickles, total = [], 0
    for file in files[:MAX_FILES]:
        fd = open_regular(path / file.name)
        try:
            window = Window.whole(fd)
            found = recognise(window, file.name)
        finally:
            os.close(fd)
        total += file.size if found in _WHOLE else 0
        if found is Format.PICKLE or (found is Format.ZIP and not file.name.endswith(".npz")):
            pickles.append(file.name)
    if len(files) > MAX_FILES or total > UNPACKED_BYTES:
        if len(files) > MAX_FILES:
            unseen = f"more than {MAX_FILES} files"
        much = "more than an audit looks through: run 'securetrain scan' on it"
        return SpotScan(pickles=tuple(pickles), unseen=unseen, unjudged=much)
    result = scan_path(path)
    if (path / STATEMENT).is_file():
        result = result.among_data()  # its signature is judged by itself
    judged = dict.fromkeys(one.name for one in result.judged if one.format == Format.PICKLE)
    runs = tuple(one for one in result.findings if _is_unsafe(one))
    other = [one for one in result.findings if one not in runs and one.code != NOTHING]
    unjudged = f"{other[0].code} {other[0].place}: {other[0].what}" if other else ""
    return SpotScan(pickles=tuple(judged), unseen=unseen, unsafe=runs, unjudged=unjudged)


def _is_unsafe(finding: Finding) -> bool:
    return CODES[finding.code].exit is ExitCode.UNSAFE_CONTENT
