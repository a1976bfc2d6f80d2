# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What watching gradients costs a training step: the built-in model with and without the guard.

Two ranks hold two copies of the model, one with a GradientGuard attached and one plain, and take
blocks of steps with one or the other in the planned order: one process, one memory layout, one
moment. A sample is the time of a block on rank 0, between barriers. What else `securetrain run`
adds to a worker (the allow-list for pickles, the pinned environment) acts when processes start and
on object collectives, not on steps; benchmarks/startup.py measures it.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from benchmarks.ab import Benchmark, Goal, Side
from securetrain.testing.processes import run_ranks

if TYPE_CHECKING:
    from torch import Tensor, nn

    from securetrain.guard import GradientGuard

RANKS: Final = 2
_ROWS: Final = 8
_LENGTH: Final = 128
_SEED: Final = 1
_TIMEOUT: Final = 1800.0


@dataclass(frozen=True, slots=True)
class Step:
    """Seconds for a block of optimizer steps."""

    wrapper: str
    pairs: int = 15
    steps: int = 4
    """Steps in a block."""

    @property
    def goal(self) -> Goal:
        """At least 0.99 of the plain throughput."""
        return Goal(ratio=1 / 0.99)

    @property
    def name(self) -> str:
        """Short name."""
        return f"step-{self.wrapper}"

    @property
    def title(self) -> str:
        """What is compared."""
        return f"{self.steps} steps with the guard against without, {self.wrapper}, {RANKS} ranks"

    def run(self, order: Sequence[Side]) -> list[float]:
        """Take one block for each entry, in ranks of their own."""
        return run_ranks(_blocks, RANKS, self.wrapper, self.steps, list(order), timeout=_TIMEOUT)[0]


def _blocks(wrapper: str, steps: int, order: list[Side]) -> list[float]:
    import torch
    import torch.distributed as dist

    rank = dist.get_rank()
    trainers = {side: trainer(wrapper, guarded=side is Side.OURS)[0] for side in Side}
    source = torch.Generator().manual_seed(_SEED + rank)
    rows = torch.randint(256, (_ROWS, _LENGTH + 1), generator=source)
    seconds = []
    for side in order:
        dist.barrier()
        started = time.perf_counter()
        for _ in range(steps):
            trainers[side](rows)
        dist.barrier()
        seconds.append(time.perf_counter() - started)
    return seconds


def trainer(
    wrapper: str, *, guarded: bool
) -> "tuple[Callable[[Tensor], None], GradientGuard | None]":
    """A function that takes one step, and the guard that watches it; collective."""
    import itertools

    import torch
    import torch.distributed as dist
    from torch.nn.functional import cross_entropy

    from securetrain.guard import GradientGuard
    from securetrain.policy.schema import Gradients
    from securetrain.train.models.init_weights import init_weights
    from securetrain.train.models.llama import Llama
    from securetrain.train.models.shape import ModelShape

    shape = ModelShape()
    model = Llama(shape)
    init_weights(model, _SEED, shape)
    wrapped = _wrap(model, wrapper)
    guard = None
    if guarded:
        guard = GradientGuard(dist.group.WORLD, Gradients())
        guard.attach(wrapped)
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-3, fused=True)
    if guard is not None:
        guard.use_optimizer(optimizer)
    positions = torch.arange(_LENGTH)
    numbers = itertools.count()

    def step(rows: "Tensor") -> None:
        logits = wrapped(rows[:, :-1], positions)
        cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()).backward()
        if guard is not None:
            verdict = guard.judge(next(numbers))
            if not verdict.ok:
                raise RuntimeError(f"an honest step was refused: {verdict.reason}")
        optimizer.step()
        optimizer.zero_grad()

    return step, guard


def _wrap(model: "nn.Module", wrapper: str) -> "nn.Module":
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    match wrapper:
        case "ddp":
            return DistributedDataParallel(model)
        case "fsdp2":
            for layer in model.get_submodule("layers").children():
                fully_shard(layer)
            fully_shard(model)
            return model
        case _:
            raise ValueError(f"unknown wrapper {wrapper!r}")


BENCHMARKS: Final[tuple[Benchmark, ...]] = (Step("fsdp2"), Step("ddp"))
