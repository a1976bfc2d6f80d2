# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Sign a dataset where it lies, and sign it again when it has grown.

Rules, in order:

1. links, special files and unsafe names are refused, never followed;
2. every new file is read once and hashed, and the statement is replaced last (`Signed`): until then
   the version before it is what is signed;
3. a new version has the number after the old one's, keeps every file of it under its signed root,
   and carries the proof of that (RFC 6962). A file of an old version is never signed anew: who
   changed it is found when it is read;
4. a file that has more bytes than before is hashed as a new one, and must begin with what it was
   (`growth`);
5. what was removed before stays removed.

The signer of a dataset: hash files, write their trees, and the statement last.

One class for a dataset that is copied into a new directory (`write`) and for one that is signed
where it lies (`sign`). Rules:

1. a file is read once. A copy is hashed from the very bytes that are written;
2. a tree is written below ``_securetrain/`` when its file is whole. A file that has grown since the
   version before must begin with what it was (`growth`);
3. the statement comes last and at once: until then nothing new is signed.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Final, TypeAlias

import msgspec

from securetrain.artifacts.dataset import samples
from securetrain.artifacts.dataset.versions import check_growth
from securetrain.artifacts.kinds import check_same, check_whole
from securetrain.artifacts.statement.dataset_predicate import (
    DataFile,
    DataFormat,
    DatasetPredicate,
    Previous,
    Removed,
    SampleIndex,
    Scan,
    Split,
    entries,
    file_hashes,
    files_root,
    in_order_of_arrival,
)
from securetrain.artifacts.statement.reading import SignedFile, open_data
from securetrain.artifacts.statement.statements import Opened, digest_of, sign
from securetrain.artifacts.tree.layout import PAGE_BYTES, STATEMENT, TREES, Kind, Problem, TreeInfo
from securetrain.artifacts.tree.storage import LocalStorage
from securetrain.core.errors import IntegrityError, UsageError, os_error
from securetrain.core.files import FileEntry, open_regular, write_atomic
from securetrain.core.hashtree import (
    DATASET_LEAF,
    Buffer,
    Tree,
    TreeParams,
    TreeWriter,
    pages_of,
)
from securetrain.identity.keys import Signer
from securetrain.identity.log import hashes_of, merkle

READ_BYTES: Final = 1 << 20
WHOLE: Final = "all"
"""The split that holds every file when none is named."""

Progress: TypeAlias = Callable[[int, int], None]
"""Called with the bytes done so far and the bytes in all (0 when that is not known)."""


@dataclass(frozen=True, slots=True)
class Signed:
    """A dataset that has just been signed."""

    path: Path
    digest: str
    predicate: DatasetPredicate


@dataclass(slots=True)
class Sink:
    """One data file that is being written and hashed."""

    fd: int
    tree: TreeWriter
    tick: Callable[[int], None]

    @property
    def size(self) -> int:
        """The bytes so far."""
        return self.tree.size

    def write(self, data: Buffer) -> None:
        """Append bytes."""
        view = memoryview(data)
        self.tree.update(view)
        done = 0
        while done < len(view):
            done += os.write(self.fd, view[done:])
        self.tick(len(view))


