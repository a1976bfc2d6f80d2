# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Every global that `save` and `load` send between ranks inside pickles.

torch.distributed.checkpoint exchanges plans and results through object collectives. A worker whose
unpickler is an allow-list needs exactly these names, no others; the tests trace real saves and
loads, failures included, and hold the list to what they see. The load path sends no plan at all.
"""

from typing import Final

from securetrain.artifacts.scan.safe_globals import DTYPE_NAMES

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
