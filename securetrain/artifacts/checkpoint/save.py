# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Save a checkpoint: torch.distributed.checkpoint's collective save, in the native signed format.

Rules, in order:

1. what cannot be stored exactly (odd dtypes, subclasses, objects) is refused before anything is
   written; nothing is ever pickled into a file;
2. every rank writes one file into a directory with a temporary name and hashes it on the way; roots
   and places travel to the coordinator as plain data;
3. a rank speaks for its own file only, and the coordinator checks sizes and the whole index before
   it signs;
4. the statement is written last, then the directory is renamed to a name that was free. A process
   killed at any moment leaves a directory ``NAME.tmp-...`` that nothing reads.
"""

import dataclasses
import hashlib
import platform
import secrets
import shutil
import warnings
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from securetrain import __version__
from securetrain.artifacts import codec
from securetrain.artifacts import index as index_file
from securetrain.artifacts.checkpoint.errors import refusing, unwrap
from securetrain.artifacts.checkpoint.tensors import check_host, dtype_name, memory, to_host
from securetrain.artifacts.checkpoint.writing import RankWriter
from securetrain.artifacts.context import SaveContext
from securetrain.artifacts.layout import INDEX, LEAVES_SUFFIX, STATEMENT, Kind, rank_file
from securetrain.artifacts.problems import Problem
from securetrain.artifacts.statements import (
    CheckpointPredicate,
    IndexFile,
    RankFile,
    TreeInfo,
    digest_of,
    sign,
)
from securetrain.core.errors import UsageError
from securetrain.core.files import commit_dir, write_atomic
from securetrain.core.hashtree import TreeParams
from securetrain.identity.keys import PrivateKey

# The synthetic result by which a rank reports its file.
_FILE: Final = "securetrain:file"
_PLAN: Final = "ST-USAG-013"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SavedCheckpoint:
    """What was saved; the same on every rank."""

    path: Path
    digest: str
    """What identifies it (hex): a later checkpoint names this as its parent."""
    save_id: str


def save(
    state_dict: dict[str, Any],
    path: Path,
    *,
    key: PrivateKey | None,
    context: SaveContext,
    params: TreeParams | None = None,
    process_group: dist.ProcessGroup | None = None,
) -> SavedCheckpoint:
    """Save and sign a checkpoint. Every rank of the group calls it.

    Args:
        state_dict: tensors, DTensors, nested dicts and lists of them, Stateful objects, and plain
            values (int, float, str, bool, None, bytes, list, tuple, dict).
        path: the directory to make, on a file system that all ranks share; it must not exist.
        key: signs for the trust role ``checkpoint``; only the coordinator (rank 0) needs one.
        context: the lineage; the coordinator's is the one that is signed.
        params: the hash tree (default: BLAKE3 over leaves of 1 MiB).
        process_group: the ranks that take part (default: all; none needed in a single process).

    Raises:
        UsageError: ST-USAG-013 a value or tensor that the format cannot hold.
        IntegrityError: ST-CKPT-201 `path` exists, ST-CKPT-200 on I/O errors.
    """
    writer = _Writer(Path(path), key, context, params or TreeParams())
    try:
        with warnings.catch_warnings():
            # In a single process torch warns that it assumes a single process.
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            metadata = dcp_save(
                state_dict,
                storage_writer=writer,
                planner=_Planner(),
                process_group=process_group,
            )
    except CheckpointException as failure:
        raise unwrap(failure) from failure
    finally:
        writer.clean_up()
    digest, save_id = metadata.storage_data
    return SavedCheckpoint(path=Path(path), digest=digest, save_id=save_id)


class _Planner(DefaultSavePlanner):
    """torch's planner, with values in the typed codec instead of pickles."""

    def __init__(self) -> None:
        super().__init__()
        self.coded: dict[str, codec.Coded] = {}

    @refusing(_PLAN, "give every value a name of its own")
    def set_up_planner(
        self,
        state_dict: dict[str, Any],
        storage_meta: StorageMeta | None = None,
        is_coordinator: bool = False,  # noqa: FBT001, FBT002 - torch's signature
    ) -> None:
        """Flatten the state dict."""
        super().set_up_planner(state_dict, storage_meta, is_coordinator)

    @refusing(_PLAN)
    def create_local_plan(self) -> SavePlan:
        """Plan this rank's part, refusing what the format cannot hold."""
        check_host()
        plan = super().create_local_plan()
        for item in plan.items:
            name = item.index.fqn
            if name == _FILE:
                raise UsageError(_PLAN, "a name that securetrain keeps for itself", name)
            if item.type is WriteItemType.BYTE_IO:
                self.coded[name] = codec.encode(self.lookup_object(item.index), name)
            else:
                assert item.tensor_data is not None
                dtype_name(item.tensor_data.properties.dtype, name)
        # The mapping from flat to nested names is made again from the state dict that is loaded.
        return dataclasses.replace(plan, planner_data={})

    @refusing(_PLAN, "every rank must save the same tensors, each part once")
    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        """Decide which rank writes what."""
        plans, metadata = super().create_global_plan(all_plans)
        if not metadata.state_dict_metadata:
            raise UsageError(_PLAN, "the state dict is empty: there is nothing to save")
        return plans, metadata

    def transform_object(self, write_item: WriteItem, object: Any) -> Any:  # noqa: A002 - torch's
        """Tensors stay tensors; values never come this way."""
        if write_item.type is WriteItemType.BYTE_IO:
            raise UsageError("ST-USAG-010", "a value was about to be pickled", write_item.index.fqn)
        return object


