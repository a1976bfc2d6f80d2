# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What the guard itself does in a step, without the step: whole steps cannot resolve one per cent.

Real gloo ranks take one training step of a model of two million parameters; what its hooks hand
over is kept, and handed over again and judged in every sample of ours: sketches, messages,
integrity, evidence, verdict. A sample of the reference is the same training step without a guard,
so the ratio is what the guard adds to it. CPU time is that of the process, with its communication
threads; wall time ends when the slowest rank has its verdict.
"""

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from benchmarks.ab import Benchmark, Goal, Side
from benchmarks.step import trainer
from securetrain.testing.processes import run_ranks

if TYPE_CHECKING:
    from torch import Tensor

    from securetrain.guard.collect import Piece

_TIMEOUT: Final = 1800.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Alone:
    """Seconds of the guard in one step, against a plain step."""

    wrapper: str
    ranks: int = 2
    cpu: bool = True
    goal: Goal
    pairs: int = 15
    steps: int = 10
    """Judged steps in a sample of ours; plain ones are far longer, and two make a sample."""

    @property
    def name(self) -> str:
        """Short name."""
        return f"guard-alone-{self.wrapper}-{self.ranks}-{'cpu' if self.cpu else 'wall'}"

    @property
    def title(self) -> str:
        """What is compared."""
        clock = "CPU" if self.cpu else "wall"
        return (
            f"{clock} time of the guard in a step, against the step, {self.wrapper},"
            f" {self.ranks} ranks"
        )

    def run(self, order: Sequence[Side]) -> list[float]:
        """Take one sample for each entry, in ranks of their own; the first rank's seconds."""
        arguments = (self.wrapper, self.steps, self.cpu, list(order))
        return run_ranks(_samples, self.ranks, *arguments, timeout=_TIMEOUT)[0]


def _samples(wrapper: str, steps: int, cpu: bool, order: list[Side]) -> list[float]:  # noqa: FBT001
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    plain, _ = trainer(wrapper, guarded=False)
    source = torch.Generator().manual_seed(dist.get_rank())
    rows = torch.randint(256, (8, 129), generator=source)
    ours = _guard_alone(wrapper, rows)
    clock = time.process_time if cpu else time.perf_counter
    for _ in range(30):  # until the guard's early steps are over
        ours(clock)
    seconds = []
    for side in order:
        if side is Side.OURS:
            seconds.append(sum(ours(clock) for _ in range(steps)) / steps)
        else:
            started = clock()
            plain(rows)
            plain(rows)
            seconds.append((clock() - started) / 2)
    return seconds


def _guard_alone(wrapper: str, rows: "Tensor") -> "Callable[[Callable[[], float]], float]":
    """Hand over pieces as of a real step, with new numbers, and judge them: seconds; collective."""
    import torch.distributed as dist

    from securetrain.guard.watch import GroupWatch

    step, guard = trainer(wrapper, guarded=True)
    assert guard is not None
    watches = guard._watches  # noqa: SLF001 - a benchmark looks inside
    (watch,) = (one for one in watches if isinstance(one, GroupWatch))
    deliver, pieces = watch.collector.add, []

    def keep(piece: "Piece") -> None:
        pieces.append(piece)
        deliver(piece)

    step(rows)  # DDP makes its buckets anew after the first step
    watch.collector.add = keep  # type: ignore[method-assign]
    step(rows)
    watch.collector.add = deliver  # type: ignore[method-assign]
    kept = [
        dataclasses.replace(
            piece, local=piece.local.clone(), result=piece.result.clone(), wait=lambda: None
        )
        for piece in pieces
    ]

    def alone(clock: "Callable[[], float]") -> float:
        for piece in kept:
            mean = piece.local.normal_().clone()
            dist.all_reduce(mean)
            mean /= dist.get_world_size()
            piece.result.copy_(mean.view(piece.parts, -1)[piece.part])
        dist.barrier()
        started = clock()
        for piece in kept:
            watch.collector.add(piece)
        verdict = guard.judge(0)
        seconds = clock() - started
        if not verdict.ok:
            raise RuntimeError(f"an honest step was refused: {verdict.reason}")
        return seconds

    return alone


BENCHMARKS: Final[tuple[Benchmark, ...]] = (
    Alone(wrapper="ddp", goal=Goal(seconds=0.0018, ratio=0.01)),
    Alone(wrapper="fsdp2", goal=Goal(seconds=0.0016, ratio=0.01)),
    Alone(wrapper="ddp", ranks=4, cpu=False, goal=Goal(seconds=0.010)),
)
