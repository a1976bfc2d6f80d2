# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The tensors that the backward pass waits for, in bytes. Free of torch.

Sources: Korthikanti et al. 2022 (arXiv:2205.05198), 4, for the method. A test compares the counts
with what autograd really keeps. Kernels are those of accelerators: a norm keeps its input,
attention its inputs, its result and one float32 a query.
"""

from typing import Final

from securetrain.parallel import (
    ContextKind,
    Recompute,
)
from securetrain.train.planning.workload import FP32, Workload

LOSS: Final = 12
"""Bytes of a logit in the backward pass of the loss: log-softmax, its gradient, their product."""
LOSS_CUT: Final = 16
"""The same where logits are cut along the vocabulary: one more, their exponentials."""


def block_activations(work: Workload, recompute: Recompute | None = None) -> int:
    """Bytes that autograd keeps for one block and one microbatch.

    Args:
        work: The rank's work.
        recompute: None: as the job has it.
    """
    shape, degrees = work.shape, work.degrees
    queries, keys = shape.heads * shape.head / degrees.tp, shape.keys * shape.head / degrees.tp
    spread = degrees.cp if work.settings.context is ContextKind.ALL_GATHER else 1
    copies = shape.experts_per_token if shape.experts else 1
    ffn = shape.ffn * copies / degrees.tp
    stream, log_sums = shape.dim / degrees.tp, shape.heads / degrees.tp * FP32
    match work.settings.recompute if recompute is None else recompute:
        case Recompute.FULL:
            return int(stream * work.stream * work.tokens)
        case Recompute.SELECTIVE:
            # The results of matrix products and attention, and the block's input.
            products = 2 * queries + 2 * keys + 2 * ffn + 2 * shape.dim
            arrived = 2 * stream if degrees.tp > 1 else 0
            kept = (products + arrived) * work.element + stream * work.stream
        case Recompute.ALTERNATE:
            products = 2 * queries + keys + ffn + shape.dim
            arrived = 2 * stream if degrees.tp > 1 else 0
            kept = (products + arrived) * work.element + stream * work.stream
        case _:
            # Between blocks and in the norms positions are cut; a product keeps what was gathered.
            inside = 2 * shape.dim + 2 * queries + 2 * keys * spread + 4 * ffn
            if shape.experts:
                inside += 2 * shape.dim * copies
            kept = inside * work.element + 2 * stream * work.stream
    return int((kept + log_sums) * work.tokens)


def backward_workspace(work: Workload) -> int:
    """Bytes of gradients that travel inside one block, and of what it computes again."""
    shape, tp = work.shape, work.degrees.tp
    copies = shape.experts_per_token if shape.experts else 1
    passing = (3 * shape.ffn * copies / tp + 2 * shape.dim) * work.tokens * work.element
    again = 0
    if work.settings.recompute is not Recompute.NONE:
        again = block_activations(work, Recompute.NONE) - block_activations(work)
    return int(passing) + max(0, again)


def head_waiting(work: Workload, flying: float) -> int:
    """Bytes that the head keeps for the microbatches in flight, before any backward pass."""
    shape, tokens = work.shape, work.tokens
    # The norm's input and the head's.
    ends = tokens * shape.dim * (work.stream / work.degrees.tp + work.element)
    logits = tokens * shape.vocab // work.degrees.tp
    if work.degrees.pp == 1:
        return int(ends)
    # A stage keeps what it returned, and the loss its log-softmax.
    return int(flying * ends + max(0.0, flying - 1) * logits * (work.element + FP32))


def loss_workspace(work: Workload) -> int:
    """Bytes of logits and what becomes of them while the loss goes back."""
    logits = work.tokens * work.shape.vocab // work.degrees.tp
    # A stage keeps what it returned.
    held = work.element if work.degrees.pp > 1 else 0
    return logits * ((LOSS_CUT if work.degrees.tp > 1 else LOSS) + held)


def logits_block(work: Workload) -> int:
    """Bytes that an allocator keeps of half-precision logits: they were freed before the loss is
    fullest, and nothing else has their size.
    """
    if work.element == FP32 or work.degrees.pp > 1:
        return 0
    return work.tokens * work.shape.vocab // work.degrees.tp * work.element
