# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Pipeline schedules as numbers: which stages a rank holds, which layers a stage holds, how long
ranks wait. Free of torch, so that a plan can be made anywhere.

=====================  ===========  =========  ==================================================
schedule               stages/rank  placement  source
=====================  ===========  =========  ==================================================
GPipe                  1            loop       Huang et al. 2018, arXiv:1811.06965
1F1B                   1            loop       Narayanan et al. 2020, arXiv:2006.09503
Interleaved1F1B        2            loop       Narayanan et al. 2021, arXiv:2104.04473
LoopedBFS              2            loop       Lamy-Poirier 2022, arXiv:2211.05953
InterleavedZeroBubble  2            loop       Qi et al. 2023, arXiv:2401.10241
ZBVZeroBubble          2            V          Qi et al. 2024, arXiv:2405.15362
DualPipeV              2            V          DeepSeek-AI 2024, arXiv:2412.19437
=====================  ===========  =========  ==================================================
"""

from enum import StrEnum
from typing import Final


class Schedule(StrEnum):
    """The schedules of torch.distributed.pipelining, by torch's names."""

    GPIPE = "GPipe"
    ONE_F_ONE_B = "1F1B"
    INTERLEAVED_1F1B = "Interleaved1F1B"
    LOOPED_BFS = "LoopedBFS"
    INTERLEAVED_ZERO_BUBBLE = "InterleavedZeroBubble"
    ZBV_ZERO_BUBBLE = "ZBVZeroBubble"
    DUAL_PIPE_V = "DualPipeV"


_SINGLE: Final = {Schedule.GPIPE, Schedule.ONE_F_ONE_B}
_V: Final = {Schedule.ZBV_ZERO_BUBBLE, Schedule.DUAL_PIPE_V}
_SPLIT: Final = {*_V, Schedule.INTERLEAVED_ZERO_BUBBLE}


def splits_backward(schedule: Schedule) -> bool:
    """True where gradients of inputs and of weights are computed in two passes."""
    return schedule in _SPLIT


def stages_per_rank(schedule: Schedule) -> int:
    """The number of stages that each pipeline rank holds."""
    return 1 if schedule in _SINGLE else 2


def num_stages(schedule: Schedule, ranks: int) -> int:
    """Stages of all ranks; a model that is not cut is one."""
    return ranks * stages_per_rank(schedule) if ranks > 1 else 1


def stages_of(schedule: Schedule, rank: int, ranks: int) -> tuple[int, ...]:
    """The stages of one pipeline rank: in a loop, or down and up again for a V."""
    if schedule in _V and ranks > 1:
        return rank, 2 * ranks - 1 - rank
    return tuple(range(rank, num_stages(schedule, ranks), ranks))


def rank_of_stage(schedule: Schedule, stage: int, ranks: int) -> int:
    """The pipeline rank that holds a stage."""
    return next(rank for rank in range(ranks) if stage in stages_of(schedule, rank, ranks))


def min_microbatches(schedule: Schedule, ranks: int) -> int:
    """Fewer microbatches than this the schedule does not take."""
    if schedule is Schedule.DUAL_PIPE_V:
        return 2 * ranks
    return ranks if schedule is Schedule.ONE_F_ONE_B else 1


def microbatch_multiple(schedule: Schedule, ranks: int) -> int:
    """The number of microbatches must be a multiple of this."""
    return ranks if schedule in {
        Schedule.INTERLEAVED_1F1B, Schedule.INTERLEAVED_ZERO_BUBBLE
    } else 1  # fmt: skip


def default_microbatches(ranks: int) -> int:
    """The number that `auto` stands for: all stages are busy at least half of the time."""
    return 2 * ranks if ranks > 1 else 1


def layers_of(stage: int, stages: int, layers: int) -> range:
    """The layers of one stage: contiguous, the first stages take what does not divide."""
    each, extra = divmod(layers, stages)
    begin = stage * each + min(stage, extra)
    return range(begin, begin + each + (stage < extra))


def bubble(schedule: Schedule, ranks: int, microbatches: int) -> float:
    """The part of a step in which a rank waits, for stages of equal length and free messages.

    A backward pass takes two forward passes' time, half of it for the inputs' gradients. GPipe and
    1F1B wait (p-1)/(m+p-1); v stages a rank divide the waiting by v (Narayanan et al. 2021, 2.2);
    ZB-H1-like schedules fill two thirds of it with weights' gradients; a V of zero bubbles has
    none once m >= 2p (Qi et al. 2024).
    """
    if ranks == 1:
        return 0.0
    wait = (ranks - 1) / stages_per_rank(schedule)
    match schedule:
        case Schedule.INTERLEAVED_ZERO_BUBBLE:
            wait /= 3
        case Schedule.ZBV_ZERO_BUBBLE | Schedule.DUAL_PIPE_V:
            wait = max(0.0, wait * (1 - microbatches / (2 * ranks)))
        case _:
            pass
    return wait / (microbatches + wait)
