# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Load a checkpoint: torch.distributed.checkpoint's collective load, every byte verified first.

Rules, in order:

1. each rank verifies for itself: statement, everything that is asked of it (`judging`), listing,
   index. Torch's own index is never read and there is nothing to fall back to;
2. all ranks must have opened the same checkpoint (one digest), and each reads by its own plan; when
   the newest one is asked for, each brings what its node has seen, and the one that has seen most
   decides;
3. bytes are read once, into the target's own memory or a private buffer, hashed there, and only
   then used; the bytes that are not needed are not read;
4. values are set after all tensors of this rank have verified;
5. on any failure every target of this rank is set to zero and the error is raised on all ranks.
"""

import dataclasses
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from itertools import groupby
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint._traverse import set_element
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import (
    DefaultLoadPlanner,
    create_default_local_load_plan,
)
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from securetrain.artifacts.checkpoint.errors import refusing, unwrap
from securetrain.artifacts.checkpoint.filling import Fetch, Job
from securetrain.artifacts.checkpoint.sealing import SealedReader
from securetrain.artifacts.checkpoint.tensors import BY_NAME, check_host
from securetrain.artifacts.lineage import logged
from securetrain.artifacts.lineage.freshness import Freshness, remember
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
from securetrain.artifacts.tree.problems import Problem, most_telling
from securetrain.artifacts.tree.storage import Place, Storage, storage_of
from securetrain.core.errors import SecureTrainError, UsageError
from securetrain.identity.trust import TrustRoot
from securetrain.policy.schema import Policy

THREADS: Final = 2
_FIT: Final = "ST-USAG-012"


def load(
    state_dict: dict[str, Any],
    path: Place,
    *,
    trust: TrustRoot,
    policy: Policy | None,
    now: datetime,
    process_group: dist.ProcessGroup | None = None,
    strict: bool = True,
    threads: int = THREADS,
    freshness: Freshness | None = None,
    keys: Sequence[DecryptionKey] = (),
) -> CheckpointPredicate:
    """Load a signed checkpoint into `state_dict`, in place. Every rank of the group calls it.

    The mesh may be another one than it was saved on. After an error the targets are zero or hold
    verified bytes, never unverified ones; do not train on them.

    Args:
        state_dict: what to fill, as for torch.distributed.checkpoint.load.
        path: the checkpoint's directory: a path, or a URL of an object store.
        trust: the keys that may sign checkpoints.
        policy: what is asked of it; None asks for nothing but integrity and signature.
        now: the time of the check.
        process_group: the ranks that take part (default: all; none needed in a single process).
        strict: whether a name in `state_dict` that the checkpoint lacks is an error.
        threads: threads of this process that read and hash.
        freshness: what this node knows of the run; given, the checkpoint must be the newest one.
        keys: what decrypts an encrypted checkpoint; one of them must be a recipient's.

    Returns:
        What the verified statement says.

    Raises:
        IntegrityError: ST-CKPT-100 to 200, naming the file, the bytes and the tensors.
        UsageError: ST-USAG-012 when the state dict does not fit the checkpoint.
    """
    asked = Asked(trust=trust, policy=policy, now=now, known=freshness, nodes=False)
    reader = _Reader(storage_of(path), asked, threads, keys)
    try:
        with warnings.catch_warnings():
            # In a single process torch warns that it assumes a single process.
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            dcp_load(
                state_dict,
                storage_reader=reader,
                planner=_Planner(reader, strict=strict),
                process_group=process_group,
            )
    except CheckpointException as failure:
        raise unwrap(failure) from failure
    assert reader.opened is not None
    if freshness is not None and freshness.floors is not None:
        remember(reader.opened, freshness.floors)
    return reader.opened.checkpoint


class _Planner(DefaultLoadPlanner):
    """torch's planner, with values from the typed codec and plans that stay on their rank."""

    def __init__(self, reader: "_Reader", *, strict: bool) -> None:
        super().__init__(allow_partial_load=not strict)
        self.reader = reader
        self.local = LoadPlan([])

    @refusing(_FIT)
    def set_up_planner(
        self,
        state_dict: dict[str, Any],
        metadata: Metadata | None = None,
        is_coordinator: bool = False,  # noqa: FBT001, FBT002 - torch's signature
    ) -> None:
        """Raise what opening the checkpoint found, which torch would have swallowed."""
        check_host()
        if self.reader.error is not None:
            raise self.reader.error
        super().set_up_planner(state_dict, metadata, is_coordinator)

    @refusing(_FIT)
    def create_local_plan(self) -> LoadPlan:
        """Plan this rank's reads."""
        metadata = self.metadata
        assert metadata is not None
        for name, value in self.state_dict.items():
            entry = metadata.state_dict_metadata.get(name)
            is_value = isinstance(entry, BytesStorageMetadata)
            if entry is not None and is_value is isinstance(value, Tensor):
                saved = "a value" if is_value else "a tensor"
                raise UsageError(_FIT, f"{name} was saved as {saved}", name)
        self.local = create_default_local_load_plan(
            self.state_dict, metadata, not self.allow_partial_load
        )
        return LoadPlan([])

    def finish_plan(self, new_plan: LoadPlan) -> LoadPlan:
        """Read by the plan that this rank made, whatever came back."""
        del new_plan
        return self.local

    def load_bytes(self, read_item: ReadItem, value: Any) -> None:
        """Never called: this is where torch would unpickle."""
        del value
        raise UsageError(
            "ST-USAG-010", "a value was about to be unpickled", read_item.dest_index.fqn
        )

    def set_value(self, name: str, value: Any) -> None:
        """Put a decoded value where the state dict has it."""
        set_element(self.original_state_dict, self.mappings[name], value)


