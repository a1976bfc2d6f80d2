# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The name of a piece of the model, and the ranks that own its shards."""

import hashlib
from collections.abc import Iterable, Sequence

from torch import Tensor
from torch.distributed.tensor import DTensor

from securetrain.guard.hooks import Grid


def fingerprint(parameters: Iterable[tuple[str, Tensor]]) -> str:
    """Digest (hex) of a piece's names and local shapes: tells one piece of a model from another."""
    digest = hashlib.sha256(b"securetrain-piece-v1")
    for name, parameter in parameters:
        local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        digest.update(f"{name}|{tuple(local.shape)};".encode())
    return digest.hexdigest()


def owners_of(ranks: Sequence[int], grid: Grid) -> tuple[int, ...]:
    """The shard that each rank has."""
    shard = {rank: index for row in grid for index, rank in enumerate(row)}
    return tuple(shard[rank] for rank in ranks)
