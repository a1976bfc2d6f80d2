# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The work of one rank, and the parameters that it has. Free of torch."""

from dataclasses import dataclass
from typing import Final

from securetrain.parallel import (
    DataParallelism,
    Degrees,
    Precision,
    Settings,
    kind_of,
    layers_of,
    stages_of,
    stages_per_rank,
)
from securetrain.train.models.shape import ModelShape, block_parameters

FP32: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The work of one rank."""

    shape: ModelShape
    degrees: Degrees
    settings: Settings
    rows: int
    """Of one microbatch of one data-parallel rank."""
    length: int
    """Positions of a row."""

    @property
    def tokens(self) -> int:
        """Of one microbatch on one context-parallel rank."""
        return self.rows * self.length // self.degrees.cp

    @property
    def element(self) -> int:
        """Bytes of an activation."""
        return 2 if self.settings.precision is Precision.BF16 else FP32

    @property
    def stream(self) -> int:
        """Bytes of an element between blocks: autocast, under DDP, leaves it in float32."""
        ddp = kind_of(self.degrees, self.settings) is DataParallelism.DDP
        return FP32 if ddp else self.element


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalParameters:
    """Parameters of one pipeline rank, before and after they are cut."""

    pipeline_rank: int
    local: int
    """Elements that this rank keeps."""
    block: int
    """Elements of the largest block, cut by tensor and expert parallelism only."""
    rest: int
    """The same of everything that is not in a block."""
    blocks: int
    """How many blocks the rank has."""
    first: bool
    """Whether the rank has the embedding."""
    last: bool
    """Whether the rank has the head."""

    @property
    def whole(self) -> int:
        """Elements of all that the rank computes with."""
        return self.blocks * self.block + self.rest


def held(work: Workload, pipeline_rank: int) -> LocalParameters:
    """Count the parameters of a pipeline rank from the sizes alone."""
    shape, degrees = work.shape, work.degrees
    total = degrees.pp * stages_per_rank(work.settings.schedule) if degrees.pp > 1 else 1
    mine = stages_of(work.settings.schedule, pipeline_rank, degrees.pp) if degrees.pp > 1 else (0,)
    blocks = sum(len(layers_of(stage, total, shape.layers)) for stage in mine)
    experts = 3 * shape.dim * shape.ffn * shape.experts
    # Norms and routers are not cut by tensor parallelism; they are small enough to be left out.
    dense = (block_parameters(shape) - experts) // degrees.tp
    table = shape.vocab * shape.dim // degrees.tp
    first, last = 0 in mine, total - 1 in mine
    ends = int(first) + int(last and not shape.tied)
    rest = ends * table + (shape.dim if last else 0)
    local = (blocks * dense + rest) // degrees.fsdp + blocks * experts // (
        degrees.ep * degrees.efsdp
    )
    return LocalParameters(
        pipeline_rank=pipeline_rank,
        local=local,
        block=dense + experts // degrees.ep,
        rest=rest,
        blocks=blocks,
        first=first,
        last=last,
    )