@dataclass(slots=True, kw_only=True)
class DatasetSigner:
    """One version of a dataset that is being signed."""

    root: Path
    """The directory, or the one that takes its place when it is whole."""
    params: TreeParams = field(default_factory=lambda: TreeParams(leaf_size=DATASET_LEAF))
    seq: int = 0
    known: Mapping[str, DataFile] = field(default_factory=dict)
    """The files of the version before."""
    progress: Progress | None = None
    total: int = 0
    files: list[DataFile] = field(default_factory=list)
    """Those of this version that were hashed."""
    _done: int = 0

    @contextmanager
    def sink(self, name: str) -> Iterator[Sink]:
        """Write a new file."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            sink = Sink(fd, TreeWriter(self.params), self._tick)
            yield sink
        finally:
            os.close(fd)
        self.keep(name, sink.tree.finish())

    def copy(self, source: Path, name: str) -> None:
        """Write a new file from one below another directory."""
        with self.sink(name) as sink:
            for piece in _pieces(source / name):
                sink.write(piece)

    def hash(self, name: str) -> None:
        """Hash a file that lies there."""
        writer = TreeWriter(self.params)
        for piece in _pieces(self.root / name):
            writer.update(piece)
            self._tick(len(piece))
        self.keep(name, writer.finish())

    def keep(self, name: str, tree: Tree) -> None:
        """Write a file's page and leaf hashes and list it, once it is shown to hold what it was."""
        old = self.known.get(name)
        file = DataFile(
            name=name,
            size=tree.size,
            root=tree.root.hex(),
            added=self.seq,
            before=[] if old is None else old.stages,
        )
        if file.before:
            self._check_grown(file, tree)
        table = self.root / Kind.DATASET.table_of(name)
        table.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(table, pages_of(tree.params, tree.leaves) + tree.leaves)
        self.files.append(file)

    def finish(self, predicate: DatasetPredicate, name: str, key: Signer) -> Signed:
        """Write the statement."""
        write_atomic(self.root / STATEMENT, sign(predicate, name, key))
        return Signed(self.root, digest_of(predicate), predicate)

    def _check_grown(self, grown: DataFile, tree: Tree) -> None:
        storage = LocalStorage(self.root)
        file = SignedFile(
            source=open_data(storage, grown.name, grown.size, Kind.DATASET),
            name=grown.name,
            size=grown.size,
            params=self.params,
            kind=Kind.DATASET,
            root=storage,
        )
        pages = pages_of(self.params, tree.leaves)

        def page(number: int) -> bytes:
            return tree.leaves[number * PAGE_BYTES : (number + 1) * PAGE_BYTES]

        try:
            check_growth(grown, file, pages, page)
        finally:
            file.close()

    def _tick(self, count: int) -> None:
        self._done += count
        if self.progress is not None:
            self.progress(self._done, self.total)


def bad(what: str, where: str, fix: str) -> UsageError:
    """The refusal of arguments that do not fit the data."""
    return UsageError("ST-USAG-001", what, where, fix)


def _pieces(path: Path) -> Iterator[memoryview]:
    """A file's bytes, read once. Each piece is good until the next one is asked for.

    Raises:
        UsageError: ST-USAG-002 when it is not a regular file, a link, gone or unreadable.
    """
    buffer = memoryview(bytearray(READ_BYTES))
    try:
        with os.fdopen(open_regular(path), "rb", buffering=0) as file:
            while count := os.readv(file.fileno(), [buffer]):
                yield buffer[:count]
    except OSError as error:
        raise os_error(error, str(path)) from error


