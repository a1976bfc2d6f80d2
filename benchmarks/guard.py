# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What one sketch costs: against `x.norm()`, the cheapest thing computed of any gradient.

Both read 2 M fp32 numbers (8 MB) from memory, on one thread. A step makes two sketches of the
local gradient (fresh and window) and one of what it received; benchmarks/step.py measures whole
steps. The judging of a table is measured against the reading of the same gradient too: it does
not grow with the model.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from benchmarks.ab import Benchmark, Goal, Side

if TYPE_CHECKING:
    from torch import Tensor

ELEMENTS: Final = 2_000_000
_REPEAT: Final = 20
_RANKS: Final = 4


@dataclass(frozen=True, slots=True)
class Sketch:
    """Seconds for one sketch, parameters drawn anew each time, and for one norm."""

    pairs: int = 25

    @property
    def name(self) -> str:
        """Short name."""
        return "sketch"

    @property
    def title(self) -> str:
        """What is compared."""
        return f"a fresh sketch of {ELEMENTS} fp32 numbers against their norm, one thread"

    @property
    def goal(self) -> Goal:
        """Five reads of memory."""
        return Goal(ratio=5.0)

    def run(self, order: Sequence[Side]) -> list[float]:
        """Time each side in this process."""
        from securetrain.guard.sketch import derive, shape_for, sketch

        shape = shape_for(_RANKS)
        counter = iter(range(1 << 30))

        def ours(x: "Tensor") -> object:
            seed = next(counter).to_bytes(32, "big")
            parameters = derive(seed, "bench", numel=ELEMENTS // _RANKS, parts=_RANKS, shape=shape)
            return sketch(x, parameters)

        return _time(ours, order)


@dataclass(frozen=True, slots=True)
class Judge:
    """Seconds for judging eight ranks' rows of 32 groups, and for one norm of the gradient."""

    pairs: int = 25

    @property
    def name(self) -> str:
        """Short name."""
        return "judge"

    @property
    def title(self) -> str:
        """What is compared."""
        return f"all evidence from 8 ranks, 32 groups, against the norm of {ELEMENTS} numbers"

    @property
    def goal(self) -> Goal:
        """Four milliseconds."""
        return Goal(difference=0.004)

    def run(self, order: Sequence[Side]) -> list[float]:
        """Time each side in this process."""
        import numpy as np

        from securetrain.guard.detector import Detector
        from securetrain.guard.rows import StepRows

        generator, names = np.random.default_rng(0), tuple(f"layers.{i}" for i in range(32))
        detector = Detector(8)
        common = generator.standard_normal((32, 1, 256))
        steps = iter(
            [
                StepRows(
                    groups=names,
                    gradients=common + generator.standard_normal((32, 8, 256)),
                    momentum=generator.standard_normal((32, 256)),
                )
                for _ in range(10)
            ]
            * 100
        )

        def ours(_: "Tensor") -> object:
            return detector.observe(next(steps))

        for _ in range(80):  # until the past is full
            detector.observe(next(steps))
        return _time(ours, order)


def _time(ours: "Callable[[Tensor], object]", order: Sequence[Side]) -> list[float]:
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    x = torch.randn(ELEMENTS)
    seconds = []
    try:
        for side in order:
            call = ours if side is Side.OURS else torch.linalg.vector_norm
            started = time.perf_counter()
            for _ in range(_REPEAT):
                call(x)
            seconds.append((time.perf_counter() - started) / _REPEAT)
    finally:
        torch.set_num_threads(threads)
    return seconds


BENCHMARKS: Final[tuple[Benchmark, ...]] = (Sketch(), Judge())
