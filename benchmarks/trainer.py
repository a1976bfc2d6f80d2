# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What our trainer costs: its step against the same model in a loop written by hand.

Two ranks hold two copies of the built-in model. One is driven by `Trainer.train_step` as a job
would; the other is what a person writes with DistributedDataParallel or fully_shard: forward,
cross-entropy, backward, clip_grad_norm_, AdamW, and the loss as a number. Both read rows of equal
length out of memory. Blocks of steps are taken in the planned order: one process, one moment. What
counts is the CPU time of the ranks: what else the machine does is not in it.

Ours does more in a step, whatever its settings: the loss and the gradient's norm are those of all
ranks, every number is checked for being finite before it is used, and ranks agree on whether to
stop. ``trainer-*-guard`` has the guard on as well.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from benchmarks.ab import Benchmark, Goal, Side
from securetrain.testing.processes import run_ranks

if TYPE_CHECKING:
    from torch import Tensor, nn

RANKS: Final = 2
ROWS: Final = 8
"""Of one rank."""
LENGTH: Final = 128
JOB: Final = """\
apiVersion: securetrain.dev/job/v1
kind: TrainJob
name: bench
steps: 100000
data: {{seq_len: {length}, batch_rows: {rows}}}
parallel: {parallel}
eval: {{rows: {ranks}}}
"""
PARALLEL: Final = {"ddp": f"{{dp_replicate: {RANKS}}}", "fsdp2": f"{{dp_shard: {RANKS}}}"}
_TIMEOUT: Final = 1800.0

Loop = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Steps:
    """CPU seconds of a rank for a block of training steps."""

    wrapper: str
    guard: bool = False
    pairs: int = 15
    steps: int = 4
    """Steps in a block."""

    @property
    def goal(self) -> Goal:
        """At most 1.01 times the time of a loop by hand; 1.02 with the guard."""
        return Goal(ratio=1.02 if self.guard else 1.01)

    @property
    def name(self) -> str:
        """Short name."""
        return f"trainer-{self.wrapper}{'-guard' if self.guard else ''}"

    @property
    def title(self) -> str:
        """What is compared."""
        watched = ", gradients watched" if self.guard else ""
        return f"{self.steps} steps of the trainer{watched} against by hand, {self.wrapper}"

    def run(self, order: Sequence[Side]) -> list[float]:
        """Take one block for each entry, in ranks of their own."""
        found = run_ranks(
            _blocks, RANKS, self.wrapper, self.steps, list(order), self.guard, timeout=_TIMEOUT
        )
        return [sum(one) / RANKS for one in zip(*found, strict=True)]


def _blocks(
    wrapper: str,
    steps: int,
    order: list[Side],
    guard: bool,  # noqa: FBT001
) -> list[float]:
    import torch.distributed as dist

    loops = {Side.OURS: _ours(wrapper, guard=guard), Side.PLAIN: _by_hand(wrapper)}
    seconds = []
    for side in order:
        dist.barrier()
        started = time.process_time()
        for _ in range(steps):
            loops[side]()
        dist.barrier()
        seconds.append(time.process_time() - started)
    return seconds


class _Never:
    requested = False


def _ours(wrapper: str, *, guard: bool) -> Loop:
    from datetime import UTC, datetime
    from pathlib import Path

    import torch

    from securetrain.core.rundir import RunDir
    from securetrain.parallel.mesh import make_mesh
    from securetrain.policy.schema import Gradients, GuardMode
    from securetrain.train.composition import check_world
    from securetrain.train.config import parse_job
    from securetrain.train.data import Rows
    from securetrain.train.setup import Worker, build

    text = JOB.format(length=LENGTH, rows=RANKS * ROWS, ranks=RANKS, parallel=PARALLEL[wrapper])
    job = parse_job(text, "bench")
    worker = Worker(
        run=RunDir(Path("unused")),
        device=torch.device("cpu"),
        clock=lambda: datetime.now(UTC),
        stop=_Never(),
        console=None,
    )
    mesh = make_mesh(check_world(job, RANKS, "bench"), "cpu")
    settings = Gradients(mode=GuardMode.DETECT if guard else GuardMode.OFF)
    rows = Rows(_Tokens(), LENGTH, seed=1)
    return build(job, worker, mesh, settings, (rows, None)).train_step


class _Tokens:
    """A stream that is in memory already."""

    name = "train"
    where = "bench"
    vocab = 256
    shuffles = False

    def __init__(self) -> None:
        self._tokens = _tokens()

    def __len__(self) -> int:
        return len(self._tokens)

    def read(self, start: int, count: int, epoch: int) -> "Tensor":
        """Tokens."""
        del epoch
        return self._tokens[start : start + count]

    def byte_ranges(self, start: int, count: int, epoch: int) -> list[Any]:
        """Nobody asks."""
        raise NotImplementedError


def _tokens() -> "Tensor":
    import torch

    return torch.randint(256, (1 << 20,), generator=torch.Generator().manual_seed(1))


def _by_hand(wrapper: str) -> Loop:
    import torch
    import torch.distributed as dist
    from torch.nn.functional import cross_entropy

    from securetrain.train.models.init_weights import init_weights
    from securetrain.train.models.llama import Llama
    from securetrain.train.models.shape import ModelShape

    shape = ModelShape()
    model = Llama(shape)
    init_weights(model, 1, shape)
    wrapped = _wrap(model, wrapper)
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-3, fused=True)
    positions, tokens = torch.arange(LENGTH), _tokens()
    source = torch.Generator().manual_seed(dist.get_rank())

    def step() -> float:
        starts = torch.randint(len(tokens) - LENGTH, (ROWS,), generator=source).tolist()
        rows = torch.stack([tokens[start : start + LENGTH + 1] for start in starts])
        optimizer.zero_grad(set_to_none=True)
        logits = wrapped(rows[:, :-1], positions)
        loss = cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(wrapped.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    return step


def _wrap(model: "nn.Module", wrapper: str) -> "nn.Module":
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    match wrapper:
        case "ddp":
            return DistributedDataParallel(model, gradient_as_bucket_view=True)
        case "fsdp2":
            for layer in model.get_submodule("layers").children():
                fully_shard(layer)
            fully_shard(model)
            return model
        case _:
            raise ValueError(f"unknown wrapper {wrapper!r}")


BENCHMARKS: Final[tuple[Benchmark, ...]] = tuple(
    Steps(wrapper, guard=guard) for guard in (False, True) for wrapper in PARALLEL
)
