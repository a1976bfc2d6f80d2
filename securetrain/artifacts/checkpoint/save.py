# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Save a checkpoint: torch.distributed.checkpoint's collective save, in the native signed format.

Rules, in order:

1. what cannot be stored exactly (odd dtypes, subclasses, objects) is refused before anything is
   written; nothing is ever pickled into a file;
2. every rank writes one file below a temporary name, hashes it on the way and, when it has a key,
   signs what it wrote; roots, places and signatures travel to the coordinator as plain data;
3. a rank speaks for its own file only, and the coordinator checks sizes, signatures and the whole
   index before it signs;
4. the statement is written last, then the directory is renamed to a name that was free. A process
   killed at any moment leaves a directory ``NAME.tmp-...`` that nothing reads.

Save as a directory of safetensors files, signed like every other checkpoint.

Tensors are whole in these files, so DTensors are gathered: one at a time, each kept by the rank
that will write it (the one that has least so far). Plain values, for which safetensors has no
place, go into our index. `load` reads the result as it reads any checkpoint; other people's readers
see ``model-00001-of-0000N.safetensors`` and ``model.safetensors.index.json``.
"""

import dataclasses
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan, WriteItem, WriteItemType
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save
from torch.distributed.tensor import DTensor

from securetrain.artifacts.checkpoint import values
from securetrain.artifacts.checkpoint.containers import Safetensors
from securetrain.artifacts.checkpoint.reports import FILE, refusing, unwrap
from securetrain.artifacts.checkpoint.values import check_host, dtype_name
from securetrain.artifacts.checkpoint.writer import Writer
from securetrain.artifacts.given import Key, checked
from securetrain.artifacts.statement.context import SaveContext
from securetrain.artifacts.statement.members import FileSigner
from securetrain.artifacts.tree import codec
from securetrain.artifacts.tree.encryption import Recipient
from securetrain.artifacts.tree.storage import Place, shown, storage_of
from securetrain.core.errors import UsageError
from securetrain.core.hashtree import TreeParams

_PLAN: Final = "ST-USAG-013"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SavedCheckpoint:
    """A saved checkpoint; the same on every rank."""

    path: Path | str
    digest: str
    """What identifies it (hex): a later checkpoint names this as its parent."""
    save_id: str


@checked
def save(
    state_dict: dict[str, Any],
    path: Place,
    *,
    key: Key | None = None,
    context: SaveContext | None = None,
    params: TreeParams | None = None,
    process_group: dist.ProcessGroup | None = None,
    signer: FileSigner | None = None,
    recipients: Sequence[Recipient] = (),
) -> SavedCheckpoint:
    """Save and sign a checkpoint. Every rank of the group calls it.

    Args:
        state_dict: tensors, DTensors, nested dicts and lists of them, Stateful objects, and plain
            values (int, float, str, bool, None, bytes, list, tuple, dict).
        path: the directory to make, on a file system that all ranks share, or a URL of an object
            store; it must not exist.
        key: signs for the trust role ``checkpoint``: a signer, or its name as ``--key`` takes it,
            which rank 0 opens; only rank 0 needs one, and none under ``securetrain run``: there the
            launcher signs, and every rank its file.
        context: the lineage; the coordinator's is the one that is signed. By default the run of
            ``securetrain run``, and the state's own ``step``.
        params: the hash tree; the coordinator's counts (default: BLAKE3 over leaves of 64 KiB to
            1 MiB, by the size of the tensors' parts).
        process_group: the ranks that take part (default: all; none needed in a single process).
        signer: this rank's own key, with which it signs what it wrote; every rank or none.
        recipients: the keys that open the tensors, the same on all ranks; none leaves them in the
            clear.

    Raises:
        UsageError: ST-USAG-013 a value or tensor that the format cannot hold; ST-USAG-001 or 002
            an argument that is not what it may be.
        IntegrityError: ST-CKPT-201 `path` exists, ST-CKPT-200 on I/O errors.

    >>> about = SaveContext(run_id="toy", step=14, created=now)
    >>> save({"weight": torch.ones(2)}, "step-14", key="key.pem", context=about).path
    PosixPath('step-14')
    """
    writer = Writer(
        storage=storage_of(path),
        key=key,
        signer=signer,
        context=context or SaveContext.of(state_dict),
        params=params,
        recipients=recipients,
    )
    return run_save(state_dict, writer, process_group, shown(path))


def run_save(
    state_dict: dict[str, Any],
    writer: Writer,
    process_group: dist.ProcessGroup | None,
    place: Path | str,
) -> SavedCheckpoint:
    """The collective save with a writer; what `save` and its variants share."""
    try:
        with _quiet():
            metadata = dcp_save(
                state_dict,
                storage_writer=writer,
                planner=Planner(),
                process_group=process_group,
            )
    except CheckpointException as failure:
        raise unwrap(failure) from failure
    finally:
        writer.clean_up()
    digest, save_id = metadata.storage_data
    return SavedCheckpoint(path=place, digest=digest, save_id=save_id)


@contextmanager
def _quiet() -> Iterator[None]:
    """In a single process torch warns that it assumes a single process."""
    if dist.is_initialized():
        yield
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def check_plan(plan: SavePlan) -> None:
    """Refuse a rank's plan that the format cannot hold.

    Raises:
        UsageError: ST-USAG-013, naming the value.
    """
    check_host()
    for item in plan.items:
        name = item.index.fqn
        if name == FILE:
            raise UsageError(
                _PLAN, "securetrain keeps this name for itself", name, "rename the value"
            )
        if item.type is not WriteItemType.BYTE_IO:
            assert item.tensor_data is not None
            dtype_name(item.tensor_data.properties.dtype, name)


def encode_values(plan: SavePlan, planner: DefaultSavePlanner) -> dict[str, codec.Coded]:
    """The values of a rank's plan in the typed codec.

    Raises:
        UsageError: ST-USAG-013 for one that has no place in the format.
    """
    return {
        item.index.fqn: codec.encode(
            planner.lookup_object(item.index), item.index.fqn, values.describe
        )
        for item in plan.items
        if item.type is WriteItemType.BYTE_IO
    }


class Planner(DefaultSavePlanner):
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
        for name, value in list(self.state_dict.items()):
            found = values.split(value, name)
            if found is None:
                continue
            self.state_dict[name], tensors = found
            if taken := tensors.keys() & self.state_dict.keys():
                raise UsageError(_PLAN, "two values need this name", min(taken), "rename the value")
            self.state_dict.update(tensors)

    @refusing(_PLAN)
    def create_local_plan(self) -> SavePlan:
        """Plan this rank's part, refusing what the format cannot hold."""
        plan = super().create_local_plan()
        check_plan(plan)
        self.coded.update(encode_values(plan, self))
        # The mapping from flat to nested names is made again from the state dict that is loaded.
        return dataclasses.replace(plan, planner_data={})

    @refusing(_PLAN, "every rank must save the same tensors, each part once")
    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        """Decide which rank writes what."""
        plans, metadata = super().create_global_plan(all_plans)
        if not metadata.state_dict_metadata:
            raise UsageError(
                _PLAN, "the state dict is empty", fix="put what is to be saved into it"
            )
        return plans, metadata

    def transform_object(self, write_item: WriteItem, object: Any) -> Any:  # noqa: A002 - torch's
        """Tensors stay tensors; values never come this way."""
        if write_item.type is WriteItemType.BYTE_IO:
            raise UsageError("ST-USAG-010", "a value was about to be pickled", write_item.index.fqn)
        return object


