# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Replicate the model: DistributedDataParallel.

DDP *averages* gradients over its ranks, and a communication hook (the guard's) is expected to do
the same. The loss is a sum divided by the tokens of all ranks, so it is multiplied by the number of
ranks before the backward pass, and the average becomes the sum that is wanted.
"""

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from securetrain.parallel.mesh import Mesh


def apply_ddp(model: nn.Module, mesh: Mesh, device: torch.device) -> DistributedDataParallel:
    """Wrap `model`; every rank starts with rank 0's weights."""
    return DistributedDataParallel(
        model,
        device_ids=[device.index] if device.type == "cuda" else None,
        process_group=mesh.dp_group,
        broadcast_buffers=False,
        gradient_as_bucket_view=True,
    )
