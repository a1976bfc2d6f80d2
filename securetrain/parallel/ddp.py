# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Replicate the model: DistributedDataParallel, and how its gradients travel.

DDP *averages* gradients over its ranks, and a communication hook (the guard's, or one that
compresses) is expected to do the same. The loss is a sum divided by the tokens of all ranks, so it
is multiplied by the number of ranks before the backward pass, and the average becomes the sum that
is wanted.

Only the hooks below are ever registered: a job names one, it cannot bring a function. PowerSGD
(Vogels et al. 2019, arXiv:1905.13727) sends factors of rank `RANK` and adds what they lack to the
next step's gradient. That memory is different on every rank and in no checkpoint, so a job with it
does not resume (train/composition.py).
"""

from typing import Final

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from securetrain.parallel.mesh import Mesh
from securetrain.parallel.plan import Compression

RANK: Final = 4
"""The rank of PowerSGD's factors."""
WHOLE_STEPS: Final = 100
"""Steps before PowerSGD begins: early gradients bear it badly."""


def apply_ddp(
    model: nn.Module,
    mesh: Mesh,
    device: torch.device,
    compression: Compression = Compression.NONE,
) -> DistributedDataParallel:
    """Wrap `model`; every rank starts with rank 0's weights."""
    wrapped = DistributedDataParallel(
        model,
        device_ids=[device.index] if device.type == "cuda" else None,
        process_group=mesh.dp_group,
        gradient_as_bucket_view=True,
    )
    _compress(wrapped, mesh, compression)
    return wrapped


def _compress(model: DistributedDataParallel, mesh: Mesh, compression: Compression) -> None:
    match compression:
        case Compression.NONE:
            return
        case Compression.FP16:
            model.register_comm_hook(mesh.dp_group, default_hooks.fp16_compress_hook)
        case Compression.BF16:
            model.register_comm_hook(mesh.dp_group, default_hooks.bf16_compress_hook)
        case Compression.POWERSGD:
            state = powerSGD_hook.PowerSGDState(
                mesh.dp_group, matrix_approximation_rank=RANK, start_powerSGD_iter=WHOLE_STEPS
            )
            model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        case _:
            raise ValueError(f"unknown compression {compression!r}")
