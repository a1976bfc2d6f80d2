# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""One GPU: tokens/s and MFU of a model of 1.1 B parameters, and what hardening costs there.

``python benchmarks/h200.py [--json OUT]``, or ``make test-gpu``, which runs it too. Positions 4096,
bfloat16, compiled blocks, FSDP2 over one rank (which casts and sends nothing). Hardened is the
trainer with the guard on; plain is the same model in a loop by hand. Both take blocks of steps in
random order (ab.py). ``--tiny --device cpu`` walks the same path without a GPU, in seconds; its
figures mean nothing.
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.functional import cross_entropy

from benchmarks import ab
from securetrain.core.rundir import RunDir
from securetrain.parallel.compile import apply_compile
from securetrain.parallel.mesh import make_mesh
from securetrain.policy.schema import Gradients, GuardMode
from securetrain.train.composition import check_world
from securetrain.train.config import JobConfig, parse_job, shape_of
from securetrain.train.data import Rows
from securetrain.train.metrics import peak_flops
from securetrain.train.models.init_weights import init_weights
from securetrain.train.models.llama import Llama
from securetrain.train.models.llama_plan import LlamaPlan
from securetrain.train.models.shape import flops_per_token, num_parameters
from securetrain.train.process import start_group
from securetrain.train.setup import Worker, build

JOB: Final = """\
apiVersion: securetrain.dev/job/v1
kind: TrainJob
name: h200
steps: 100000
precision: bf16
model: {{dim: {dim}, layers: {layers}, heads: {heads}, ffn: {ffn}, vocab: {vocab}}}
data: {{seq_len: {length}, batch_rows: {rows}}}
compute: {{compile: {compile}}}
eval: {{rows: 1}}
"""
GOAL_MFU: Final = 0.45
GOAL_RATIO: Final = 1 / 0.98


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """A model and its rows."""

    dim: int = 2048
    layers: int = 16
    heads: int = 16
    ffn: int = 8192
    vocab: int = 8192
    length: int = 4096
    rows: int = 8
    compiled: bool = True

    @property
    def job(self) -> JobConfig:
        """As a job."""
        fields = asdict(self)
        fields["compile"] = str(fields.pop("compiled")).lower()
        return parse_job(JOB.format(**fields), "h200")


TINY: Final = Size(dim=32, layers=2, heads=2, ffn=64, vocab=64, length=32, rows=2, compiled=False)


class Never:
    """Nobody asks the benchmark to stop."""

    requested = False


class Tokens:
    """A stream that is in memory already."""

    name = "train"
    where = "h200"
    shuffles = False

    def __init__(self, vocab: int) -> None:
        self.vocab = vocab
        source = torch.Generator().manual_seed(1)
        self.tokens = torch.randint(vocab, (1 << 20,), generator=source)

    def __len__(self) -> int:
        return len(self.tokens)

    def read(self, start: int, count: int, epoch: int) -> torch.Tensor:
        """Tokens."""
        del epoch
        return self.tokens[start : start + count]

    def byte_ranges(self, start: int, count: int, epoch: int) -> list[Any]:
        """Nobody asks."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class OneGpu:
    """Seconds for a block of steps; a `Benchmark`."""

    size: Size
    device: torch.device
    steps: int = 5
    pairs: int = 9
    name: str = "one-gpu"
    title: str = "steps of the trainer with the guard against by hand, one GPU"

    @property
    def goal(self) -> ab.Goal:
        """At least 0.98 of the plain throughput."""
        return ab.Goal(ratio=GOAL_RATIO)

    def run(self, order: Sequence[ab.Side]) -> list[float]:
        """Take one block for each entry, in this process."""
        loops = {ab.Side.OURS: hardened(self.size, self.device)}
        loops[ab.Side.PLAIN] = by_hand(self.size, self.device)
        seconds = []
        for side in order:
            self._wait()
            started = time.perf_counter()
            for _ in range(self.steps):
                loops[side]()
            self._wait()
            seconds.append(time.perf_counter() - started)
        return seconds

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def hardened(size: Size, device: torch.device) -> Callable[[], object]:
    """The trainer's step, gradients watched."""
    job = size.job
    worker = Worker(
        run=RunDir(Path("unused")),
        device=device,
        clock=lambda: datetime.now(UTC),
        stop=Never(),
        console=None,
    )
    mesh = make_mesh(check_world(job, 1, "h200"), device.type)
    rows = Rows(Tokens(size.vocab), size.length, seed=1)
    return build(job, worker, mesh, Gradients(mode=GuardMode.DETECT), (rows, None)).train_step


def by_hand(size: Size, device: torch.device) -> Callable[[], object]:
    """The same model as a person writes it."""
    shape = shape_of(size.job)
    with torch.device("meta"):
        model = Llama(shape)
    if size.compiled:
        apply_compile(model, LlamaPlan(), device)
    mesh = make_mesh(check_world(size.job, 1, "h200"), device.type).fsdp
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.layers.values():
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=replace(policy, cast_forward_inputs=False))
    model.to_empty(device=device)
    init_weights(model, 1, shape)
    return loop(model, Tokens(size.vocab).tokens, size, device)


def loop(
    model: nn.Module, tokens: torch.Tensor, size: Size, device: torch.device
) -> Callable[[], float]:
    """Forward, backward, clip, step, and the loss as a number."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    positions = torch.arange(size.length, device=device)
    source = torch.Generator().manual_seed(0)

    def step() -> float:
        ends = len(tokens) - size.length
        starts = torch.randint(ends, (size.rows,), generator=source).tolist()
        rows = torch.stack([tokens[start : start + size.length + 1] for start in starts])
        rows = rows.to(device)
        optimizer.zero_grad(set_to_none=True)
        logits = model(rows[:, :-1], positions).float()
        loss = cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    return step


def figures(size: Size, summary: ab.Summary, steps: int, name: str | None) -> dict[str, Any]:
    """What the table does not say."""
    shape = shape_of(size.job)
    speed = steps * size.rows * size.length / summary.ours_seconds
    peak = peak_flops(name)
    flops = flops_per_token(shape, size.length)
    return {
        "device": name or "CPU",
        "parameters": num_parameters(shape),
        "tokens_per_second": speed,
        "mfu": None if peak is None else flops * speed / peak,
        "mfu_goal": GOAL_MFU,
        "hardened_over_plain": 1 / summary.ratio,
        "hardened_over_plain_goal": 1 / GOAL_RATIO,
    }


def main(argv: list[str] | None = None) -> int:
    """Measure and print; 2 without the device that was asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a model for trying the harness")
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--steps", type=int, default=5, help="steps in a block")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args(argv)
    if options.device == "cuda" and not torch.cuda.is_available():
        print("there is no GPU: nothing was measured", file=sys.stderr)
        return 2
    started = not dist.is_initialized()
    found = start_group({}, timedelta(minutes=10)) if started else torch.device("cpu")
    device = found if options.device == "cuda" else torch.device("cpu")
    size = TINY if options.tiny else Size()
    try:
        benchmark = OneGpu(size=size, device=device, steps=options.steps)
        summary = ab.measure(benchmark, options.pairs, random.Random(0))  # noqa: S311
    finally:
        if started:
            dist.destroy_process_group()
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    values = figures(size, summary, options.steps, name)
    print(ab.table([summary]))
    for key, value in values.items():
        print(f"{key}: {value:,.4g}" if isinstance(value, float) else f"{key}: {value}")
    if options.json:
        document = {
            "date": datetime.now(UTC).date().isoformat(),
            "machine": ab.machine(),
            "results": [asdict(summary)],
            "figures": values,
        }
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(document, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
