# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The microbatches of a pipeline rank that wait for their backward pass. Free of torch.

A rank of v stages runs m microbatches as m x v chunks. Its own order of forward and backward passes
decides how many chunks wait at a time, and which stages have gradients by then: torch keeps those
whole, in float32, from a stage's first backward pass to the last.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from securetrain.parallel import Schedule, stages_per_rank


@dataclass(frozen=True, slots=True)
class Flight:
    """A moment of a rank, as a backward pass begins."""

    waiting: float
    """Microbatches that wait, over all of the rank's layers; the one at work is among them."""
    begun: float
    """The part of the rank's stages that have gradients already."""
    last: bool
    """Whether the chunk at work is of the rank's last stage."""


@lru_cache(maxsize=4096)
def flights(schedule: Schedule, ranks: int, rank: int, microbatches: int) -> tuple[Flight, ...]:
    """The fullest moments of a rank, one for each combination of the rest.

    Args:
        schedule: The pipeline's schedule.
        ranks: Pipeline ranks.
        rank: Which one.
        microbatches: Of a step.
    """
    if ranks == 1:
        return (Flight(1.0, float(microbatches > 1), True),)
    each, fullest = stages_per_rank(schedule), dict[tuple[int, bool], int]()
    waiting, begun = 0, set[int]()
    for forward, stage in _passes(schedule, ranks, rank, microbatches):
        if forward:
            waiting += 1
            continue
        for seen in (len(begun), len(begun | {stage})):
            # Gradients are there when the pass has ended, and its chunk is gone.
            kept = waiting - (seen > len(begun))
            key = (seen, stage == each - 1)
            fullest[key] = max(fullest.get(key, 0), kept)
        begun.add(stage)
        waiting -= 1
    return tuple(Flight(kept / each, seen / each, last) for (seen, last), kept in fullest.items())


def microbatches_in_flight(schedule: Schedule, ranks: int, rank: int, microbatches: int) -> float:
    """The most microbatches, over all of a rank's layers, that wait for their backward pass."""
    return max(flight.waiting for flight in flights(schedule, ranks, rank, microbatches))


def _passes(
    schedule: Schedule, ranks: int, rank: int, microbatches: int
) -> Iterator[tuple[bool, int]]:
    """The passes of a rank in their order: forward or not, and of which of its stages."""
    each = stages_per_rank(schedule)
    match schedule:
        case Schedule.GPIPE | Schedule.LOOPED_BFS:
            first, round_ = microbatches * each, microbatches
        case Schedule.ONE_F_ONE_B:
            first, round_ = ranks - rank, 1
        case Schedule.INTERLEAVED_ZERO_BUBBLE:
            # Fewer at first; but weights' gradients come later, and what they need stays.
            first, round_ = each * ranks + 1, ranks
        case Schedule.INTERLEAVED_1F1B:
            # Narayanan et al. 2021: warm-up of 2(p - r - 1) + (v - 1)p chunks, and the one at work.
            first, round_ = 2 * (ranks - rank - 1) + (each - 1) * ranks + 1, ranks
        case _:
            first, round_ = 2 * ranks + 1, ranks
    if schedule not in {Schedule.GPIPE, Schedule.LOOPED_BFS}:
        # Later rounds are like the one before.
        microbatches = min(microbatches, 4 * ranks)
    chunks = microbatches * each
    first = min(first, chunks)
    for n in range(first):
        yield True, n // round_ % each
    for n in range(chunks):
        yield False, each - 1 - n // round_ % each
        if first + n < chunks:
            yield True, (first + n) // round_ % each
