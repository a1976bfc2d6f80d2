# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Sign a dataset: copy it into a new directory, hashing every byte on its way.

Rules, in order:

1. the directory appears whole, under a name that was free, or not at all;
2. links, special files and unsafe names in the source are refused, never followed;
3. what is hashed is what is written: the source is read once;
4. the statement is written last.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec

from securetrain.artifacts.dataset.trees import Progress, keep_tree, pieces
from securetrain.artifacts.statement.statements import (
    DataFile,
    DatasetPredicate,
    Split,
    TreeInfo,
    digest_of,
    sign,
)
from securetrain.artifacts.tree.layout import STATEMENT
from securetrain.artifacts.tree.problems import Problem
from securetrain.core import canonical
from securetrain.core.errors import UsageError, os_error
from securetrain.core.files import staged_dir, survey, write_atomic
from securetrain.core.hashtree import DATASET_LEAF, Buffer, TreeParams, TreeWriter
from securetrain.identity.keys import PrivateKey

DOCUMENTS_SUFFIX: Final = ".documents.jsonl"
DATA_SUFFIX: Final = ".bin"
WHOLE: Final = "all"
"""The split that holds every file when none is named."""


class Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One document of a split: where it lies."""

    name: str
    file: str
    offset: int
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedDataset:
    """A dataset that has just been signed."""

    path: Path
    digest: str
    predicate: DatasetPredicate


def sign_dataset(
    source: Path,
    out: Path,
    *,
    name: str,
    key: PrivateKey,
    now: datetime,
    splits: Mapping[str, Sequence[str]] | None = None,
    metadata: Mapping[str, str] | None = None,
    seq: int = 0,
    params: TreeParams | None = None,
    progress: Progress | None = None,
) -> SignedDataset:
    """Copy every file below `source` into the new directory `out` and sign it.

    Args:
        source: a directory of data files.
        out: the directory to make; it must not exist.
        name: what the dataset is called.
        key: signs for the trust role ``dataset``.
        now: the time of signing, with a time zone.
        splits: split name to file names in reading order; one split "all" when absent.
        metadata: whatever belongs to it in short strings: licence, source, scan results.
        seq: version number; newer is greater.
        params: the hash tree (default: BLAKE3 over leaves of 64 KiB).
        progress: called with bytes done and bytes in all.

    Raises:
        IntegrityError: ST-DATA-142 the source has a link or an unsafe name, ST-DATA-201 `out`
            exists.
        UsageError: ST-USAG-001 the arguments do not fit the source, ST-USAG-002 or 006 on I/O.
    """
    try:
        files, unsafe = survey(source)
    except OSError as error:
        raise os_error(error, str(source)) from error
    if unsafe:
        raise Problem(
            code="ST-DATA-142", what=f"{unsafe[0].reason} in the source", file=unsafe[0].name
        ).error(str(source))
    if not files:
        raise _bad("there is no file to sign", str(source), "name a directory that holds data")
    names = {entry.name for entry in files}
    chosen = {WHOLE: sorted(names)} if splits is None else {k: list(v) for k, v in splits.items()}
    for split, wanted in chosen.items():
        for file in wanted:
            if file not in names:
                raise _bad(f"split {split!r} names {file!r}", str(source), "name files that exist")
    total = sum(entry.size for entry in files)
    with _writing(out, params, progress, total) as writer:
        for entry in files:
            writer.copy(source, entry.name)
        return writer.finish(
            name,
            [Split(name=k, files=v) for k, v in chosen.items()],
            key=key,
            now=now,
            metadata=metadata,
            seq=seq,
        )


def sign_documents(
    documents: Iterable[tuple[str, str, bytes]],
    out: Path,
    *,
    name: str,
    key: PrivateKey,
    now: datetime,
    metadata: Mapping[str, str] | None = None,
    seq: int = 0,
    params: TreeParams | None = None,
    progress: Progress | None = None,
) -> SignedDataset:
    """Write documents into one file a split, with a table of where each lies, and sign that.

    Args:
        documents: (split, document name, bytes), in reading order.
        out: the directory to make; it must not exist. The rest is as in `sign_dataset`.
        name: what the dataset is called.
        key: signs for the trust role ``dataset``.
        now: the time of signing, with a time zone.
        metadata: whatever belongs to it in short strings.
        seq: version number.
        params: the hash tree.
        progress: called with bytes done, and 0 for bytes in all.

    Raises:
        IntegrityError: ST-DATA-101 a bad split name, ST-DATA-201 `out` exists.
        UsageError: ST-USAG-001 there are no documents, ST-USAG-002 or 006 on I/O.
    """
    with _writing(out, params, progress, 0) as writer, ExitStack() as stack:
        sinks: dict[str, tuple[_Sink, _Sink]] = {}
        for split, document, data in documents:
            if split not in sinks:
                # Checked here because the split's name becomes a file's name.
                msgspec.convert({"name": split, "files": ["x"]}, Split)
                sinks[split] = (
                    stack.enter_context(writer.sink(split + DATA_SUFFIX)),
                    stack.enter_context(writer.sink(split + DOCUMENTS_SUFFIX)),
                )
            body, table = sinks[split]
            entry = Document(
                name=document, file=split + DATA_SUFFIX, offset=body.size, length=len(data)
            )
            body.write(data)
            table.write(canonical.encode(entry) + b"\n")
        stack.close()
        if not sinks:
            raise _bad("there are no documents to sign", str(out), "give at least one")
        splits = [
            Split(name=s, files=[s + DATA_SUFFIX], documents=s + DOCUMENTS_SUFFIX) for s in sinks
        ]
        return writer.finish(name, splits, key=key, now=now, metadata=metadata, seq=seq)


@contextmanager
def _writing(
    out: Path, params: TreeParams | None, progress: Progress | None, total: int
) -> Iterator["_Writer"]:
    if out.exists() or out.is_symlink():
        raise Problem(code="ST-DATA-201", what="already exists and is never overwritten").error(
            str(out)
        )
    tree = params or TreeParams(leaf_size=DATASET_LEAF)
    try:
        with staged_dir(out) as staging:
            yield _Writer(staging, out, tree, progress, total)
    except msgspec.ValidationError as error:
        raise _bad(str(error), str(out), "split names are short, of a-z, 0-9, - and _") from error


@dataclass(slots=True)
class _Sink:
    """One data file that is being written and hashed."""

    name: str
    fd: int
    tree: TreeWriter
    tick: Callable[[int], None]

    @property
    def size(self) -> int:
        return self.tree.size

    def write(self, data: Buffer) -> None:
        view = memoryview(data)
        self.tree.update(view)
        done = 0
        while done < len(view):
            done += os.write(self.fd, view[done:])
        self.tick(len(view))


@dataclass(slots=True)
class _Writer:
    """A dataset directory that is being built."""

    staging: Path
    final: Path
    params: TreeParams
    progress: Progress | None
    total: int
    done: int = 0
    files: list[DataFile] = field(default_factory=list)

    @contextmanager
    def sink(self, name: str) -> Iterator[_Sink]:
        path = self.staging / name
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            sink = _Sink(name, fd, TreeWriter(self.params), self._tick)
            yield sink
        finally:
            os.close(fd)
        self.files.append(keep_tree(self.staging, name, sink.tree.finish()))

    def copy(self, source: Path, name: str) -> None:
        with self.sink(name) as sink:
            for piece in pieces(source / name):
                sink.write(piece)

    def finish(
        self,
        name: str,
        splits: Sequence[Split],
        *,
        key: PrivateKey,
        now: datetime,
        metadata: Mapping[str, str] | None,
        seq: int,
    ) -> SignedDataset:
        predicate = DatasetPredicate(
            name=name,
            seq=seq,
            created=now,
            tree=TreeInfo.of(self.params),
            files=sorted(self.files, key=lambda file: file.name),
            splits=sorted(splits, key=lambda split: split.name),
            metadata=dict(metadata or {}),
        )
        write_atomic(self.staging / STATEMENT, sign(predicate, name, key))
        return SignedDataset(path=self.final, digest=digest_of(predicate), predicate=predicate)

    def _tick(self, count: int) -> None:
        self.done += count
        if self.progress is not None:
            self.progress(self.done, self.total)


def _bad(what: str, where: str, fix: str) -> UsageError:
    return UsageError("ST-USAG-001", what, where, fix)