@checked
def save_safetensors(
    state_dict: dict[str, Any],
    path: Place,
    *,
    key: Key | None = None,
    context: SaveContext,
    params: TreeParams | None = None,
    process_group: dist.ProcessGroup | None = None,
    signer: FileSigner | None = None,
) -> SavedCheckpoint:
    """Save and sign a checkpoint of safetensors files. Every rank of the group calls it.

    Args:
        state_dict: tensors and DTensors under names, in nested dicts too; all ranks name the same.
        path: see `save`.
        key: see `save`.
        context: see `save`.
        params: see `save`.
        process_group: see `save`.
        signer: see `save`.

    Raises:
        UsageError: ST-USAG-013 a tensor for which safetensors has no place.
        IntegrityError: see `save`.
    """
    writer = Writer(
        storage=storage_of(path),
        key=key,
        signer=signer,
        context=context,
        params=params,
        container=Safetensors(),
    )
    rank = dist.get_rank(process_group) if dist.is_initialized() else 0
    world = dist.get_world_size(process_group) if dist.is_initialized() else 1
    with torch.no_grad():
        mine = _gather(state_dict, rank, [0] * world)
    return run_save(mine, writer, process_group, shown(path))


def _gather(state: dict[str, Any], rank: int, loads: list[int]) -> dict[str, Any]:
    """Gather what this rank writes: its whole tensors, and all values. Collective over DTensors."""
    mine: dict[str, Any] = {}
    for name, value in state.items():
        if isinstance(value, dict):
            if inner := _gather(value, rank, loads):
                mine[name] = inner
        elif isinstance(value, Tensor):
            owner = loads.index(min(loads))
            loads[owner] += value.numel() * value.element_size()
            whole = value.full_tensor() if isinstance(value, DTensor) else value
            if owner == rank:
                mine[name] = whole.detach().cpu()
        else:
            mine[name] = value
    return mine