class _Writer(StorageWriter):
    """Writes the native format."""

    def __init__(
        self, path: Path, key: PrivateKey | None, context: SaveContext, params: TreeParams
    ) -> None:
        self.path = path
        self.key = key
        self.context = context
        self.params = params
        self.save_id = ""
        self.coordinator = False
        self.world_size = 1

    @property
    def staging(self) -> Path:
        """Where this save is built."""
        return self.path.with_name(f"{self.path.name}.tmp-{self.save_id}")

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
        """Make the temporary directory and tell every rank its number and the save's id."""
        if self.key is None:
            raise UsageError(
                "ST-USAG-001", "the coordinator has no key to sign with", fix="give rank 0 a key"
            )
        if self.path.exists() or self.path.is_symlink():
            raise self._exists()
        self.world_size = len(plans)
        self.save_id = self.context.save_id or secrets.token_hex(16)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.staging.mkdir()
        return [
            dataclasses.replace(plan, storage_data=(self.save_id, rank))
            for rank, plan in enumerate(plans)
        ]

    @refusing(_PLAN)
    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this rank's file and its leaf table; report places, values and the root."""
        assert isinstance(planner, _Planner)
        save_id, rank = plan.storage_data
        if len(save_id) != 32 or not set(save_id) <= set("0123456789abcdef"):
            raise UsageError("ST-USAG-010", "the coordinator sent a save id that is not one")
        self.save_id = save_id
        results = []
        tensors = []
        for item in plan.items:
            if item.type is WriteItemType.BYTE_IO:
                results.append(WriteResult(item.index, 0, planner.coded[item.index.fqn]))
            else:
                tensors.append(item)
        if tensors:
            results += self._write_tensors(tensors, planner, rank_file(rank))
        future: Future[list[WriteResult]] = Future()
        future.set_result(results)
        return future

    def _write_tensors(
        self, items: list[WriteItem], planner: SavePlanner, name: str
    ) -> list[WriteResult]:
        results = []
        with RankWriter.create(self.staging / name, self.params) as out:
            for item in items:
                tensor = planner.resolve_data(item)
                assert isinstance(tensor, torch.Tensor)
                data = memory(to_host(tensor, item.index.fqn))
                assert item.tensor_data is not None
                chunk = item.tensor_data.chunk
                place = (out.write(data), len(data), tuple(chunk.offsets), tuple(chunk.sizes))
                results.append(WriteResult(item.index, len(data), place))
        tree = out.finish()
        write_atomic(self.staging / (name + LEAVES_SUFFIX), tree.leaves)
        report = (name, tree.size, tree.root.hex())
        results.append(WriteResult(MetadataIndex(_FILE), tree.size, report))
        return results

    @refusing("ST-USAG-010")
    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Write the index and the statement, and give the directory its name."""
        assert self.key is not None
        files = self._files(results)
        index = _index(metadata, results)
        data = index_file.encode(index)
        # What the other ranks reported is theirs to get wrong: read it as a verifier would.
        index_file.parse(data, {file.name: file.size for file in files})
        write_atomic(self.staging / INDEX, data)
        predicate = self._predicate(
            files, IndexFile(name=INDEX, size=len(data), sha256=hashlib.sha256(data).hexdigest())
        )
        write_atomic(self.staging / STATEMENT, sign(predicate, self.path.name, self.key))
        try:
            commit_dir(self.staging, self.path)
        except UsageError as error:
            if error.code == "ST-USAG-005":
                raise self._exists() from error
            raise
        # What is returned goes to every rank: send what they need and nothing else.
        metadata.state_dict_metadata = {}
        metadata.planner_data = None
        metadata.storage_data = (digest_of(predicate), self.save_id)

    def clean_up(self) -> None:
        """Remove what an interrupted save left; after a good one there is nothing."""
        if self.coordinator and self.save_id:
            shutil.rmtree(self.staging, ignore_errors=True)

    def _files(self, results: list[list[WriteResult]]) -> list[RankFile]:
        files = []
        for rank, reported in enumerate(results):
            for result in reported:
                if result.index.fqn != _FILE:
                    continue
                name, size, root = result.storage_data
                path = self.staging / rank_file(rank)
                if name != path.name or not path.exists() or path.stat().st_size != size:
                    raise Problem(
                        code="ST-CKPT-140",
                        what=f"the file of rank {rank} is not in the coordinator's directory; "
                        "all ranks need one shared file system",
                        file=rank_file(rank),
                    ).error(str(self.staging))
                files.append(RankFile(name=name, size=size, root=root, rank=rank))
        return files

    def _predicate(self, files: list[RankFile], index: IndexFile) -> CheckpointPredicate:
        said = self.context
        return CheckpointPredicate(
            run_id=said.run_id,
            step=said.step,
            seq=said.seq,
            save_id=self.save_id,
            created=said.created,
            world_size=self.world_size,
            tree=TreeInfo.of(self.params),
            files=files,
            index=index,
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
        )

    def _exists(self) -> Exception:
        return Problem(
            code=Kind.CHECKPOINT.code(201), what="already exists and is never overwritten"
        ).error(str(self.path))


def _index(metadata: Metadata, results: list[list[WriteResult]]) -> index_file.Index:
    """The index of what every rank reported."""
    chunks: dict[str, list[index_file.Chunk]] = {}
    values = []
    for rank, reported in enumerate(results):
        for result in reported:
            name = result.index.fqn
            if name == _FILE:
                continue
            entry = metadata.state_dict_metadata[name]
            if not isinstance(entry, TensorStorageMetadata):
                values.append(index_file.ValueEntry(fqn=name, value=result.storage_data))
                continue
            offset, length, offsets, sizes = result.storage_data
            if length:
                # A rank of an uneven mesh may hold an empty part, which needs no place.
                chunk = index_file.Chunk(
                    offsets=offsets, sizes=sizes, file=rank_file(rank), offset=offset, length=length
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
    return index_file.Index(
        version=index_file.VERSION, tensors=tuple(tensors), values=tuple(values)
    )
