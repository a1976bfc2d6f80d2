# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Save as a directory of safetensors files, signed like every other checkpoint.

Tensors are whole in these files, so DTensors are gathered: one at a time, each kept by the rank
that will write it (the one that has least so far). Plain values, for which safetensors has no
place, go into our index. `load` reads the result as it reads any checkpoint; other people's readers
see ``model-00001-of-0000N.safetensors`` and ``model.safetensors.index.json``.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from securetrain.artifacts.checkpoint.containers import Safetensors
from securetrain.artifacts.checkpoint.save import SavedCheckpoint, run_save
from securetrain.artifacts.checkpoint.writer import Writer
from securetrain.artifacts.given import Key, checked
from securetrain.artifacts.statement.context import SaveContext
from securetrain.artifacts.statement.members import FileSigner
from securetrain.artifacts.tree.storage import Place, shown, storage_of
from securetrain.core.hashtree import TreeParams


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