SPLIT_FOLDERS: Final = ("train", "training", "validation", "valid", "val", "test", "eval")


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """The description of a dataset besides its bytes."""

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
            statement was given; ST-DATA-171 a file of the previous version is gone, is shorter or
            begins with other bytes; ST-DATA-101 what is said does not fit.
        UsageError: ST-USAG-001 no files, a bad split or format, ST-USAG-002 or 006 on I/O.
    """
    old = _previous(root, previous)
    found = _listed(root)
    known = {} if old is None else {file.name: file for file in old.files}
    _check_kept(root, known, found)
    new = [entry for entry in found if not _is_kept(entry, known)]
    if not new and (old is None or not about.removed):
        raise bad("nothing was added that could be signed", str(root), "add data, or --remove")
    work = DatasetSigner(
        root=root,
        params=_tree(old, params),
        seq=0 if old is None else old.seq + 1,
        known=known,
        progress=progress,
        total=sum(entry.size for entry in new),
    )
    for entry in new:
        work.hash(entry.name)
    names = [entry.name for entry in found]
    data_format = about.format or (old.format if old is not None else samples.detect(names))
    table = _Table(work, [entry.name for entry in new])
    index = table.write(old, data_format, about)
    files = sorted(
        {**known, **{file.name: file for file in work.files}}.values(), key=lambda file: file.name
    )
    predicate = _predicate(about, work, files, data_format, index, old, previous, now)
    check_same(root, found)
    return work.finish(predicate, about.name, key)


@dataclass(frozen=True, slots=True)
class _Table:
    """The table of a version's samples."""

    work: DatasetSigner
    new: Sequence[str]
    """Files that were not there, or not to this length."""

    def _fresh(self, stretches: Iterable[samples.Stretch]) -> Iterator[samples.Stretch]:
        """The samples that are not in the tables of earlier versions."""
        for one in stretches:
            old = self.work.known.get(one.file)
            if old is None or one.offset >= old.size:
                yield one
            elif one.offset + one.length > old.size:
                raise bad(
                    f"sample {one.id!r} goes on in what was added, and was signed without it",
                    str(self.work.root / one.file),
                    "end the last sample before you add others, or add a file",
                )

    def write(
        self, old: DatasetPredicate | None, data_format: DataFormat, about: About
    ) -> SampleIndex | None:
        """The table of the new files' samples, and the index over all tables."""
        before = None if old is None else old.samples
        if before is None and not about.with_samples:
            return None
        if old is not None and before is None:
            raise bad(
                "the version before has no table of samples, so this one cannot have one",
                str(self.work.root),
                "leave out --samples",
            )
        stretches = samples.find(data_format, self.new, self.open)
        source = about.sources[0] if len(about.sources) == 1 else ""
        license_name = about.licenses[0] if len(about.licenses) == 1 else ""
        found = samples.describe(
            self._fresh(stretches), self.open, source=source, license_name=license_name
        )
        lines = [sample.line() for sample in found]
        files = [] if before is None else list(before.files)
        older = [line for name in files for line in self._read_lines(name)]
        if lines:
            name = samples.table_name(self.work.seq)
            data = b"".join(line + b"\n" for line in lines)
            write_atomic(self.work.root / name, data, replace=False)
            writer = TreeWriter(self.work.params)
            writer.update(data)
            self.work.keep(name, writer.finish())
            files.append(name)
        if not files:
            raise bad(
                f"format {data_format} has no samples of its own",
                str(self.work.root),
                "leave out --samples, or name the format with --data-format",
            )
        return samples.index_of(files, [*older, *lines])

    def open(self, name: str) -> BinaryIO:
        """Open a data file, which must be a regular one."""
        return os.fdopen(open_regular(self.work.root / name), "rb")

    def _read_lines(self, name: str) -> list[bytes]:
        with self.open(name) as file:
            return file.read().splitlines()


def _predicate(  # noqa: PLR0917 - its parts, each once
    about: About,
    work: DatasetSigner,
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
            num_files=len(entries(old.files)),
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
        raise bad(str(error), str(work.root), "correct what is said about it") from error


def _growth(old: DatasetPredicate, files: Sequence[DataFile]) -> list[bytes]:
    hashes = file_hashes(files)
    return merkle.consistency_proof(len(entries(old.files)), len(hashes), hashes_of(hashes))


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
                raise bad(f"split {split!r} names {missing[0]!r}", where, "name files that exist")
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
        raise bad("the statement is not a dataset's", str(root), "name a dataset")
    return previous.predicate


def _listed(root: Path) -> list[FileEntry]:
    """The data files: everything but the statement and the trees."""
    files, unsafe = check_whole(root)
    if unsafe:
        raise Problem("ST-DATA-142", unsafe[0].reason, unsafe[0].name).error(str(root))
    found = [
        file
        for file in files
        if file.name != STATEMENT and PurePosixPath(file.name).parts[0] != TREES
    ]
    if not found:
        raise bad("there is no file to sign", str(root), "name a directory that holds data")
    return found


def _check_kept(root: Path, known: Mapping[str, DataFile], found: Sequence[FileEntry]) -> None:
    """Rule 3."""
    sizes = {entry.name: entry.size for entry in found}
    for file in known.values():
        if sizes.get(file.name, -1) < file.size:
            raise IntegrityError(
                "ST-DATA-171",
                f"{file.name} has {sizes.get(file.name, 'no')} bytes, {file.size} were signed",
                str(root),
            )


def _is_kept(entry: FileEntry, known: Mapping[str, DataFile]) -> bool:
    return entry.name in known and known[entry.name].size == entry.size


def _tree(old: DatasetPredicate | None, params: TreeParams | None) -> TreeParams:
    if old is not None:
        return old.tree.params
    return params or TreeParams(leaf_size=DATASET_LEAF)


def _together(old: Sequence[str], new: Sequence[str]) -> list[str]:
    return list(dict.fromkeys([*old, *new]))
