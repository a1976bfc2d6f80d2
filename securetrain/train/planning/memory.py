# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The memory of a rank, in bytes. Free of torch.

A step is fullest at one of a few moments, and the plan is the largest of them:

=========  =======================================================================================
moment     what is there besides parameters and AdamW's moments
=========  =======================================================================================
loss       all activations of the microbatches in flight, and the logits on their way back
backward   the same activations, the first block's gradients on their way to other ranks
blocks     all gradients, the last block's on their way
rest       all gradients, those of embedding and head on their way
reduce     a pipeline's only: whole float32 gradients of all stages of the rank
=========  =======================================================================================

Counted, and compared with the storages of a real step (`fake_step`, in tests) and with published
peaks of torchtitan. Under a pipeline torch keeps every gradient whole, in float32, until the last
microbatch, and every parameter whole for the step.

Not counted: the gradient guard's buffers (one more gradient of the model under DDP), a compiler's
savings. `SLACK` is what the caching allocator takes besides: the ratio of bytes reserved to bytes
counted, over the published tables.

Source for states: Rajbhandari et al. 2019 (arXiv:1910.02054).
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Final

from securetrain.parallel import SHARDED, DataParallelism, Zero, kind_of, stages_per_rank
from securetrain.train.planning.activations import (
    backward_workspace,
    block_activations,
    head_waiting,
    logits_block,
    loss_workspace,
)
from securetrain.train.planning.flights import flights
from securetrain.train.planning.workload import FP32, LocalParameters, Workload

