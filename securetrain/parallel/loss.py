# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The loss of some tokens: a sum, so that it does not depend on how tokens were dealt out."""

from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import loss_parallel


def cross_entropy_sum(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Cross-entropy in nats, summed over all tokens, in float32.

    Args:
        logits: (B, S, V), possibly a DTensor cut along V.
        targets: (B, S) int64.
    """
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="sum")


def detach_loss(loss: torch.Tensor) -> torch.Tensor:
    """A loss as an ordinary tensor, without its history."""
    loss = loss.detach()
    return loss.full_tensor() if isinstance(loss, DTensor) else loss


def loss_parallel_context(*, tp: bool) -> AbstractContextManager[object]:
    """The context of cross-entropy and of its backward pass: with tensor parallelism logits are cut
    along the vocabulary and never gathered.
    """
    return loss_parallel() if tp else nullcontext()
