# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Make a model parallel: a fixed order, one module for each step.

The order is pipeline split, tensor and sequence parallel, expert parallel, context parallel,
activation checkpointing, compile, and last the data-parallel wrapper, which sees the final
parameters. Present today: the data-parallel wrappers. Each step returns what the next one takes.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import nn

from securetrain.parallel.ddp import apply_ddp
from securetrain.parallel.fsdp import apply_fsdp
from securetrain.parallel.mesh import Mesh
from securetrain.parallel.plan import Plan, Precision


class DataParallelism(StrEnum):
    """Which wrapper the degrees ask for."""

    NONE = "none"
    DDP = "ddp"
    FSDP = "fsdp"
    HSDP = "hsdp"


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelModel:
    """A model that is ready to train."""

    module: nn.Module
    """What to call and to give to the guard."""
    kind: DataParallelism
    loss_scale: float
    """Multiply the loss by this before backward, so that reduced gradients are sums."""
    device: torch.device
    precision: Precision

    def autocast(self) -> AbstractContextManager[object]:
        """The context of the forward pass: FSDP casts by itself, the others by autocast."""
        sharded = self.kind in {DataParallelism.FSDP, DataParallelism.HSDP}
        if self.precision is Precision.FP32 or sharded:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)


def kind_of(mesh: Mesh | None) -> DataParallelism:
    """The wrapper for a mesh; None is a single process without groups."""
    if mesh is None or mesh.degrees.dp == 1:
        return DataParallelism.NONE
    if mesh.degrees.dp_shard == 1:
        return DataParallelism.DDP
    return DataParallelism.FSDP if mesh.degrees.dp_replicate == 1 else DataParallelism.HSDP


def parallelize(
    model: nn.Module, mesh: Mesh | None, plan: Plan, device: torch.device
) -> ParallelModel:
    """Wrap `model` (already on `device`) for `mesh`. The guard attaches to the result."""
    kind = kind_of(mesh)
    module, loss_scale = model, 1.0
    match kind:
        case DataParallelism.NONE:
            pass
        case DataParallelism.DDP:
            assert mesh is not None
            module, loss_scale = apply_ddp(model, mesh, device), float(mesh.degrees.dp)
        case DataParallelism.FSDP | DataParallelism.HSDP:
            assert mesh is not None
            apply_fsdp(model, mesh, plan)
        case _:
            raise ValueError(f"unknown kind {kind!r}")
    return ParallelModel(
        module=module, kind=kind, loss_scale=loss_scale, device=device, precision=plan.precision
    )
