# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The weights that a Llama starts from."""

import math
from typing import Final

import torch
from torch import nn

from securetrain.parallel import initialize
from securetrain.train.models.shape import ModelShape

EMBEDDING_STD: Final = 0.5


def init_weights(model: nn.Module, seed: int, shape: ModelShape) -> None:
    """Set every parameter from (seed, name), before or after the model was sharded.

    Norms start at one, the embedding at a standard deviation of 0.5, matrices at 1/sqrt(inputs);
    those that write into the residual stream are smaller by sqrt(2 * layers) (Radford et al. 2019).
    """

    def draw(name: str, size: torch.Size, generator: torch.Generator) -> torch.Tensor:
        if "norm" in name:
            return torch.ones(size)
        return torch.randn(size, generator=generator) * _deviation(name, size, shape)

    initialize(model, seed, draw)
    for buffer in model.buffers():
        buffer.zero_()


@torch.no_grad()
def clear_weights(model: nn.Module) -> None:
    """Set everything to zero: parameters are read later, all of them, and buffers start at zero."""
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.zero_()


def _deviation(name: str, size: torch.Size, shape: ModelShape) -> float:
    if name == "tok_embeddings.weight":
        # A tied one is the head as well, whose logits would be far too large.
        return 1 / math.sqrt(shape.dim) if shape.tied else EMBEDDING_STD
    std = 1 / math.sqrt(size[-1])
    if name.endswith(("wo.weight", "w2.weight", "experts.w2")):
        std /= math.sqrt(2 * shape.layers)
    return std
