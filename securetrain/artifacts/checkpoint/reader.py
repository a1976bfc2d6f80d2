# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The storage reader of a load: the statement judged, the index read, every byte verified.

The rules are those of `load`.

Read the bytes of a file into the tensors that they fill.

Three ways, the first that fits:

1. a run of bytes that the target holds as they are stored is read into its own memory and verified
   there, whole leaves in threads;
2. a run of elements for a target of another dtype or device is read leaf by leaf into a buffer of
   the thread's own, verified there, and copied while the processor's cache still holds it;
3. a box that is no run (other columns than were saved together) is read in slabs of whole rows into
   private memory, and the box is copied out of them.

A leaf at the edge of a run is read by the calling thread, by way of the reader's kept buffer, so
that two neighbours hash it once.
"""

import dataclasses
import math
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent import futures
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from securetrain.artifacts.checkpoint import values
from securetrain.artifacts.checkpoint.containers import SealedReader
from securetrain.artifacts.checkpoint.reports import refusing
from securetrain.artifacts.checkpoint.values import BY_NAME, can_fill, is_plain, memory
from securetrain.artifacts.lineage import folder
from securetrain.artifacts.lineage.judging import Asked, judge
from securetrain.artifacts.lineage.machine import Floor, Known, doubts
from securetrain.artifacts.statement.reading import (
    BLOCK,
    REQUEST,
    LeafReader,
    check_listing,
    read_digested,
    read_statement,
)
from securetrain.artifacts.statement.statements import (
    CheckpointPredicate,
    Opened,
    RankFile,
    open_statement,
)
from securetrain.artifacts.tree import codec
from securetrain.artifacts.tree import index as index_file
from securetrain.artifacts.tree.encryption import DecryptionKey, FileCipher, open_key
from securetrain.artifacts.tree.index import Chunk
from securetrain.artifacts.tree.layout import Kind, Problem, most_telling
from securetrain.artifacts.tree.pool import Pool, stop
from securetrain.artifacts.tree.storage import Storage
from securetrain.core.errors import SecureTrainError, UsageError

STRETCH: Final = 4 << 20
"""Bytes that one task reads and hashes."""
SCRATCH: Final = 32 << 20
"""Bytes of the two buffers of slabs."""


@dataclass(slots=True)
class Fetch:
    """Reads ranges of one file."""

    reader: LeafReader | SealedReader
    pool: Pool
    pending: list[futures.Future[None]] = field(default_factory=list)

    def start(self, offset: int, view: memoryview) -> None:
        """Begin to read a range into `view`; it may be used after `wait`."""
        first, count, before, after = self.reader.split(offset, len(view))
        leaf, step = self._steps()
        for start in range(0, count, step):
            leaves = min(step, count - start)
            low = before + start * leaf
            high = min(low + leaves * leaf, len(view) - after)
            self.pending.append(
                self.pool.submit(self.reader.read_leaves, first + start, leaves, view[low:high])
            )
        self.reader.read_edge(offset, view[:before])
        self.reader.read_edge(offset + len(view) - after, view[len(view) - after :])

    def convert(self, offset: int, dtype: torch.dtype, flat: Tensor) -> None:
        """Begin to fill `flat` with stored elements of `dtype`; it is filled after `wait`.

        Leaves begin at whole elements when `offset` does: their sizes are powers of two.
        """
        size = dtype.itemsize
        first, count, before, after = self.reader.split(offset, flat.numel() * size)
        leaf, step = self._steps()
        low, high = before // size, flat.numel() - after // size
        for start in range(0, count, step):
            leaves = min(step, count - start)
            begin = low + start * leaf // size
            part = flat[begin : min(begin + leaves * leaf // size, high)]
            self.pending.append(
                self.pool.submit(self._convert_leaves, first + start, leaves, dtype, part)
            )
        self._convert_edge(offset, dtype, flat[:low])
        self._convert_edge(offset + high * size, dtype, flat[high:])

    def wait(self) -> None:
        """Wait until everything that was begun has been read and verified.

        Raises:
            IntegrityError: what the first of them found.
        """
        for future in self.pending:
            future.result()
        self.pending.clear()

    def stop(self) -> None:
        """Let nothing go on."""
        stop(self.pending)

    def close(self) -> None:
        """Close the file; nothing of it may be pending."""
        self.reader.file.close()

    def _steps(self) -> tuple[int, int]:
        """The size of a leaf, and how many of them one task reads."""
        file = self.reader.file
        leaf = file.params.leaf_size
        return leaf, max(1, (REQUEST if file.source.whole else STRETCH) // leaf)

    def _convert_leaves(self, first: int, count: int, dtype: torch.dtype, flat: Tensor) -> None:
        """Way 2; the whole stretch at once where many small requests cost more."""
        file = self.reader.file
        leaf = file.params.leaf_size
        step = count if file.source.whole else max(1, BLOCK // leaf)
        total = flat.numel() * dtype.itemsize
        scratch = torch.empty(min(step * leaf, total), dtype=torch.uint8)
        for start in range(0, count, step):
            part = scratch[: total - start * leaf]
            self.reader.read_leaves(first + start, min(step, count - start), memory(part))
            _copy(part, dtype, flat, start * leaf)

    def _convert_edge(self, offset: int, dtype: torch.dtype, flat: Tensor) -> None:
        total = flat.numel() * dtype.itemsize
        scratch = torch.empty(min(BLOCK, total), dtype=torch.uint8)
        for start in range(0, total, BLOCK):
            part = scratch[: total - start]
            self.reader.read_edge(offset + start, memory(part))
            _copy(part, dtype, flat, start)


def _copy(data: Tensor, dtype: torch.dtype, flat: Tensor, start: int) -> None:
    """Put verified bytes into the elements that begin at byte `start` of what is stored."""
    first = start // dtype.itemsize
    flat[first : first + data.numel() // dtype.itemsize].copy_(data.view(dtype))


@dataclass(slots=True)
class Job:
    """One box of a stored chunk and the tensor that it fills."""

    chunk: Chunk
    dtype: torch.dtype
    starts: tuple[int, ...]
    lengths: tuple[int, ...]
    target: Tensor

    def run(self, fetch: Fetch) -> None:
        """Fill the target; except for slabs it is filled after `fetch.wait`."""
        first = _contiguous(self.chunk.sizes, self.starts, self.lengths)
        if first is not None:
            offset = self.chunk.offset + first * self.dtype.itemsize
            if can_fill(self.target, self.dtype):
                fetch.start(offset, memory(self.target))
                return
            # Tensors in safetensors files may begin anywhere.
            whole = offset % self.dtype.itemsize == 0
            if whole and is_plain(self.target) and self.target.is_contiguous():
                fetch.convert(offset, self.dtype, self.target.view(-1))
                return
        for rows, data in self._slabs(fetch):
            into = self.target[rows] if self.lengths else self.target
            into.copy_(data)

    def _slabs(self, fetch: Fetch) -> Iterator[tuple[slice, Tensor]]:
        """The box in pieces of whole rows, by way of a private buffer."""
        inner = self.chunk.sizes[1:]
        row = self.dtype.itemsize * math.prod(inner)
        count = self.lengths[0] if self.lengths else 1
        begin = self.starts[0] if self.starts else 0
        step = min(count, max(1, SCRATCH // 2 // row))
        buffers = min(2, -(-count // step))
        scratch = [torch.empty(step * row, dtype=torch.uint8) for _ in range(buffers)]

        def ahead(done: int) -> Tensor:
            """Begin to read the rows from `done` on; they are there after `fetch.wait`."""
            part = scratch[done // step % 2][: min(step, count - done) * row]
            fetch.start(self.chunk.offset + (begin + done) * row, memory(part))
            return part

        following = ahead(0)
        for done in range(0, count, step):
            rows, part = min(step, count - done), following
            fetch.wait()
            if done + rows < count:
                # Read and hashed while the caller copies this one.
                following = ahead(done + rows)
            data = part.view(self.dtype).reshape((rows, *inner) if self.lengths else ())
            for dim in range(1, len(self.lengths)):
                data = data.narrow(dim, self.starts[dim], self.lengths[dim])
            yield slice(done, done + rows), data


def _contiguous(
    sizes: tuple[int, ...], starts: tuple[int, ...], lengths: tuple[int, ...]
) -> int | None:
    """The first element of a box in its chunk when the box is one run of elements, else None."""
    first, stride, partial = 0, 1, False
    for size, start, length in zip(
        reversed(sizes), reversed(starts), reversed(lengths), strict=True
    ):
        if partial and length != 1:
            return None
        first += start * stride
        stride *= size
        partial = partial or length != size
    return first


_FIT: Final = "ST-USAG-012"


@runtime_checkable
class Target(Protocol):
    """The state dict that is filled, by way of its planner."""

    def resolve_tensor(self, read_item: ReadItem) -> Tensor:
        """The memory for one item."""

    def set_value(self, name: str, value: Any) -> None:
        """Take a decoded value."""


class Reader(StorageReader):
    """Reads the native format."""

    def __init__(
        self,
        storage: Storage,
        asked: Asked | None,
        threads: int | None,
        keys: Sequence[DecryptionKey],
    ) -> None:
        self.storage = storage
        self.asked = asked
        self.threads = threads
        self.keys = keys
        self.known: Known | None = None
        self.error: SecureTrainError | None = None
        self.opened: Opened | None = None
        self.index = index_file.Index.of(())
        self.tensors = index_file.TensorMap()
        self.chunks: dict[tuple[str, tuple[int, ...]], tuple[torch.dtype, index_file.Chunk]] = {}

    def reset(self, checkpoint_id: Any = None) -> None:
        """One reader, one load: there is nothing to reset."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        """Never chosen by torch from a path."""
        del checkpoint_id
        return False

    # No **kwargs: with them torch would answer a failure by reading another file.
    def read_metadata(self) -> Metadata:
        """Verify and read the index. An error is kept for the planner: torch would swallow it."""
        if self.error is not None:
            return Metadata({})
        try:
            return self._open()
        except SecureTrainError as error:
            self.error = error
            return Metadata({})

    @refusing("ST-USAG-010")
    def _open(self) -> Metadata:
        kind, storage = Kind.CHECKPOINT, self.storage
        asked, data = self.asked, read_statement(storage, kind)
        assert asked is not None, "without it there is an error"
        proven = folder.prove(storage, data, kind, asked.trust, asked.policy, asked.now)
        index = None if proven is None else proven.index
        opened = open_statement(data, kind, asked.trust, storage.name, index)
        predicate = opened.checkpoint
        judged = judge(opened, storage, asked)
        if problems := [*judged.problems, *check_listing(storage, predicate)]:
            raise most_telling(problems).error(storage.name)
        data = read_digested(storage, predicate.index, kind)
        self.index = index_file.parse(data, {file.name: file.data_size for file in predicate.files})
        self.tensors = index_file.TensorMap.of(self.index)
        self.opened, self.known = opened, judged.known
        return self._metadata()

    def _metadata(self) -> Metadata:
        """The index in torch's terms."""
        entries: dict[str, Any] = {value.fqn: BytesStorageMetadata() for value in self.index.values}
        for tensor in self.index.tensors:
            dtype = BY_NAME.get(tensor.dtype)
            if dtype is None:
                raise UsageError(
                    _FIT,
                    f"this torch has no dtype {tensor.dtype}",
                    tensor.fqn,
                    "load it with a newer torch",
                )
            for chunk in tensor.chunks:
                self.chunks[tensor.fqn, chunk.offsets] = (dtype, chunk)
            entries[tensor.fqn] = TensorStorageMetadata(
                TensorProperties(dtype=dtype),
                torch.Size(tensor.shape),
                [
                    ChunkStorageMetadata(torch.Size(chunk.offsets), torch.Size(chunk.sizes))
                    for chunk in tensor.chunks
                ],
            )
        return Metadata(entries)

    def set_up_storage_reader(
        self,
        metadata: Metadata,
        is_coordinator: bool,  # noqa: FBT001 - torch's signature
    ) -> None:
        """Everything is set up by then."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Send the digest of what this rank opened and its node's floor, and nothing else."""
        assert self.opened is not None
        floor = self.known.floor if self.known is not None else None
        seen = (-1, "") if floor is None else (floor.seq, floor.digest)
        return dataclasses.replace(plan, storage_data=(self.opened.digest, *seen))

    @refusing("ST-USAG-010")
    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """All ranks must have opened the same checkpoint, and none may have seen a newer one."""
        assert self.opened is not None
        for rank, plan in enumerate(plans):
            digest, seq, seen = plan.storage_data
            if digest != self.opened.digest:
                raise Problem(
                    code="ST-CKPT-130", what=f"rank {rank} opened another checkpoint than rank 0"
                ).error(self.storage.name)
            if self.known is None or seq < 0:
                continue
            heard = {f"rank {rank}'s node": Floor(seq=seq, digest=seen)}
            known = Known(heard=heard, excused=self.known.excused)
            for problem in doubts(self.opened, known):
                raise problem.error(self.storage.name)
        return plans

    @refusing("ST-USAG-010")
    def read_data(self, plan: LoadPlan, planner: LoadPlanner | Target) -> Future[None]:
        """Read, verify and place everything in the plan."""
        assert isinstance(planner, Target)
        jobs = self._jobs(plan, planner)
        try:
            with torch.no_grad(), Pool(self.threads) as pool:
                self._read_files(jobs, pool)
        except BaseException:
            with torch.no_grad():
                for job in jobs:
                    job.target.zero_()
            raise
        coded = {entry.fqn: entry.value for entry in self.index.values}
        for item in plan.items:
            if item.type is LoadItemType.BYTE_IO:
                name = item.storage_index.fqn
                value = codec.decode(coded[name], name, values.make)
                planner.set_value(item.dest_index.fqn, value)
        future: Future[None] = Future()
        future.set_result(None)
        return future

    def _jobs(self, plan: LoadPlan, planner: Target) -> list[Job]:
        jobs = []
        for item in plan.items:
            if item.type is LoadItemType.BYTE_IO:
                continue
            key = (item.storage_index.fqn, tuple(item.storage_index.offset or ()))
            dtype, chunk = self.chunks[key]
            target = planner.resolve_tensor(item).detach()
            if target.numel():
                jobs.append(
                    Job(chunk, dtype, tuple(item.storage_offsets), tuple(item.lengths), target)
                )
        jobs.sort(key=lambda job: (job.chunk.file, job.chunk.offset, job.starts))
        return jobs

    def _read_files(self, jobs: list[Job], pool: Pool) -> None:
        """Fill all targets; the next files are begun while the ones before are read."""
        assert self.opened is not None
        entries = {file.name: file for file in self.opened.checkpoint.files}
        begun: deque[Fetch] = deque()
        try:
            for name, group in groupby(jobs, key=lambda job: job.chunk.file):
                while len(begun) >= 2 * pool.width:
                    begun[0].wait()
                    begun.popleft().close()
                begun.append(Fetch(self._open_file(entries[name]), pool))
                for job in group:
                    job.run(begun[-1])
            for fetch in begun:
                fetch.wait()
        finally:
            # Nobody may write into a target after it was set to zero, nor read a closed file.
            for fetch in begun:
                fetch.stop()
            for fetch in begun:
                fetch.close()

    def _open_file(self, entry: RankFile) -> LeafReader | SealedReader:
        assert self.opened is not None
        predicate = self.opened.checkpoint
        params = predicate.tree.params
        inner = LeafReader.open(self.storage, entry, params, self.tensors.names)
        try:
            return self._decrypting(inner, entry, predicate)
        except BaseException:
            inner.file.close()
            raise

    def _decrypting(
        self, inner: LeafReader, entry: RankFile, predicate: CheckpointPredicate
    ) -> LeafReader | SealedReader:
        """The reader of a file: one that decrypts when the file is encrypted."""
        if entry.sealed is None:
            return inner
        key = open_key(entry.sealed, self.keys, entry.name, self.storage.name)
        cipher = FileCipher.of(
            key,
            run_id=predicate.run_id,
            save_id=predicate.save_id,
            file=entry.name,
            chunk=predicate.tree.leaf_size,
        )
        return SealedReader(inner, cipher, entry.sealed.size)
