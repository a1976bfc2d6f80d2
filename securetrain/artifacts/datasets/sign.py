# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Sign a dataset where it lies, and sign it again when it has grown.

Rules, in order:

1. links, special files and unsafe names are refused, never followed;
2. every new file is read once and hashed; its tree is written below ``_securetrain/``. The
   statement is replaced last and at once: until then the version before it is what is signed;
3. a new version has the number after the old one's, keeps every file of it under its signed root,
   and carries the proof of that (RFC 6962). A file of an old version is never signed anew: who
   changed it is found when it is read;
4. what was removed before stays removed.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Final, TypeAlias

import msgspec

from securetrain.artifacts.dataset_predicate import (
    DataFile,
    DataFormat,
    DatasetPredicate,
    Previous,
    Removed,
    SampleIndex,
    Scan,
    Split,
    file_hashes,
    files_root,
    in_order_of_arrival,
)
from securetrain.artifacts.datasets import samples
from securetrain.artifacts.layout import STATEMENT, TREES, Kind
from securetrain.artifacts.parts import TreeInfo
from securetrain.artifacts.problems import Problem
from securetrain.artifacts.statements import Opened, digest_of, sign
from securetrain.core.errors import IntegrityError, UsageError, os_error
from securetrain.core.files import FileEntry, open_regular, survey, write_atomic
from securetrain.core.hashtree import DATASET_LEAF, TreeParams, TreeWriter, pages_of
from securetrain.identity.keys import Signer
from securetrain.identity.log import merkle
from securetrain.identity.log.memory import hashes_of

READ_BYTES: Final = 1 << 20
WHOLE: Final = "all"
SPLIT_FOLDERS: Final = ("train", "training", "validation", "valid", "val", "test", "eval")

