# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The weights that training starts from.

Every parameter starts from (seed, its own name) and from nothing else, so that any mesh, any stage,
any order and any number of processes begin with the same weights, and nothing has to be sent.
"""

import hashlib
import math
from typing import Final

import torch
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor

from securetrain.train.models.shape import ModelShape

EMBEDDING_STD: Final = 0.5


@torch.no_grad()
def init_weights(model: nn.Module, seed: int, shape: ModelShape) -> None:
    """Set every parameter from (seed, name), before or after the model was sharded.

    Norms start at one, the embedding at a standard deviation of 0.5, matrices at 1/sqrt(inputs);
    those that write into the residual stream are smaller by sqrt(2 * layers) (Radford et al. 2019).
    """
    for name, parameter in model.named_parameters():
        value = _initial(name, parameter.shape, seed, shape).to(parameter.dtype)
        if isinstance(parameter, DTensor):
            # Every rank makes the same tensor and keeps its own part: no bytes travel.
            sharded = distribute_tensor(
                value.to(parameter.device),
                parameter.device_mesh,
                parameter.placements,
                src_data_rank=None,
            )
            parameter.copy_(sharded)
        else:
            parameter.copy_(value)


def _initial(name: str, size: torch.Size, seed: int, shape: ModelShape) -> torch.Tensor:
    if "norm" in name:
        return torch.ones(size)
    generator = torch.Generator().manual_seed(seed_of(seed, name))
    value = torch.randn(size, generator=generator)
    if name == "tok_embeddings.weight":
        # A tied one is the head as well, whose logits would be far too large.
        return value * (1 / math.sqrt(shape.dim) if shape.tied else EMBEDDING_STD)
    std = 1 / math.sqrt(size[-1])
    if name.endswith(("wo.weight", "w2.weight")):
        std /= math.sqrt(2 * shape.layers)
    return value * std


def seed_of(seed: int, name: str) -> int:
    """A 56-bit seed of its own for each name."""
    digest = hashlib.blake2b(f"securetrain/init/1:{seed}:{name}".encode(), digest_size=7)
    return int.from_bytes(digest.digest(), "big")
