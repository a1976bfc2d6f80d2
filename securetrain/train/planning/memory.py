# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The memory of a rank, in bytes. Free of torch.

Counted, not measured: parameters, gradients, the two moments of AdamW, what FSDP gathers for a
while, and what autograd keeps for the backward pass of the microbatches that are in flight. A test
compares the activations with what autograd really keeps. Not counted: the gradient guard's buffers
(one more gradient of the model under DDP), a compiler's savings, fragments.

Sources: Rajbhandari et al. 2019 (arXiv:1910.02054) for states; Korthikanti et al. 2022
(arXiv:2205.05198), 4, for the method of counting activations.
"""

from dataclasses import dataclass
from typing import Final

from securetrain.parallel import (
    ContextKind,
    DataParallelism,
    Degrees,
    Precision,
    Recompute,
    Schedule,
    Settings,
    Zero,
    kind_of,
    layers_of,
    stages_of,
    stages_per_rank,
)
from securetrain.train.models.shape import ModelShape, block_parameters

FP32: Final = 4
MOMENTS: Final = 8
"""AdamW's two moments in float32."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes of one rank."""

    parameters: int
    gradients: int
    optimizer: int
    gathered: int
    """Whole parameters and gradients of the groups that are in use at the same time."""
    activations: int
    logits: int

    @property
    def total(self) -> int:
        """At the fullest moment."""
        return (
            self.parameters + self.gradients + self.optimizer + self.gathered
            + self.activations + self.logits
        )  # fmt: skip


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
    ends = int(0 in mine) + int(total - 1 in mine and not shape.tied)
    rest = ends * table + (shape.dim if total - 1 in mine else 0)
    local = (blocks * dense + rest) // degrees.fsdp + blocks * experts // (
        degrees.ep * degrees.efsdp
    )
    return LocalParameters(
        pipeline_rank=pipeline_rank,
        local=local,
        block=dense + experts // degrees.ep,
        rest=rest,
        blocks=blocks,
    )


def memory_of(work: Workload, found: LocalParameters) -> Memory:
    """The bytes of one rank.

    Args:
        work: The workload of the rank.
        found: The parameters that it holds.
    """
    last = work.degrees.pp * stages_per_rank(work.settings.schedule) - 1
    has_head = work.degrees.pp == 1 or last in stages_of(
        work.settings.schedule, found.pipeline_rank, work.degrees.pp
    )
    states = 0 if work.settings.cpu_offload else found.local
    return Memory(
        parameters=FP32 * states,
        gradients=FP32 * states,
        optimizer=MOMENTS * states,
        gathered=_gathered(work, found),
        activations=_in_flight(work, found),
        logits=_logits(work) if has_head else 0,
    )


def block_activations(work: Workload) -> int:
    """Bytes that autograd keeps for one block and one microbatch."""
    shape, degrees = work.shape, work.degrees
    queries, keys = shape.heads * shape.head, shape.keys * shape.head
    tp = degrees.tp
    # Between blocks and in the norms positions are cut; a matrix product keeps what was gathered.
    stream = 2 * shape.dim / tp
    gathered = 2 * shape.dim
    spread = degrees.cp if work.settings.context is ContextKind.ALL_GATHER else 1
    attention = (2 * queries + 2 * keys * spread) / tp
    copies = shape.experts_per_token if shape.experts else 1
    network = 4 * shape.ffn * copies / tp
    if shape.experts:
        network += 2 * shape.dim * copies
    match work.settings.recompute:
        case Recompute.FULL:
            elements = shape.dim / tp
        case Recompute.SELECTIVE:
            # The results of matrix products and attention, and the block's input.
            products = (2 * queries + 2 * keys) / tp + (2 * shape.ffn * copies + shape.dim) / tp
            elements = products + 2 * shape.dim / tp
        case _:
            elements = stream + gathered + attention + network
    return int(elements * work.tokens * work.element)


def microbatches_in_flight(schedule: Schedule, ranks: int, rank: int, microbatches: int) -> float:
    """The most microbatches, over all of a rank's layers, that wait for their backward pass."""
    if ranks == 1:
        return 1.0
    each = stages_per_rank(schedule)
    match schedule:
        case Schedule.GPIPE | Schedule.LOOPED_BFS:
            chunks = microbatches * each
        case Schedule.ONE_F_ONE_B:
            chunks = ranks - rank
        case Schedule.INTERLEAVED_1F1B | Schedule.INTERLEAVED_ZERO_BUBBLE:
            # Narayanan et al. 2021: warm-up of 2(p - r - 1) + (v - 1)p chunks, and the one at work.
            chunks = 2 * (ranks - rank - 1) + (each - 1) * ranks + 1
        case _:
            chunks = 2 * ranks + 1
    return min(chunks, microbatches * each) / each


def _in_flight(work: Workload, found: LocalParameters) -> int:
    flying = microbatches_in_flight(
        work.settings.schedule, work.degrees.pp, found.pipeline_rank, work.settings.microbatches
    )
    kept = block_activations(work) * found.blocks * flying
    if work.settings.recompute is not Recompute.NONE:
        # One block is computed again in full.
        whole = Workload(
            shape=work.shape,
            degrees=work.degrees,
            settings=Settings(precision=work.settings.precision, context=work.settings.context),
            rows=work.rows,
            length=work.length,
        )
        kept += block_activations(whole)
    return int(kept)


def _logits(work: Workload) -> int:
    """Logits, their float32 copy, its log-softmax and the gradient."""
    return work.tokens * work.shape.vocab // work.degrees.tp * (work.element + 3 * FP32)


def _gathered(work: Workload, found: LocalParameters) -> int:
    """Bytes that FSDP holds whole for a while: parameters to compute with, gradients to send."""
    kind, element = kind_of(work.degrees, work.settings), work.element
    whole = found.blocks * found.block + found.rest
    match kind:
        case DataParallelism.NONE:
            return 0
        case DataParallelism.DDP:
            # Autocast keeps a bfloat16 copy of the weights for the step.
            return whole * element if element < FP32 else 0
        case _:
            pass
    if work.settings.zero is Zero.PARAMETERS and work.degrees.pp == 1:
        # The block at work, the one that is on its way, and the rest, which stays.
        parameters = min(2, found.blocks) * found.block + found.rest
    else:
        parameters = whole
    sent = max(found.block, found.rest)
    gradients = sent * (element + FP32)
    if work.settings.zero is Zero.OPTIMIZER and work.settings.microbatches > 1:
        gradients = whole * FP32
    return parameters * element + gradients
