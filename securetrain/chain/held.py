# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Bytes that a pack holds besides proofs: whole checkpoints and datasets, or the rows of steps.

A `Held` document lists them for one artifact. It is a hint, as the list of contents is: what counts
is that the bytes lead to the root that the artifact's own statement signs.

Rules:

1. a whole artifact has every file that its statement leads to, each once, but the hash tables:
   those follow from the bytes;
2. of a dataset for some steps, a file has the leaves that the rows of those steps touch, no more
   and no fewer, one after the other, and their way up to the signed root: the hashes of all pages
   of its leaf table, then the pages that the leaves are in;
3. files are read in pieces, as large as they may be. What is packed was compared with the signed
   root while it was hashed, and with its digest while it was written.
"""

import hashlib
import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Final, TypeAlias

from msgspec import Meta

from securetrain.artifacts import Kind
from securetrain.artifacts.statement.statements import (
    CheckpointPredicate,
    DatasetPredicate,
    Opened,
    ParentRole,
)
from securetrain.chain import documents
from securetrain.chain.container import Cuts, Document, chunks_of
from securetrain.chain.records import StepRecord, records_of
from securetrain.chain.rows import MAX_ROWS, RowBytes, RowOrder, settings_of, width_of
from securetrain.chain.store import Pieces
from securetrain.core.errors import IntegrityError, UsageError, os_error
from securetrain.core.files import open_regular
from securetrain.core.hashtree import (
    DIGEST_SIZE,
    PAGE_LEAVES,
    Tree,
    TreeParams,
    TreeWriter,
    pages_of,
)

HELD_TYPE: Final = f"{documents.BASE}.held.v1+json"
BYTES_TYPE: Final = "application/octet-stream"
MAX_ABOVE: Final = 64 << 20
"""Bytes of the hashes of all pages of one file: of 256 TB at leaves of 64 KiB."""

PAGE_BYTES: Final = PAGE_LEAVES * DIGEST_SIZE

Steps: TypeAlias = Annotated[
    tuple[documents.Count, documents.Count], Meta(description="the first and the last")
]


class HeldFile(documents.Part, frozen=True, omit_defaults=True):
    """A file of an artifact whose bytes are in the pack."""

    name: Annotated[str, Meta(min_length=1, max_length=1024)]
    data: documents.Hex32
    """The document with its bytes, or with its leaves one after the other."""
    leaves: Annotated[
        tuple[tuple[documents.Count, documents.Count], ...], Meta(max_length=1 << 20)
    ] = ()
    """First leaf and number of leaves of each stretch, in order; empty where all of it is there."""
    table: documents.Hex32 | None = None
    """The document with the leaves' way up; None where all of the file is there."""


class Held(documents.Document, frozen=True, omit_defaults=True, tag=HELD_TYPE):
    """The bytes of one artifact that a pack holds."""

    artifact: documents.Hex32
    """The digest of the artifact."""
    files: Annotated[tuple[HeldFile, ...], Meta(max_length=1 << 18)]
    """In the order of their names."""
    steps: Steps | None = None
    """The steps whose rows these are; None of a whole artifact."""


@dataclass(frozen=True, slots=True)
class Made:
    """A `Held` with the documents that it names."""

    held: Held
    documents: Sequence[Document]


def hold_whole(root: Path, opened: Opened) -> Made:
    """Describe all bytes of a signed directory.

    Raises:
        IntegrityError: A file is not what was signed, is missing or no regular file.
    """
    said = opened.predicate
    files: list[HeldFile] = []
    made: list[Document] = []
    for name, size, check in _whole(said):
        document = _hashed(root, opened.kind, name, size, check)
        files.append(HeldFile(name=name, data=document.digest))
        made.append(document)
    files.sort(key=lambda one: one.name)
    return Made(Held(artifact=opened.digest, files=tuple(files)), made)


