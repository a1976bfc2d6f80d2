# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The data-parallel wrapper that degrees and settings ask for. Free of torch."""

from enum import StrEnum
from typing import Final

from securetrain.parallel.degrees import Degrees
from securetrain.parallel.plan import Precision, Settings


class DataParallelism(StrEnum):
    """The wrappers."""

    NONE = "none"
    DDP = "ddp"
    FSDP = "fsdp"
    HSDP = "hsdp"


SHARDED: Final = frozenset({DataParallelism.FSDP, DataParallelism.HSDP})
"""Those whose ranks share parameters."""


def kind_of(degrees: Degrees, settings: Settings) -> DataParallelism:
    """The wrapper.

    DDP takes plain tensors only, so copies of a model that is cut in another way, too, are kept
    equal by HSDP with a single shard. FSDP over one rank costs nothing and computes in bfloat16.
    """
    if degrees.dp_replicate > 1:
        plain = degrees.dp_replicate == degrees.world and not settings.cpu_offload
        return DataParallelism.DDP if plain else DataParallelism.HSDP
    if degrees.fsdp > 1 or degrees.ep > 1:
        return DataParallelism.FSDP
    needed = settings.precision is not Precision.FP32 or settings.cpu_offload
    return DataParallelism.FSDP if needed else DataParallelism.NONE
