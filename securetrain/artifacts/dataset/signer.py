# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The signer of a dataset: hash files, write their trees, and the statement last.

One class for a dataset that is copied into a new directory (`write`) and for one that is signed
where it lies (`sign`). Rules:

1. a file is read once. A copy is hashed from the very bytes that are written;
2. a tree is written below ``_securetrain/`` when its file is whole. A file that has grown since the
   version before must begin with what it was (`growth`);
3. the statement comes last and at once: until then nothing new is signed.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

from securetrain.artifacts.dataset.versions import check_growth
from securetrain.artifacts.statement.dataset_predicate import DataFile, DatasetPredicate
from securetrain.artifacts.statement.listing import open_data
from securetrain.artifacts.statement.reading import SignedFile
from securetrain.artifacts.statement.statements import digest_of, sign
from securetrain.artifacts.tree.layout import PAGE_BYTES, STATEMENT, Kind
from securetrain.artifacts.tree.storage import LocalStorage
from securetrain.core.errors import UsageError, os_error
from securetrain.core.files import open_regular, write_atomic
from securetrain.core.hashtree import (
    DATASET_LEAF,
    Buffer,
    Tree,
    TreeParams,
    TreeWriter,
    pages_of,
)
from securetrain.identity.keys import Signer

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