def hold_rows(
    root: Path, opened: Opened, wanted: Mapping[str, set[int]], steps: tuple[int, int]
) -> Made:
    """Describe some leaves of a dataset, with their way up to its signed roots.

    Args:
        root: Its directory.
        opened: Its statement.
        wanted: By file, the numbers of the leaves (`RowBytes.leaves`).
        steps: The steps that they are for.

    Raises:
        IntegrityError: A file is not what was signed, is missing or no regular file.
    """
    assert isinstance(opened.predicate, DatasetPredicate)
    entries = {file.name: file for file in opened.predicate.files}
    params, kind = opened.predicate.tree.params, opened.kind
    files: list[HeldFile] = []
    made: list[Document] = []
    for name in sorted(wanted):
        entry, runs = entries[name], runs_of(wanted[name])
        if kind.table_size(params, entry.size) != _size_of(root / kind.table_of(name), kind):
            raise IntegrityError(kind.code(131), "not of the signed size", kind.table_of(name))
        pages = num_pages(params, entry.size) * DIGEST_SIZE
        above = [
            (0, pages),
            *(
                (pages + page * PAGE_BYTES, _page_size(params, entry.size, page))
                for page in touched(runs)
            ),
        ]
        table = _cut(root / kind.table_of(name), above, kind)
        data = _cut(root / name, list(stretches_of(runs, params, entry.size)), kind)
        if data.size != _sum(data.source):
            raise IntegrityError(kind.code(131), "it ends too early", name)
        way = WayUp(params=params, size=entry.size, root=entry.root, runs=runs)
        for _ in way.leaves(_reader(table), _reader(data), _differs(kind, name)):
            pass
        made += [table, data]
        files.append(HeldFile(name=name, data=data.digest, leaves=runs, table=table.digest))
    return Made(Held(artifact=opened.digest, files=tuple(files), steps=steps), made)


Read: TypeAlias = Callable[[int, int], bytes]
"""Bytes at an offset, of a length; fewer where there are no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WayUp:
    """Some leaves of a file, and how they lead to its signed root (`core.hashtree`)."""

    params: TreeParams
    size: int
    root: str
    runs: tuple[tuple[int, int], ...]

    @property
    def table_size(self) -> int:
        """Bytes of the hashes that lead there."""
        pages = sum(_page_size(self.params, self.size, page) for page in touched(self.runs))
        return num_pages(self.params, self.size) * DIGEST_SIZE + pages

    @property
    def data_size(self) -> int:
        """Bytes of the leaves."""
        return sum(length for _, length in stretches_of(self.runs, self.params, self.size))

    def leaves(
        self,
        table: Read,
        data: Read,
        refused: IntegrityError,
        *,
        keep: Callable[[int, bytes], object] | None = None,
    ) -> Iterator[tuple[int, bytes]]:
        """Number and bytes of each leaf, verified.

        Args:
            table: The hashes, in the order of `hold_rows`.
            data: The leaves, one after the other.
            refused: Raised when something does not lead to the root.
            keep: Told each verified part of the file's hash table, with its offset in that.
        """
        above = num_pages(self.params, self.size) * DIGEST_SIZE
        if above > MAX_ABOVE or not self._are_sound():
            raise refused
        hashes = table(0, above)
        if self.params.root(self.size, hashes).hex() != self.root:
            raise refused
        if keep is not None:
            keep(0, hashes)
        at, here, page, number = above, 0, b"", -1
        for leaf in leaves_of(self.runs):
            if leaf // PAGE_LEAVES != number:
                number = leaf // PAGE_LEAVES
                page = table(at, _page_size(self.params, self.size, number))
                at += len(page)
                wanted = hashes[number * DIGEST_SIZE : (number + 1) * DIGEST_SIZE]
                if self.params.page(number, page) != wanted:
                    raise refused
                if keep is not None:
                    keep(above + number * PAGE_BYTES, page)
            begin = leaf * self.params.leaf_size
            found = data(here, min(self.params.leaf_size, self.size - begin))
            here += len(found)
            place = leaf % PAGE_LEAVES * DIGEST_SIZE
            if self.params.leaf(leaf, found) != page[place : place + DIGEST_SIZE]:
                raise refused
            yield leaf, found

    def _are_sound(self) -> bool:
        """Tell whether the stretches are in order, apart from each other, and inside the file."""
        end, count = -1, self.params.num_leaves(self.size)
        for first, length in self.runs:
            if first <= end or length < 1 or first + length > count:
                return False
            end = first + length
        return bool(self.runs)


def touched(runs: Iterable[tuple[int, int]]) -> list[int]:
    """The pages of a leaf table that some leaves are in."""
    found: list[int] = []
    for first, count in runs:
        begin = first // PAGE_LEAVES
        if found and begin <= found[-1]:
            begin = found[-1] + 1
        found += range(begin, (first + count - 1) // PAGE_LEAVES + 1)
    return found


def num_pages(params: TreeParams, size: int) -> int:
    """The number of pages that the leaf table of a file has."""
    return -(-params.num_leaves(size) // PAGE_LEAVES)


def _page_size(params: TreeParams, size: int, page: int) -> int:
    return min(PAGE_BYTES, params.num_leaves(size) * DIGEST_SIZE - page * PAGE_BYTES)


def _reader(document: Document) -> Read:
    """Reads what a cut document will be, from its file."""
    cuts = document.source
    assert isinstance(cuts, Cuts)
    starts = list(accumulate((length for _, length in cuts.stretches), initial=0))

    def read(at: int, length: int) -> bytes:
        number = bisect_right(starts, at) - 1
        if number >= len(cuts.stretches):
            return b""
        offset, size = cuts.stretches[number]
        inside = at - starts[number]
        # A reader asks for one leaf or page at a time, which lies in one stretch.
        fd = open_regular(cuts.path)
        try:
            return b"".join(chunks_of(fd, offset + inside, min(length, size - inside)))
        finally:
            os.close(fd)

    return read


def _sum(source: bytes | Path | Cuts) -> int:
    return sum(length for _, length in source.stretches) if isinstance(source, Cuts) else 0


def _size_of(path: Path, kind: Kind) -> int:
    fd = _open(path, kind)
    try:
        return os.fstat(fd).st_size
    finally:
        os.close(fd)


def hashes_of_pages(tree: Tree) -> bytes:
    """The hashes of the pages of a tree's leaf table."""
    return pages_of(tree.params, tree.leaves)