class _Reader(StorageReader):
    """Reads the native format."""

    def __init__(
        self, storage: Storage, asked: Asked, threads: int, keys: Sequence[DecryptionKey]
    ) -> None:
        self.storage = storage
        self.asked = asked
        self.threads = threads
        self.keys = keys
        self.known: Known | None = None
        self.error: SecureTrainError | None = None
        self.opened: Opened | None = None
        self.index = index_file.Index(version=index_file.VERSION, tensors=(), values=())
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
        try:
            return self._open()
        except SecureTrainError as error:
            self.error = error
            return Metadata({})

    @refusing("ST-USAG-010")
    def _open(self) -> Metadata:
        kind, storage = Kind.CHECKPOINT, self.storage
        asked, data = self.asked, read_statement(storage, kind)
        proven = logged.prove(storage, data, kind, asked.trust, asked.policy, asked.now)
        index = None if proven is None else proven.index
        opened = open_statement(data, kind, asked.trust, storage.name, index)
        predicate = opened.checkpoint
        judged = judge(opened, storage, self.asked)
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
    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read, verify and place everything in the plan."""
        assert isinstance(planner, _Planner)
        jobs = self._jobs(plan, planner)
        try:
            with torch.no_grad(), ThreadPoolExecutor(self.threads) as pool:
                for name, group in groupby(jobs, key=lambda job: job.chunk.file):
                    self._read_file(name, list(group), pool)
        except BaseException:
            with torch.no_grad():
                for job in jobs:
                    job.target.zero_()
            raise
        coded = {entry.fqn: entry.value for entry in self.index.values}
        for item in plan.items:
            if item.type is LoadItemType.BYTE_IO:
                name = item.storage_index.fqn
                planner.set_value(item.dest_index.fqn, codec.decode(coded[name], name))
        future: Future[None] = Future()
        future.set_result(None)
        return future

    def _jobs(self, plan: LoadPlan, planner: "_Planner") -> list[Job]:
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

    def _read_file(self, name: str, jobs: list[Job], pool: ThreadPoolExecutor) -> None:
        assert self.opened is not None
        predicate = self.opened.checkpoint
        entry = next(file for file in predicate.files if file.name == name)
        params = predicate.tree.params
        inner = LeafReader.open(self.storage, entry, params, self.tensors.names)
        try:
            reader = self._decrypting(inner, entry, predicate)
        except BaseException:
            inner.file.close()
            raise
        fetch = Fetch(reader, pool)
        try:
            for job in jobs:
                job.run(fetch)
            fetch.wait()
        finally:
            # Nobody may write into a target after it was set to zero, nor read a closed file.
            fetch.stop()
            reader.file.close()

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
