# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The storage writer of a save: one file a rank, the index, the statement, the commit.

The rules are those of `save`. What a file looks like inside is a `Container`'s business: raw bytes
at multiples of 64 (ours), or a safetensors file.
"""

import dataclasses
import hashlib
import math
import platform
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from securetrain import __version__
from securetrain.artifacts.checkpoint.containers import (
    Container,
    FileWriter,
    InThisProcess,
    Native,
    Output,
    SealingWriter,
)
from securetrain.artifacts.checkpoint.reports import (
    FILE,
    Report,
    bonded,
    problems_of,
    refusing,
    reports_of,
    sealed_in,
    signatures_in,
)
from securetrain.artifacts.checkpoint.values import dtype_name, memory, to_host
from securetrain.artifacts.given import Key, open_key
from securetrain.artifacts.lineage import head
from securetrain.artifacts.statement import members
from securetrain.artifacts.statement.context import SaveContext, this_run
from securetrain.artifacts.statement.members import FileSigner
from securetrain.artifacts.statement.statements import (
    Bound,
    CheckpointPredicate,
    IndexFile,
    RankFile,
    TreeInfo,
    digest_of,
    sign,
)
from securetrain.artifacts.tree import codec
from securetrain.artifacts.tree import index as index_file
from securetrain.artifacts.tree.encryption import FileCipher, Recipient, new_key
from securetrain.artifacts.tree.layout import INDEX, LEAVES_SUFFIX, STATEMENT, Kind, Problem
from securetrain.artifacts.tree.storage import Staging, Storage
from securetrain.core.errors import UsageError
from securetrain.core.hashtree import CHECKPOINT_LEAF, HashAlgorithm, TreeParams
from securetrain.identity.keys import Signer

SMALLEST_LEAF: Final = 64 << 10
LEAVES_IN_A_PART: Final = 100
_PLAN: Final = "ST-USAG-013"


class Writer(StorageWriter):
    """Writes one checkpoint."""

    def __init__(
        self,
        *,
        storage: Storage,
        key: Key | None,
        signer: FileSigner | None,
        context: SaveContext,
        params: TreeParams | None,
        container: Container | None = None,
        output: Output | None = None,
        recipients: Sequence[Recipient] = (),
    ) -> None:
        self.storage = storage
        self.key_name = key if isinstance(key, Path | str) else None
        self.key = None if isinstance(key, Path | str) else key
        self.signer = signer
        self.context = context
        self.given = params
        self.params = params or TreeParams()
        self.container = container or Native()
        self.output = output or InThisProcess()
        self.recipients = recipients
        self.save_id = ""
        self.seq = 0
        self.signs_by_run = False
        self.coordinator = False
        self.world_size = 1
        self.names: list[str] = []
        self.predicate: CheckpointPredicate | None = None
        self._staging: Staging | None = None

    @property
    def staging(self) -> Staging:
        """The directory in which this save is built."""
        if self._staging is None:
            self._staging = self.storage.staging(self.save_id)
        return self._staging

    def reset(self, checkpoint_id: Any = None) -> None:
        """One writer, one save: there is nothing to reset."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        """Never chosen by torch from a path."""
        del checkpoint_id
        return False

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:  # noqa: ARG002, FBT001 - torch's signature
        """Learn the role."""
        self.coordinator = is_coordinator

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Nothing is storage-specific yet."""
        return plan

    @refusing(_PLAN)
    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Make the temporary directory and tell every rank its file, the save's id and tree."""
        if self.key_name is not None:
            self.key = open_key(self.key_name)
        if self.key is None:
            self.key, self.signs_by_run = self._key_of_run(), True
        self.world_size = len(plans)
        self.params = self.given or TreeParams(leaf_size=leaf_size(plans))
        self.save_id = self.context.save_id or secrets.token_hex(16)
        said = self.context
        self.seq = (
            head.next_number(self.storage, said.run_id, self.key) if said.seq is None else said.seq
        )
        self.names = self.container.names([_has_tensors(plan) for plan in plans])
        try:
            self.staging.begin()
        except FileExistsError as error:
            raise self._exists() from error
        tree = (str(self.params.algorithm), self.params.leaf_size)
        return [
            dataclasses.replace(
                plan,
                storage_data=(
                    *(self.save_id, rank, self.names[rank], self.world_size, self.signs_by_run),
                    *tree,
                ),
            )
            for rank, plan in enumerate(plans)
        ]

    @refusing(_PLAN)
    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this rank's file and its leaf table; report places, values and what it signs."""
        coded = self.coded(plan, planner)
        save_id, rank, name, self.world_size, self.signs_by_run, *tree = plan.storage_data
        self.params = _params(*tree)
        if len(save_id) != 32 or not set(save_id) <= set("0123456789abcdef"):
            raise UsageError("ST-USAG-010", "the coordinator sent a malformed save id")
        self.save_id = save_id
        if self.signs_by_run and self.signer is None:
            run = this_run()
            self.signer = None if run is None else run.signer
        results, tensors = [], []
        for item in plan.items:
            if item.type is not WriteItemType.BYTE_IO:
                tensors.append(item)
                continue
            results.append(WriteResult(item.index, 0, coded[item.index.fqn]))
        file = None
        if tensors:
            placed, file = self._write_tensors(tensors, planner, name, rank)
            results += placed
        if file is not None or self.signer is not None:
            report = self._report(rank, file)
            results.append(
                WriteResult(MetadataIndex(FILE), report.size, dataclasses.astuple(report))
            )
        future: Future[list[WriteResult]] = Future()
        future.set_result(results)
        return future

    def coded(self, plan: SavePlan, planner: SavePlanner) -> Mapping[str, codec.Coded]:  # noqa: ARG002 - SignedWriter's
        """The values of this rank, as `save.Planner` has encoded them."""
        return getattr(planner, "coded", {})

    def _key_of_run(self) -> Signer:
        """The run's own key, for a coordinator that was given none."""
        run = this_run()
        if run is None or run.checkpoint is None:
            raise UsageError(
                "ST-USAG-001",
                "the coordinator has no key to sign with",
                fix="give rank 0 a key, or start the script with securetrain run",
            )
        if self.context.run_id != run.run_id:
            raise UsageError(
                "ST-USAG-001",
                f"the launcher signs for run {run.run_id}, and this save is of run"
                f" {self.context.run_id}",
                "context.run_id",
                "save under artifacts.this_run().run_id, or give rank 0 a key of your own",
            )
        return run.checkpoint

    def _write_tensors(
        self, items: list[WriteItem], planner: SavePlanner, name: str, rank: int
    ) -> tuple[list[WriteResult], RankFile]:
        if not self.container.is_name(name):
            raise UsageError("ST-USAG-010", "the coordinator sent a malformed file name")
        header = self.container.header(items)
        alignment = 1 if self.recipients else self.container.alignment
        sealed = None
        with self.output.open(self.staging, name, self.params, alignment) as inner:
            out: FileWriter = self._sealing(inner, name) if self.recipients else inner
            if header:
                out.write(memoryview(header))
            results = []
            for item in items:
                tensor = planner.resolve_data(item)
                assert isinstance(tensor, torch.Tensor)
                data = memory(to_host(tensor, item.index.fqn))
                assert item.tensor_data is not None
                chunk = item.tensor_data.chunk
                place = (out.write(data), len(data), tuple(chunk.offsets), tuple(chunk.sizes))
                results.append(WriteResult(item.index, len(data), place))
            if isinstance(out, SealingWriter):
                sealed = out.close()
        tree = out.finish()
        self.staging.put(name + LEAVES_SUFFIX, tree.leaves)
        root = tree.root.hex()
        return results, RankFile(name=name, size=tree.size, root=root, rank=rank, sealed=sealed)

    def _sealing(self, inner: FileWriter, name: str) -> SealingWriter:
        """Encrypt what goes into a file, under a new key of its own."""
        if not isinstance(self.container, Native):
            raise UsageError(
                "ST-USAG-001",
                "safetensors cannot be encrypted: other readers would find no safetensors there",
                name,
                "save in the native format",
            )
        key, sealed = new_key(self.recipients)
        cipher = FileCipher.of(
            key,
            run_id=self.context.run_id,
            save_id=self.save_id,
            file=name,
            chunk=self.params.leaf_size,
        )
        return SealingWriter(inner, cipher, sealed)

    def _report(self, rank: int, file: RankFile | None) -> Report:
        message = members.rank_message(
            run_id=self.context.run_id,
            step=self.context.step,
            save_id=self.save_id,
            world_size=self.world_size,
            rank=rank,
            tree=TreeInfo.of(self.params),
            file=file,
            step_records=self.context.recorded,
        )
        return Report.of(file, self.signer, message)

    @refusing("ST-USAG-010")
    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Write the index and the statement, and give the directory its name."""
        assert self.key is not None
        reports = reports_of(results)
        files = self._files(reports)
        index = _index(metadata, results, {file.rank: file.name for file in files})
        data = index_file.encode(index)
        # What the other ranks reported is theirs to get wrong: read it as a verifier would.
        index_file.parse(data, {file.name: file.data_size for file in files})
        self.staging.put(INDEX, data)
        texts = sorted(self.container.documents(index).items())
        documents = [_small(name, text) for name, text in texts]
        for name, text in texts:
            self.staging.put(name, text)
        predicate = self._predicate(files, _small(INDEX, data), documents, reports)
        predicate = bonded(predicate, self.key, self.context)
        statement = sign(predicate, self.storage.base, self.key)
        try:
            self.staging.put(STATEMENT, statement)
            self.staging.commit()
        except FileExistsError as error:
            raise self._exists() from error
        self.predicate = predicate
        head.note(predicate.run_id, predicate.seq)
        # What is returned goes to every rank: send what they need and nothing else.
        metadata.state_dict_metadata = {}
        metadata.planner_data = None
        metadata.storage_data = (digest_of(predicate), self.save_id)

    def clean_up(self) -> None:
        """Remove what an interrupted save left; after a good one there is nothing."""
        if self.coordinator and self.save_id and self.predicate is None:
            self.staging.discard()

    def _files(self, reports: Mapping[int, Report]) -> list[RankFile]:
        files = []
        for rank, report in reports.items():
            if not report.name:
                continue
            if report.name != self.names[rank] or self.staging.size(report.name) != report.size:
                raise Problem(
                    code="ST-CKPT-140",
                    what=f"the file of rank {rank} is not in the coordinator's directory; "
                    "all ranks need one shared file system",
                    file=self.names[rank],
                ).error(self.staging.name)
            files.append(
                RankFile(
                    name=report.name,
                    size=report.size,
                    root=report.root,
                    rank=rank,
                    sealed=sealed_in(report, encrypted=bool(self.recipients)),
                )
            )
        return sorted(files, key=lambda file: file.name)

    def _predicate(
        self,
        files: list[RankFile],
        index: IndexFile,
        documents: list[IndexFile],
        reports: Mapping[int, Report],
    ) -> CheckpointPredicate:
        said = self.context
        predicate = CheckpointPredicate(
            run_id=said.run_id,
            name=said.signed_name,
            step=said.step,
            seq=self.seq,
            save_id=self.save_id,
            created=said.created,
            expires=said.expires,
            world_size=self.world_size,
            tree=TreeInfo.of(self.params),
            files=files,
            index=index,
            documents=documents,
            parents=list(said.parents),
            dataset=said.dataset,
            policy=said.policy,
            code=said.code,
            env={
                "python": platform.python_version(),
                "securetrain": __version__,
                "torch": str(torch.__version__),
                **said.env,
            },
            nodes=list(said.nodes),
            gradients=said.gradients,
            epoch=said.epoch,
            bound=Bound(step_records=said.recorded),
            **signatures_in(reports, self.world_size),
        )
        for problem in problems_of(predicate):
            raise problem.error(self.storage.name)
        return predicate

    def _exists(self) -> Exception:
        return Problem(
            code=Kind.CHECKPOINT.code(201), what="already exists and is never overwritten"
        ).error(self.storage.name)


def leaf_size(plans: Sequence[SavePlan]) -> int:
    """The leaves of a save: a hundredth of a tensor's part, of 64 KiB to 1 MiB.

    Who reads a fraction of a part verifies about one leaf too much. So four times as many ranks as
    have saved hash 4 % more than they use.
    """
    parts = [
        math.prod(item.tensor_data.chunk.sizes) * item.tensor_data.properties.dtype.itemsize
        for plan in plans
        for item in plan.items
        if item.tensor_data is not None
    ]
    wanted = sum(parts) // max(1, len(parts)) // LEAVES_IN_A_PART
    fitting = 1 << max(0, wanted.bit_length() - 1)
    return min(max(fitting, SMALLEST_LEAF), CHECKPOINT_LEAF)


def _params(algorithm: str, leaf: int) -> TreeParams:
    """The tree that the coordinator has chosen."""
    try:
        return TreeParams(algorithm=HashAlgorithm(algorithm), leaf_size=leaf)
    except ValueError as error:
        raise UsageError("ST-USAG-010", "the coordinator sent malformed tree parameters") from error


def _has_tensors(plan: SavePlan) -> bool:
    return any(item.type is not WriteItemType.BYTE_IO for item in plan.items)


def _small(name: str, data: bytes) -> IndexFile:
    return IndexFile(name=name, size=len(data), sha256=hashlib.sha256(data).hexdigest())


def _index(
    metadata: Metadata, results: list[list[WriteResult]], names: Mapping[int, str]
) -> index_file.Index:
    """The index of what every rank reported."""
    chunks: dict[str, list[index_file.Chunk]] = {}
    values = []
    for rank, reported in enumerate(results):
        for result in reported:
            name = result.index.fqn
            if name == FILE:
                continue
            entry = metadata.state_dict_metadata[name]
            if not isinstance(entry, TensorStorageMetadata):
                values.append(index_file.ValueEntry(fqn=name, value=result.storage_data))
                continue
            offset, length, offsets, sizes = result.storage_data
            if length:
                # A rank of an uneven mesh may hold an empty part, which needs no place.
                chunk = index_file.Chunk(
                    offsets=offsets, sizes=sizes, file=names[rank], offset=offset, length=length
                )
                chunks.setdefault(name, []).append(chunk)
    tensors = [
        index_file.TensorEntry(
            fqn=name,
            dtype=dtype_name(entry.properties.dtype, name),
            shape=tuple(entry.size),
            chunks=tuple(sorted(chunks.get(name, []), key=lambda chunk: chunk.offsets)),
        )
        for name, entry in sorted(metadata.state_dict_metadata.items())
        if isinstance(entry, TensorStorageMetadata)
    ]
    values.sort(key=lambda value: value.fqn)
    return index_file.Index.of(tensors, values)