def runs_of(leaves: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Numbers as stretches: first and count of each, in order."""
    runs: list[list[int]] = []
    for leaf in sorted(leaves):
        if runs and leaf == runs[-1][0] + runs[-1][1]:
            runs[-1][1] += 1
        else:
            runs.append([leaf, 1])
    return tuple((first, count) for first, count in runs)


def leaves_of(runs: Iterable[tuple[int, int]]) -> Iterator[int]:
    """Every number of some stretches."""
    for first, count in runs:
        yield from range(first, first + count)


def rows_wanted(
    line: Sequence[Opened], dataset: Opened, pieces: Pieces, steps: tuple[int, int]
) -> dict[str, set[int]]:
    """The leaves of a dataset that the rows of some steps touch, by the records of those steps.

    Args:
        line: The checkpoint and what it goes on from, with the steps between them (`main_line`).
        dataset: The dataset's statement.
        pieces: Their evidence.
        steps: The first and the last step.

    Raises:
        UsageError: ST-USAG-001 when rows are no stretches of bytes, or are too many.
        IntegrityError: ST-CHAN-016 when a step was not recorded, or read other rows or another
            dataset; ST-CHAN-001.
    """
    assert isinstance(dataset.predicate, DatasetPredicate)
    first, last = steps
    found: dict[str, set[int]] = {}
    left = set()
    counted = 0
    for opened in line:
        said = opened.checkpoint
        if said.bound.step_records is None:
            continue
        recorded = records_of(pieces, said.bound.step_records)
        if recorded is None:
            continue
        kept, records = recorded
        asked = [one for one in records if first <= one.step <= last]
        if not asked:
            continue
        counted += len(asked) * kept.order.batch_rows
        if counted > MAX_ROWS:
            raise UsageError(
                "ST-USAG-001", f"more than {MAX_ROWS} rows", "--rows", "ask for fewer steps"
            )
        if said.dataset.digest != dataset.digest:
            raise IntegrityError("ST-CHAN-016", f"step {asked[0].step} read another dataset")
        settings = settings_of(pieces, said.bound.job)
        width = None if settings is None else width_of(dataset.predicate, settings)
        if width is None or kept.order.sequential:
            raise UsageError(
                "ST-USAG-001",
                "the rows of this job are cut from documents, not from bytes",
                "--rows",
                "pack the whole dataset: --dataset",
            )
        _add(found, asked, kept.order, RowBytes.of(dataset.predicate, kept.order, width), dataset)
        left |= {one.step for one in asked}
    if len(left) != last - first + 1:
        gone = next(step for step in range(first, last + 1) if step not in left)
        raise IntegrityError(
            "ST-CHAN-016",
            f"step {gone} was not recorded, or its records are not at hand",
            "rows",
            "name steps that lead to the checkpoint, or give their evidence: --evidence DIR",
        )
    return found


def main_line(subject: Opened, ancestors: Iterable[Opened]) -> list[Opened]:
    """A checkpoint and those of its run that it goes on from, newest first."""
    known = {one.digest: one for one in ancestors}
    line = [subject]
    while True:
        said = line[-1].checkpoint
        before = [one.digest for one in said.parents if one.role is ParentRole.PREVIOUS]
        found = known.pop(before[0], None) if len(before) == 1 else None
        if found is None or not isinstance(found.predicate, CheckpointPredicate):
            return line
        if found.predicate.run_id != subject.checkpoint.run_id:
            return line
        line.append(found)


def _add(
    found: dict[str, set[int]],
    asked: Sequence[StepRecord],
    order: RowOrder,
    rows: RowBytes,
    dataset: Opened,
) -> None:
    for one in asked:
        if order.root(one.step) != one.rows:
            raise IntegrityError("ST-CHAN-016", f"step {one.step} read other rows than its order's")
    leaf_size = dataset.predicate.tree.leaf_size
    for name, leaves in rows.leaves((one.step for one in asked), leaf_size).items():
        found.setdefault(name, set()).update(leaves)


Check: TypeAlias = tuple[TreeParams, str] | str
"""The signed root with its tree's parameters, or a SHA-256."""


def _whole(said: CheckpointPredicate | DatasetPredicate) -> Iterator[tuple[str, int, Check]]:
    """Name, size and signed digest of every file that is packed, by rule 1."""
    for file in said.files:
        yield file.name, file.size, (said.tree.params, file.root)
    if isinstance(said, CheckpointPredicate):
        for one in (said.index, *said.documents):
            yield one.name, one.size, one.sha256


def signed_files(opened: Opened) -> dict[str, tuple[int, Check]]:
    """By name, size and signed digest of every file of a whole artifact."""
    return {name: (size, check) for name, size, check in _whole(opened.predicate)}


def _hashed(root: Path, kind: Kind, name: str, size: int, check: Check) -> Document:
    """A file that is what was signed, with its SHA-256."""
    state = hashlib.sha256()
    writer = TreeWriter(check[0] if isinstance(check, tuple) else TreeParams())
    fd = _open(root / name, kind)
    try:
        found = os.fstat(fd).st_size
        if found != size:
            raise IntegrityError(kind.code(131), f"{found} bytes, {size} were signed", name)
        for chunk in chunks_of(fd, 0, size):
            writer.update(chunk)
            state.update(chunk)
    except OSError as error:
        raise os_error(error, str(root / name)) from error
    finally:
        os.close(fd)
    root_hash, digest = writer.finish().root.hex(), state.hexdigest()
    if (root_hash != check[1]) if isinstance(check, tuple) else (digest != check):
        raise _differs(kind, name)
    return Document(media_type=BYTES_TYPE, digest=digest, size=size, source=root / name)


def _cut(path: Path, stretches: Sequence[tuple[int, int]], kind: Kind) -> Document:
    """Some stretches of a file as one document; `write_pack` compares what it reads then."""
    state, size = hashlib.sha256(), 0
    fd = _open(path, kind)
    try:
        for offset, length in stretches:
            for chunk in chunks_of(fd, offset, length):
                state.update(chunk)
                size += len(chunk)
    except OSError as error:
        raise os_error(error, str(path)) from error
    finally:
        os.close(fd)
    return Document(
        media_type=BYTES_TYPE,
        digest=state.hexdigest(),
        size=size,
        source=Cuts(path, stretches),
    )


def stretches_of(
    runs: Iterable[tuple[int, int]], params: TreeParams, size: int
) -> Iterator[tuple[int, int]]:
    """Offset and length of some stretches of leaves in their file."""
    for first, count in runs:
        begin = first * params.leaf_size
        yield begin, min((first + count) * params.leaf_size, size) - begin


def _open(path: Path, kind: Kind) -> int:
    try:
        return open_regular(path)
    except FileNotFoundError as error:
        raise IntegrityError(kind.code(140), "a signed file is missing", str(path)) from error
    except OSError as error:
        raise os_error(error, str(path)) from error


def _differs(kind: Kind, name: str) -> IntegrityError:
    return IntegrityError(kind.code(130), "its bytes are not what was signed", name)
