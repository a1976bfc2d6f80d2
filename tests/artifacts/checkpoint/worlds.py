# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of one rank, as securetrain and as torch saves them."""

import warnings
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from securetrain.artifacts import SaveContext
from securetrain.artifacts.scan.safe_globals import DTYPE_NAMES
from securetrain.core.hashtree import TreeParams

SMALL: Final = TreeParams(leaf_size=1024)
DATA: Final = "rank-00000.bin"

# Every global that `save` and `load` send between ranks inside pickles, through the object
# collectives of torch.distributed.checkpoint: a worker's allow-list needs these and no others.
PLAN_GLOBALS: Final = (
    "torch.Size",
    "torch.distributed.checkpoint.metadata.ChunkStorageMetadata",
    "torch.distributed.checkpoint.metadata.Metadata",
    "torch.distributed.checkpoint.metadata.MetadataIndex",
    "torch.distributed.checkpoint.metadata.TensorProperties",
    "torch.distributed.checkpoint.metadata._MEM_FORMAT_ENCODING",
    "torch.distributed.checkpoint.planner.LoadPlan",
    "torch.distributed.checkpoint.planner.SavePlan",
    "torch.distributed.checkpoint.planner.TensorWriteData",
    "torch.distributed.checkpoint.planner.WriteItem",
    "torch.distributed.checkpoint.planner.WriteItemType",
    "torch.distributed.checkpoint.storage.WriteResult",
    "torch.serialization._get_layout",
)
"""Plans and results of a save or load that succeeds, but for the dtypes."""

DTYPE_GLOBALS: Final = tuple(sorted(DTYPE_NAMES))
"""Dtypes are pickled by name; these are the ones that the format holds."""

ERROR_GLOBALS: Final = (
    "securetrain.core.errors.IntegrityError",
    "securetrain.core.errors.UsageError",
    "torch.distributed.checkpoint.api.CheckpointException",
    "traceback.FrameSummary",
    "traceback.StackSummary",
)
"""What a refusal of one rank brings to the others."""

DCP_GLOBALS: Final = (*PLAN_GLOBALS, *DTYPE_GLOBALS, *ERROR_GLOBALS)
"""All of them, as 'module.name'."""


def context_of(now: datetime, step: int = 1, *, run_id: str = "r", **said: Any) -> SaveContext:
    return SaveContext(run_id=run_id, step=step, created=now, **said)


def stock_save(content: dict[str, Any], root: Path) -> Path:
    """Save as torch does; its one data file."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp_save(content, checkpoint_id=root, no_dist=True)
    return next(root.glob("*.distcp"))


def stock_load(target: dict[str, Any], root: Path) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp_load(target, checkpoint_id=root, no_dist=True)
    return target


def flip(path: Path, offset: int, bit: int = 4) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= bit
    path.write_bytes(data)


def assert_same(a: Any, b: Any, path: str = "") -> None:
    """Equal bit by bit, with equal types all the way down."""
    assert type(a) is type(b), path
    if isinstance(a, torch.Tensor):
        assert (a.layout, a.dtype, a.shape) == (b.layout, b.dtype, b.shape), path
        if a.layout is torch.sparse_coo:
            assert a.is_coalesced() == b.is_coalesced(), path
            assert_same([a._indices(), a._values()], [b._indices(), b._values()], path)
        else:
            assert torch.equal(bits(a), bits(b)), path
    elif isinstance(a, np.ndarray | np.generic):
        assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes()), path
    elif isinstance(a, dict):
        assert a.keys() == b.keys(), path
        for key in a:
            assert_same(a[key], b[key], f"{path}.{key}")
    elif isinstance(a, list | tuple):
        for n, (x, y) in enumerate(zip(a, b, strict=True)):
            assert_same(x, y, f"{path}[{n}]")
    else:
        assert a == b, path


def bits(tensor: torch.Tensor) -> torch.Tensor:
    dense = tensor.to_dense().resolve_conj().contiguous().reshape(-1)
    return dense.view(torch.uint8)
