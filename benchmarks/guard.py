# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What a sketch costs: against `vector_norm`, the cheapest thing computed of any gradient.

Both read the same numbers, on one thread, and CPU time counts. Sketches are drawn anew each time
(tables and all), in one pass whatever the number of keys: a step makes one of the local gradient
and one of what it received; benchmarks/step.py measures whole steps. 2 M numbers stay in the
processor's cache, where reading is cheaper still. The judging of a table is measured against the
reading of a gradient too: it does not grow with the model.

Without the compiled kernel the goals are missed: the table of an installation without one says
what the fallback costs.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from benchmarks.ab import Benchmark, Goal, Side

if TYPE_CHECKING:
    from torch import Tensor

ELEMENTS: Final = 2_000_000
_RANKS: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Sketch:
    """CPU seconds of one sketch, and of one norm."""

    millions: int
    dtype: str
    keys: int
    ratio: float
    pairs: int = 15

    @property
    def name(self) -> str:
        """Short name."""
        keys = "key" if self.keys == 1 else "keys"
        return f"sketch {self.millions} M {self.dtype}, {self.keys} {keys}"

    @property
    def title(self) -> str:
        """What is compared."""
        return f"a fresh {self.name}, against the norm of the same numbers: CPU time, one thread"

    @property
    def goal(self) -> Goal:
        """A few reads of memory."""
        return Goal(ratio=self.ratio)

    def run(self, order: Sequence[Side]) -> list[float]:
        """Time each side in this process."""
        import torch

        from securetrain.guard.sketch import derive, shape_for, sketch

        shape = shape_for(_RANKS, keys=self.keys)
        counter = iter(range(1 << 30))
        numel = self.millions * 1_000_000 // _RANKS

        def ours(x: "Tensor") -> object:
            seed = next(counter).to_bytes(32, "big")
            parameters = derive(seed, "bench", numel=numel, parts=_RANKS, shape=shape)
            return sketch(x, parameters)

        x = torch.randn(numel * _RANKS).to(getattr(torch, self.dtype))
        return _time(ours, order, x, repeat=max(2, 100 // self.millions))


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
        import torch

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
        return _time(ours, order, torch.randn(ELEMENTS), repeat=20)


def _time(
    ours: "Callable[[Tensor], object]", order: Sequence[Side], x: "Tensor", *, repeat: int
) -> list[float]:
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    seconds = []
    try:
        for side in order:
            call = ours if side is Side.OURS else torch.linalg.vector_norm
            started = time.process_time()
            for _ in range(repeat):
                call(x)
            seconds.append((time.process_time() - started) / repeat)
    finally:
        torch.set_num_threads(threads)
    return seconds


BENCHMARKS: Final[tuple[Benchmark, ...]] = (
    Sketch(millions=50, dtype="float32", keys=1, ratio=1.5),
    Sketch(millions=50, dtype="float32", keys=2, ratio=2.0),
    Sketch(millions=50, dtype="bfloat16", keys=1, ratio=2.0),
    Sketch(millions=50, dtype="bfloat16", keys=2, ratio=2.5),
    Sketch(millions=2, dtype="float32", keys=1, ratio=3.5),
    Sketch(millions=2, dtype="float32", keys=2, ratio=5.0),
    Judge(),
)