Progress: TypeAlias = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What is said about a dataset besides its bytes."""

    name: str
    format: DataFormat | None = None
    """How samples lie in the files; None looks at the names."""
    splits: Mapping[str, Sequence[str]] | None = None
    """Split name to files; None takes folders named train, validation, test, else one split."""
    licenses: Sequence[str] = ()
    sources: Sequence[str] = ()
    scans: Sequence[Scan] = ()
    croissant: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    with_samples: bool = False
    """Whether every sample gets a line in a signed table."""
    removed: Sequence[Removed] = ()
    """What must not be read any more, on top of what was removed before."""


@dataclass(frozen=True, slots=True)
class Signed:
    """What was signed."""

    path: Path
    digest: str
    predicate: DatasetPredicate


def sign_in_place(
    root: Path,
    about: About,
    *,
    key: Signer,
    now: datetime,
    previous: Opened | None = None,
    params: TreeParams | None = None,
    progress: Progress | None = None,
) -> Signed:
    """Sign the files below `root`, which stay where they are.

    Args:
        root: The dataset.
        about: What is said about it.
        key: Signs for the trust role ``dataset``.
        now: When, with a time zone.
        previous: The verified statement that lies there now, when this is a new version of it.
        params: The hash tree of a first version (default: BLAKE3, leaves of 64 KiB).
        progress: Called with bytes done and bytes in all.

    Raises:
        IntegrityError: ST-DATA-142 an unsafe file; ST-DATA-201 it is signed already and no previous
            statement was given; ST-DATA-171 a file of the previous version is gone or has another
            size; ST-DATA-101 what is said does not fit.
        UsageError: ST-USAG-001 no files, a bad split or format, ST-USAG-002 or 006 on I/O.
    """
    old = _previous(root, previous)
    entries = _listed(root)
    if old is not None:
        _check_kept(root, old, entries)
    known = {} if old is None else {file.name: file for file in old.files}
    new = [entry for entry in entries if entry.name not in known]
    if not new and (old is None or not about.removed):
        raise _bad("there is no new file to sign", str(root), "add files, or name what is removed")
    tree = _tree(old, params)
    work = _Work(root, tree, 0 if old is None else old.seq + 1, progress, new)
    work.hash_new()
    names = [entry.name for entry in entries]
    data_format = about.format or (old.format if old is not None else samples.detect(names))
    index = work.tables(old, data_format, about)
    files = sorted([*known.values(), *work.files], key=lambda file: file.name)
    predicate = _predicate(about, work, files, data_format, index, old, previous, now)
    data = sign(predicate, about.name, key)
    write_atomic(root / STATEMENT, data)
    return Signed(root, digest_of(predicate), predicate)


@dataclass(slots=True)
class _Work:
    root: Path
    params: TreeParams
    seq: int
    progress: Progress | None
    new: list[FileEntry]
    files: list[DataFile] = field(default_factory=list)
    done: int = 0

    def hash_new(self) -> None:
        """Rule 2."""
        total = sum(entry.size for entry in self.new)
        for entry in self.new:
            writer = TreeWriter(self.params)
            with self.open(entry.name) as file:
                buffer = memoryview(bytearray(READ_BYTES))
                while count := file.readinto(buffer):  # type: ignore[attr-defined]
                    writer.update(buffer[:count])
                    self.done += count
                    if self.progress is not None:
                        self.progress(self.done, total)
            self.keep(entry.name, writer)

    def keep(self, name: str, writer: TreeWriter) -> None:
        """Write a file's tree and list it."""
        tree = writer.finish()
        table = self.root / Kind.DATASET.table_of(name)
        table.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(table, pages_of(self.params, tree.leaves) + tree.leaves)
        self.files.append(DataFile(name=name, size=tree.size, root=tree.root.hex(), added=self.seq))

    def tables(
        self, old: DatasetPredicate | None, data_format: DataFormat, about: About
    ) -> SampleIndex | None:
        """The table of the new files' samples, and the index over all tables."""
        before = None if old is None else old.samples
        if before is None and not about.with_samples:
            return None
        if old is not None and before is None:
            raise _bad(
                "the version before has no table of samples, so this one cannot have one",
                str(self.root),
                "leave out --samples",
            )
        stretches = samples.find(data_format, [entry.name for entry in self.new], self.open)
        source = about.sources[0] if len(about.sources) == 1 else ""
        license_name = about.licenses[0] if len(about.licenses) == 1 else ""
        found = samples.describe(stretches, self.open, source=source, license_name=license_name)
        lines = [sample.line() for sample in found]
        files = [] if before is None else list(before.files)
        older = [line for name in files for line in self._read_lines(name)]
        if lines:
            name = samples.table_name(self.seq)
            data = b"".join(line + b"\n" for line in lines)
            write_atomic(self.root / name, data, replace=False)
            writer = TreeWriter(self.params)
            writer.update(data)
            self.keep(name, writer)
            files.append(name)
        if not files:
            raise _bad(
                f"format {data_format} has no samples of its own",
                str(self.root),
                "leave out --samples, or name the format with --data-format",
            )
        return samples.index_of(files, [*older, *lines])

    def open(self, name: str) -> BinaryIO:
        """Open a data file, which must be a regular one."""
        return os.fdopen(open_regular(self.root / name), "rb")

    def _read_lines(self, name: str) -> list[bytes]:
        with self.open(name) as file:
            return file.read().splitlines()


