# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The storage reader of a load: the statement judged, the index read, every byte verified.

The rules are those of `load`.
"""

import dataclasses
from collections import deque
from collections.abc import Sequence
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
from securetrain.artifacts.checkpoint.errors import refusing
from securetrain.artifacts.checkpoint.filling import Fetch, Job
from securetrain.artifacts.checkpoint.sealing import SealedReader
from securetrain.artifacts.checkpoint.tensors import BY_NAME
from securetrain.artifacts.lineage import logged
from securetrain.artifacts.lineage.judging import Asked, judge
from securetrain.artifacts.lineage.machine import Floor, Known, doubts
from securetrain.artifacts.statement.listing import check_listing, read_statement
from securetrain.artifacts.statement.reading import LeafReader, read_digested
from securetrain.artifacts.statement.statements import (
    CheckpointPredicate,
    Opened,
    RankFile,
    open_statement,
)
from securetrain.artifacts.tree import codec
from securetrain.artifacts.tree import index as index_file
from securetrain.artifacts.tree.encryption import DecryptionKey, FileCipher, open_key
from securetrain.artifacts.tree.layout import Kind
from securetrain.artifacts.tree.pool import Pool
from securetrain.artifacts.tree.problems import Problem, most_telling
from securetrain.artifacts.tree.storage import Storage
from securetrain.core.errors import SecureTrainError, UsageError

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
        proven = logged.prove(storage, data, kind, asked.trust, asked.policy, asked.now)
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
