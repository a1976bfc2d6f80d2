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
    """Seconds for judging the table of four ranks, and for one norm of the gradient."""

    pairs: int = 25

    @property
    def name(self) -> str:
        """Short name."""
        return "judge"

    @property
    def title(self) -> str:
        """What is compared."""
        return f"all tests on {_RANKS} ranks' sketches against the norm of {ELEMENTS} numbers"

    @property
    def goal(self) -> Goal:
        """Two milliseconds."""
        return Goal(difference=0.002)

    def run(self, order: Sequence[Side]) -> list[float]:
        """Time each side in this process."""
        import torch

        from securetrain.guard.outliers import Detector
        from securetrain.guard.sketch import shape_for

        shape = shape_for(_RANKS)
        detector = Detector(_RANKS, warmup_steps=20, threshold=8.0)
        common = torch.randn(shape.size, dtype=torch.float64)

        def ours(_: "Tensor") -> object:
            rows = common + torch.randn(_RANKS, shape.size, dtype=torch.float64)
            return detector.observe(rows, rows, shape)

        for _ in range(40):
            ours(common)
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
