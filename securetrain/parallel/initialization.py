# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The weights that training starts from.

Every parameter starts from (seed, its own name) and from nothing else, so that any mesh, any stage,
any order and any number of processes begin with the same weights, and nothing has to be sent.
"""

import hashlib
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor

Draw: TypeAlias = Callable[[str, torch.Size, torch.Generator], torch.Tensor]
"""Name, whole size and a generator of its own to a whole float32 tensor on the CPU."""


@torch.no_grad()
def initialize(model: nn.Module, seed: int, draw: Draw) -> None:
    """Set every parameter of `model`, whole or already cut.

    Args:
        model: The model, or a stage of it, under the names of the whole.
        seed: Of the run.
        draw: Makes the whole value of a parameter.
    """
    for name, parameter in model.named_parameters():
        generator = torch.Generator().manual_seed(seed_of(seed, name))
        value = draw(name, parameter.shape, generator).to(parameter.device, parameter.dtype)
        if isinstance(parameter, DTensor):
            # Every rank makes the same tensor and keeps its own part: no bytes travel.
            value = distribute_tensor(
                value, parameter.device_mesh, parameter.placements, src_data_rank=None
            )
        parameter.copy_(value)


def initialize_as_built(build: Callable[[], nn.Module], seed: int) -> Callable[[nn.Module], None]:
    """Fill a model as its own constructor does under `seed`, parameters and buffers: what
    `Description.materialize` is for a model that has no function for each name. Every rank builds
    the whole model once, in host memory.
    """

    @torch.no_grad()
    def materialize(part: nn.Module) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            whole = build()
        values = dict(whole.named_parameters()) | dict(whole.named_buffers())
        for name, empty in (*part.named_parameters(), *part.named_buffers()):
            value = values[name].detach().to(empty.device, empty.dtype)
            if isinstance(empty, DTensor):
                value = distribute_tensor(
                    value, empty.device_mesh, empty.placements, src_data_rank=None
                )
            empty.copy_(value)

    return materialize


def seed_of(seed: int, name: str) -> int:
    """A 56-bit seed of its own for each name."""
    digest = hashlib.blake2b(f"securetrain/init/1:{seed}:{name}".encode(), digest_size=7)
    return int.from_bytes(digest.digest(), "big")