def _predicate(  # noqa: PLR0917 - its parts, each once
    about: About,
    work: _Work,
    files: Sequence[DataFile],
    data_format: DataFormat,
    index: SampleIndex | None,
    old: DatasetPredicate | None,
    previous: Opened | None,
    now: datetime,
) -> DatasetPredicate:
    grown: Previous | None = None
    removed = list(about.removed)
    if old is not None and previous is not None:
        proof = _growth(old, files)
        grown = Previous(
            digest=previous.digest,
            num_files=len(old.files),
            files_root=files_root(old.files),
            proof=[one.hex() for one in proof],
        )
        removed += old.removed
    try:
        return DatasetPredicate(
            name=about.name,
            seq=work.seq,
            created=now,
            tree=TreeInfo.of(work.params),
            files=list(files),
            splits=_splits(files, about.splits, index, str(work.root)),
            metadata=dict(about.metadata),
            format=data_format,
            licenses=_together(old.licenses if old else (), about.licenses),
            sources=_together(old.sources if old else (), about.sources),
            scans=[*(old.scans if old else ()), *about.scans],
            croissant=about.croissant or (old.croissant if old else ""),
            samples=index,
            previous=grown,
            removed=sorted(
                {msgspec.json.encode(one): one for one in removed}.values(),
                key=lambda one: (one.file, one.offset),
            ),
        )
    except msgspec.ValidationError as error:
        raise _bad(str(error), str(work.root), "correct what is said about it") from error


def _growth(old: DatasetPredicate, files: Sequence[DataFile]) -> list[bytes]:
    hashes = file_hashes(files)
    return merkle.consistency_proof(len(old.files), len(hashes), hashes_of(hashes))


def _splits(
    files: Sequence[DataFile],
    wanted: Mapping[str, Sequence[str]] | None,
    index: SampleIndex | None,
    where: str,
) -> list[Split]:
    tables = set(index.files) if index is not None else set()
    names = [file.name for file in in_order_of_arrival(files) if file.name not in tables]
    if wanted is not None:
        chosen = {split: list(members) for split, members in wanted.items()}
        for split, members in chosen.items():
            if missing := [name for name in members if name not in names]:
                raise _bad(f"split {split!r} names {missing[0]!r}", where, "name files that exist")
    else:
        chosen = {}
        for name in names:
            folder = PurePosixPath(name).parts[0]
            chosen.setdefault(folder if folder in SPLIT_FOLDERS else WHOLE, []).append(name)
    return [Split(name=split, files=chosen[split]) for split in sorted(chosen)]


def _previous(root: Path, previous: Opened | None) -> DatasetPredicate | None:
    if previous is None:
        if (root / STATEMENT).exists() or (root / STATEMENT).is_symlink():
            raise IntegrityError(
                "ST-DATA-201",
                "it is signed already",
                str(root),
                "give the trust root that verifies it, to sign what was added (--append)",
            )
        return None
    if not isinstance(previous.predicate, DatasetPredicate):
        raise _bad("the statement is not a dataset's", str(root), "name a dataset")
    return previous.predicate


def _listed(root: Path) -> list[FileEntry]:
    """The data files: everything but the statement and the trees."""
    try:
        files, unsafe = survey(root)
    except OSError as error:
        raise os_error(error, str(root)) from error
    if unsafe:
        raise Problem(code="ST-DATA-142", what=unsafe[0].reason, file=unsafe[0].name).error(
            str(root)
        )
    found = [
        file
        for file in files
        if file.name != STATEMENT and PurePosixPath(file.name).parts[0] != TREES
    ]
    if not found:
        raise _bad("there is no file to sign", str(root), "name a directory that holds data")
    return found


def _check_kept(root: Path, old: DatasetPredicate, entries: Sequence[FileEntry]) -> None:
    """Rule 3."""
    sizes = {entry.name: entry.size for entry in entries}
    for file in old.files:
        if sizes.get(file.name) != file.size:
            raise IntegrityError(
                "ST-DATA-171",
                f"{file.name} has {sizes.get(file.name, 'no')} bytes, {file.size} were signed",
                str(root),
                "restore the file; to replace data, sign a dataset of another name",
            )


def _tree(old: DatasetPredicate | None, params: TreeParams | None) -> TreeParams:
    if old is not None:
        return old.tree.params
    return params or TreeParams(leaf_size=DATASET_LEAF)


def _together(old: Sequence[str], new: Sequence[str]) -> list[str]:
    return list(dict.fromkeys([*old, *new]))


def _bad(what: str, where: str, fix: str) -> UsageError:
    return UsageError("ST-USAG-001", what, where, fix)
