# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Hash all content of a signed directory, and compare it with what was signed.

Rules:

1. every data file is hashed leaf by leaf and led up to its signed root, every table likewise, and
   the index to its digest; the index's content is checked too, and that a file which has grown
   begins with what it was;
2. every byte is read once. What other readers of a safetensors file are told, its header, is taken
   from the very bytes that were hashed;
3. one pool reads and hashes small files side by side and the parts of large ones (`tree.pool`).
   Held at once: `BLOCK` (of a store `REQUEST`) for each thread, and tables and headers of the files
   that are open, of which there are at most twice as many as threads;
4. problems come in the order of the files, however the threads ran.
"""

import hashlib
import math
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

from securetrain.artifacts.dataset.versions import check_growth
from securetrain.artifacts.report import Report
from securetrain.artifacts.statement.reading import (
    BLOCK,
    REQUEST,
    SignedFile,
    open_data,
    read_digested,
    read_whole,
)
from securetrain.artifacts.statement.statements import (
    CheckpointPredicate,
    DataFile,
    Predicate,
    RankFile,
)
from securetrain.artifacts.tree import index as index_file
from securetrain.artifacts.tree import safetensors_header
from securetrain.artifacts.tree.layout import (
    INDEX,
    PAGE_BYTES,
    Kind,
    Problem,
    content_problem,
    num_pages,
    table_problem,
)
from securetrain.artifacts.tree.pool import AHEAD, Pool, fetch_ahead
from securetrain.core.errors import IntegrityError
from securetrain.core.hashtree import DIGEST_SIZE, TreeParams, pages_of, root_of

STRETCH: Final = 32 << 20
"""Bytes that one task hashes."""

Progress: TypeAlias = Callable[[int, int], None]
"""Called with the bytes hashed so far and the bytes in all."""
Told: TypeAlias = Mapping[str, Mapping[str, index_file.TensorEntry]]
"""File to the tensors that the signed index places in it."""


def check_content(
    report: Report,
    predicate: Predicate,
    progress: Progress | None = None,
    *,
    threads: int | None = None,
) -> None:
    """Check every byte that a verified statement speaks of.

    Args:
        report: takes what is found.
        predicate: what the statement says.
        progress: called from the calling thread while bytes are hashed.
        threads: threads that read and hash; None for what cores and disk give.
    """
    index = None
    if isinstance(predicate, CheckpointPredicate):
        index = _check_index(report, predicate)
        _check_documents(report, predicate)
    _Content.of(report, predicate, index).check(progress, threads)


def _check_index(report: Report, predicate: CheckpointPredicate) -> index_file.Index | None:
    """The index, or None when it is damaged or false."""
    entry = predicate.index
    try:
        data = read_whole(report.root, entry.name, entry.size, Kind.CHECKPOINT)
        if hashlib.sha256(data).hexdigest() != entry.sha256:
            report.add(
                Problem(
                    "ST-CKPT-132",
                    "the index is not what was signed, so damage cannot be led to tensors",
                    INDEX,
                )
            )
            return None
        index = index_file.parse(data, {file.name: file.data_size for file in predicate.files})
    except IntegrityError as error:
        report.catch(error, INDEX)
        return None
    report.num_files += 1
    report.num_bytes += len(data)
    return index


def tensor_sizes(place: Path, predicate: CheckpointPredicate) -> dict[str, int]:
    """The elements of each tensor of a checkpoint, by the index that was signed.

    Args:
        place: The directory.
        predicate: What its statement says.

    Raises:
        IntegrityError: ST-CKPT-130 to 142 or 200.
    """
    data = read_digested(place, predicate.index, Kind.CHECKPOINT)
    index = index_file.parse(data, {file.name: file.data_size for file in predicate.files})
    return {tensor.fqn: math.prod(tensor.shape) for tensor in index.tensors}


def _check_documents(report: Report, predicate: CheckpointPredicate) -> None:
    """The small files besides the index."""
    for entry in predicate.documents:
        try:
            read_digested(report.root, entry, Kind.CHECKPOINT)
        except IntegrityError as error:
            report.catch(error, entry.name)
            continue
        report.num_files += 1
        report.num_bytes += entry.size


@dataclass(slots=True)
class _Ticker:
    """Counts bytes over threads; shown from the thread that asked."""

    total: int
    progress: Progress | None
    done: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, count: int) -> None:
        with self._lock:
            self.done += count

    def show(self) -> None:
        if self.progress is not None:
            self.progress(self.done, self.total)


@dataclass(slots=True)
class _FileJob:
    """One data file that is being hashed, with its table as it lies on disk."""

    entry: RankFile | DataFile
    file: SignedFile
    table: bytes | None
    """None when the table cannot be read at the signed size."""
    leaves: bytearray
    header: bytearray = field(default_factory=bytearray)
    """The bytes that were hashed where the file's own header lies."""
    failed: bool = False

    @classmethod
    def open(
        cls, report: Report, params: TreeParams, entry: RankFile | DataFile
    ) -> "_FileJob | None":
        kind = report.kind
        name = kind.table_of(entry.name)
        table: bytes | None = None
        try:
            size = kind.table_size(params, entry.size)
            table = read_whole(report.root, name, size, kind)
        except IntegrityError as error:
            report.catch(error, name)
        try:
            source = open_data(report.root, entry.name, entry.size, kind)
        except IntegrityError as error:
            report.catch(error, entry.name)
            return None
        file = SignedFile(
            source=source,
            name=entry.name,
            size=entry.size,
            params=params,
            kind=kind,
            root=report.root,
        )
        return cls(entry, file, table, bytearray(params.num_leaves(entry.size) * DIGEST_SIZE))

    def expect_header(self) -> None:
        """Make room for the header, by its length, which is not verified yet.

        Raises:
            IntegrityError: it cannot be read; a length that cannot be is judged later.
        """
        start = bytearray(min(safetensors_header.PREFIX, self.file.size))
        self.file.read_raw(0, memoryview(start))
        try:
            size = safetensors_header.header_size(bytes(start), self.file.size, self.file.name)
        except IntegrityError:
            size = len(start)
        self.header = bytearray(size)

    def parts(self) -> Iterator["_Part"]:
        """The stretches of the file; an empty file has one."""
        step = max(1, STRETCH // self.file.params.leaf_size)
        count = self.file.params.num_leaves(self.file.size)
        for first in range(0, max(1, count), step):
            end = min(first + step, count)
            yield _Part(self, first, end, is_last=end == count)

    def hash(self, first: int, end: int, ticker: _Ticker) -> None:
        """Hash leaves `first` to `end`; what they should be is judged afterwards."""
        params, leaf, source = self.file.params, self.file.params.leaf_size, self.file.source
        step = max(1, (REQUEST if source.whole else BLOCK) // leaf)
        buffer = memoryview(bytearray(min(step * leaf, self.file.size)))
        for start in range(first, end, step):
            stop = min(start + step, end)
            offset = start * leaf
            block = buffer[: min(stop * leaf, self.file.size) - offset]
            if (offset - first * leaf) % AHEAD < len(block):
                fetch_ahead(source, offset, min(2 * AHEAD, (end - start) * leaf))
            self.file.read_raw(offset, block)
            digests = [
                params.leaf(index, block[(index - start) * leaf : (index - start + 1) * leaf])
                for index in range(start, stop)
            ]
            self.leaves[start * DIGEST_SIZE : stop * DIGEST_SIZE] = b"".join(digests)
            if offset < len(self.header):
                told = block[: len(self.header) - offset]
                self.header[offset : offset + len(told)] = told
            ticker.add(len(block))

    def agrees(self, stored: bytes, length: int) -> bool:
        """Tell whether the leaves under the first `length` bytes are those of the table."""
        cut = self.file.params.num_leaves(length) * DIGEST_SIZE
        return self.leaves[:cut] == stored[:cut]


@dataclass(frozen=True, slots=True)
class _Part:
    """Some leaves of a file."""

    job: _FileJob
    first: int
    end: int
    is_last: bool


@dataclass(slots=True)
class _Content:
    """The data files of a directory, while they are checked."""

    report: Report
    predicate: Predicate
    tensors: index_file.TensorMap
    told: Told | None
    """None without an index that can be trusted."""
    _open: dict[str, _FileJob] = field(default_factory=dict)

    @classmethod
    def of(cls, report: Report, predicate: Predicate, index: index_file.Index | None) -> "_Content":
        tensors = index_file.TensorMap() if index is None else index_file.TensorMap.of(index)
        told = None if index is None else index_file.by_file(index)
        return cls(report, predicate, tensors, told)

    def check(self, progress: Progress | None, threads: int | None) -> None:
        """Hash and judge every file."""
        ticker = _Ticker(sum(file.size for file in self.predicate.files), progress)
        try:
            with Pool(threads) as pool:
                work = lambda part: part.job.hash(part.first, part.end, ticker)  # noqa: E731
                for part, done in pool.each(work, self._parts()):
                    ticker.show()
                    job = part.job
                    try:
                        if not job.failed:
                            done.result()
                    except IntegrityError as error:
                        job.failed = True
                        self.report.catch(error, job.file.name)
                    if part.is_last:
                        self._finish(job)
        finally:
            for job in self._open.values():
                job.file.close()

    def _parts(self) -> Iterator[_Part]:
        """The parts of all files, each of which is opened when its turn comes."""
        for entry in self.predicate.files:
            job = _FileJob.open(self.report, self.predicate.tree.params, entry)
            if job is None:
                continue
            self._open[entry.name] = job
            try:
                if self.told is not None and entry.name.endswith(safetensors_header.SUFFIX):
                    job.expect_header()
            except IntegrityError as error:
                job.failed = True
                self.report.catch(error, entry.name)
            yield from job.parts()

    def _finish(self, job: _FileJob) -> None:
        """Judge a file that has been hashed, and close it."""
        try:
            if job.failed:
                return
            try:
                _check_growth(job)
            except IntegrityError as error:
                self.report.catch(error, job.file.name)
                return
            self._judge(job)
        finally:
            del self._open[job.file.name]
            job.file.close()

    def _judge(self, job: _FileJob) -> None:
        """Compare what was hashed with the table and the signed root."""
        file, kind, report = job.file, self.report.kind, self.report
        table = kind.table_of(file.name)
        data_ok = root_of(file.params, file.size, job.leaves).hex() == job.entry.root
        stored = _leaves_of(job, kind)
        if job.table is not None and stored is None:
            report.add(table_problem(kind, table))
        if data_ok:
            report.num_files += 1
            report.num_bytes += file.size
            self._check_header(job, job.leaves)
            return
        if stored is None:
            # Without a table that leads to the root, the damage cannot be placed.
            report.add(
                Problem(
                    kind.code(130),
                    "the content is not what was signed; its damaged table cannot say where",
                    file.name,
                    offset=0,
                    length=file.size,
                )
            )
            return
        self._check_header(job, stored)
        for index in range(file.params.num_leaves(file.size)):
            place = slice(index * DIGEST_SIZE, (index + 1) * DIGEST_SIZE)
            if job.leaves[place] != stored[place]:
                start, length = file.leaf_range(index)
                names = self.tensors.names(file.name, start, length) if self.told else []
                report.add(content_problem(kind, file.name, start, length, names))

    def _check_header(self, job: _FileJob, stored: bytes | bytearray) -> None:
        """Check what other readers of a safetensors file are told, where it was verified."""
        if self.told is None or not job.header or not job.agrees(bytes(stored), len(job.header)):
            return
        name = job.file.name
        said = safetensors_header.differences(
            self.told.get(name, {}), name, bytes(job.header), job.file.size
        )
        self.report.add(*said)


def _check_growth(job: _FileJob) -> None:
    """A dataset's file that has grown begins with what it was."""
    file, leaves, entry = job.file, job.leaves, job.entry
    if not isinstance(entry, DataFile) or not entry.before:
        return
    if root_of(file.params, file.size, leaves).hex() != entry.root:
        return  # judged as what it is: other content than was signed
    pages = pages_of(file.params, leaves)
    check_growth(entry, file, pages, lambda n: leaves[n * PAGE_BYTES : (n + 1) * PAGE_BYTES])


def _leaves_of(job: _FileJob, kind: Kind) -> bytes | None:
    """The stored leaf table when it leads to the signed root."""
    if job.table is None:
        return None
    file = job.file
    cut = num_pages(file.params, file.size) * DIGEST_SIZE if kind is Kind.DATASET else 0
    pages, leaves = job.table[:cut], job.table[cut:]
    if root_of(file.params, file.size, leaves).hex() != job.entry.root:
        return None
    if kind is Kind.DATASET and pages_of(file.params, leaves) != pages:
        return None
    return leaves