MOMENTS: Final = 8
"""AdamW's two moments in float32."""
SLACK: Final = 0.09
"""Of what is counted: fragments of the caching allocator."""
ERROR: Final = 0.15
"""How far a plan may be from what a device shows, either way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes of one rank at its fullest moment."""

    parameters: int
    gradients: int
    """Those that wait for the optimizer, or for the last microbatch."""
    optimizer: int
    gathered: int
    """Whole parameters."""
    traffic: int = 0
    """Gradients on their way to other ranks, and what a stage receives."""
    activations: int = 0
    logits: int = 0
    slack: int = 0
    """Fragments of the allocator."""

    @property
    def parts(self) -> dict[str, int]:
        """Bytes by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def total(self) -> int:
        """All of it."""
        return sum(self.parts.values())


def memory_of(work: Workload, found: LocalParameters) -> Memory:
    """The bytes of one rank at its fullest moment.

    Args:
        work: The workload of the rank.
        found: The parameters that it holds.
    """
    fullest = max(_moments(work, found), key=lambda memory: memory.total)
    slack = int(SLACK * fullest.total) + (logits_block(work) if fullest.logits else 0)
    return replace(fullest, slack=slack)


def _moments(work: Workload, found: LocalParameters) -> Iterator[Memory]:
    """The holdings of a rank at each moment that may be its fullest."""
    base = _states(work, found)
    if work.degrees.pp > 1:
        yield from _pipelined(work, found, base)
        return
    block, kept = block_activations(work), found.blocks * block_activations(work)
    whole, waiting = _gathered(work, found), _waiting(work, found)
    ends = head_waiting(work, 1.0)
    before = replace(base, gradients=waiting)
    after = replace(base, gradients=base.gradients + (waiting if _accumulates(work) else 0))
    head, leaving = _head(work, found) * work.element, _leaving(work, found)
    if kind_of(work.degrees, work.settings) not in SHARDED:
        head = leaving = 0
    yield replace(before, gathered=whole.loss, activations=kept + ends, logits=loss_workspace(work))
    again = backward_workspace(work)
    yield replace(before, gathered=whole.backward, traffic=head, activations=kept + again)
    yield replace(before, gathered=whole.backward, traffic=head + leaving, activations=kept - block)
    yield replace(after, gathered=whole.backward, traffic=head + leaving)
    if kind_of(work.degrees, work.settings) in SHARDED:
        yield replace(after, traffic=found.rest * (work.element + FP32))


def _pipelined(work: Workload, found: LocalParameters, base: Memory) -> Iterator[Memory]:
    """The same for a rank of a pipeline.

    Gradients of a stage wait whole from its first backward pass on (see `flights`).
    """
    settings, whole = work.settings, _gathered(work, found).backward
    received, all_gradients = _received(work, found), _waiting(work, found)
    sharded = kind_of(work.degrees, settings) in SHARDED
    each_reduced = settings.reduce_each_microbatch
    passing = max(found.block, _head(work, found)) * work.element if sharded else 0
    leaving = max(found.block, found.rest) * (work.element + FP32)
    for flight in flights(
        settings.schedule, work.degrees.pp, found.pipeline_rank, settings.microbatches
    ):
        each = found.blocks * block_activations(work) + _handed_on(work)
        held = replace(
            base,
            gradients=int(all_gradients * flight.begun),
            gathered=whole,
            activations=int(each * flight.waiting),
        )
        again = backward_workspace(work)
        yield replace(held, traffic=received + passing, activations=held.activations + again)
        if each_reduced:
            gone = held.activations - block_activations(work)
            yield replace(held, traffic=received + leaving, activations=max(0, gone))
        if found.last and flight.last:
            yield replace(
                held,
                traffic=received,
                activations=held.activations + head_waiting(work, flight.waiting),
                logits=loss_workspace(work),
            )
    if sharded and not each_reduced:
        sent = FP32 * max(found.block, found.rest)
        yield replace(base, gradients=all_gradients, gathered=whole, traffic=received + sent)


def _states(work: Workload, found: LocalParameters) -> Memory:
    """The state that is there all the time, and the gradients at the end of a step."""
    states = 0 if work.settings.cpu_offload else found.local
    return Memory(
        parameters=FP32 * states, gradients=FP32 * states, optimizer=MOMENTS * states, gathered=0
    )


@dataclass(frozen=True, slots=True)
class _Whole:
    """Bytes of parameters that are whole on this rank."""

    loss: int
    backward: int


def _gathered(work: Workload, found: LocalParameters) -> _Whole:
    kind, element = kind_of(work.degrees, work.settings), work.element
    everything = found.whole * element
    if kind is DataParallelism.NONE:
        return _Whole(0, 0)
    if kind is DataParallelism.DDP:
        # Autocast keeps a bfloat16 copy of the weights for the step.
        copies = everything if element < FP32 else 0
        return _Whole(copies, copies)
    if work.settings.zero is Zero.PARAMETERS and work.degrees.pp == 1:
        # The rest stays; the block at work, and the one that is on its way.
        rest = found.rest * element
        return _Whole(rest, rest + min(2, found.blocks) * found.block * element)
    return _Whole(everything, everything)


def _accumulates(work: Workload) -> bool:
    """Return whether gradients wait whole for the last microbatch."""
    settings = work.settings
    if kind_of(work.degrees, settings) not in SHARDED or settings.microbatches == 1:
        return False
    if settings.reduce_each_microbatch:
        return False
    return work.degrees.pp > 1 or settings.zero is Zero.OPTIMIZER


def _waiting(work: Workload, found: LocalParameters) -> int:
    """Bytes of gradients that are there before the last microbatch goes back."""
    if _accumulates(work):
        return FP32 * found.whole
    kind = kind_of(work.degrees, work.settings)
    if kind is DataParallelism.DDP or work.settings.microbatches > 1:
        return _states(work, found).gradients
    return FP32 * found.whole if kind in SHARDED and work.degrees.pp > 1 else 0


def _head(work: Workload, found: LocalParameters) -> int:
    """Elements of the head's matrix."""
    return work.shape.vocab * work.shape.dim // work.degrees.tp if found.last else 0


def _leaving(work: Workload, found: LocalParameters) -> int:
    """Bytes of a block's gradients as they were made, and as they are reduced."""
    return found.block * (work.element + FP32)


def _received(work: Workload, found: LocalParameters) -> int:
    """Bytes that a stage keeps to receive into: one piece for each microbatch and neighbour."""
    stages = stages_per_rank(work.settings.schedule)
    sides = 2 * stages - int(found.first) - int(found.last)
    return sides * work.settings.microbatches * _handed_on(work)


def _handed_on(work: Workload) -> int:
    """Bytes that a stage passes on for one microbatch."""
    return work.tokens * work.shape.dim * work.element // work.degrees.tp
