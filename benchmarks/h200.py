# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""GPUs of one machine: tokens/s and MFU of a model as large as fits, and what hardening costs.

``python benchmarks/h200.py [--ranks N] [--json OUT]``, or ``make test-gpu``, which runs it too. At
least two ranks, because alone nothing is reduced and the guard has next to nothing to do: one for
each GPU, or two that share one (over NCCL's sockets: such a figure says what hardening costs, and
nothing of how fast the machine is). Bfloat16, compiled blocks, FSDP2 over all ranks. Hardened is
the trainer with the guard on; plain is the same model in a loop by hand. Both take blocks of steps
in random order (ab.py). The model is the largest of `SIZES` that both fit into the memory with.
``--tiny --device cpu`` walks the same path without a GPU, in seconds; its figures mean nothing.
"""

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
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
from securetrain.testing.processes import run_ranks
from securetrain.train.composition import check_world
from securetrain.train.config import JobConfig, parse_job, shape_of
from securetrain.train.data import Rows
from securetrain.train.metrics import peak_flops
from securetrain.train.models.init_weights import init_weights
from securetrain.train.models.llama import Llama
from securetrain.train.models.llama_plan import LlamaPlan
from securetrain.train.models.shape import flops_per_token, num_parameters
from securetrain.train.setup import Worker, build

JOB: Final = """\
apiVersion: securetrain.dev/job/v1
kind: TrainJob
name: h200
steps: 100000
precision: bf16
model: {{dim: {dim}, layers: {layers}, heads: {heads}, ffn: {ffn}, vocab: {vocab}}}
data: {{seq_len: {length}, batch_rows: {batch_rows}}}
compute: {{compile: {compile}}}
eval: {{rows: {ranks}}}
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
    """Of one rank."""
    compiled: bool = True

    def job(self, ranks: int) -> JobConfig:
        """As a job of so many ranks."""
        fields = asdict(self)
        fields["compile"] = str(fields.pop("compiled")).lower()
        fields["batch_rows"] = fields.pop("rows") * ranks
        return parse_job(JOB.format(**fields, ranks=ranks), "h200")

    def memory(self, ranks: int) -> float:
        """Bytes that one of so many ranks needs for two copies of the model, ours and the one by
        hand, which wait for each other: an estimate that leans to more.
        """
        shape = shape_of(self.job(ranks))
        parameters = num_parameters(shape)
        # Parameters, their gradient and two moments in float32, over all ranks; on each, two
        # layers and the head as they are gathered, in bfloat16 and reduced in float32.
        states = 2 * 16 * parameters / ranks
        gathered = 2 * 6 * (2 * (parameters - 2 * shape.vocab * shape.dim) / shape.layers)
        gathered += 6 * 2 * shape.vocab * shape.dim
        tokens = self.rows * self.length
        # Activations of one backward pass: about 34 bytes for each number of the width, and 6
        # for each of the feed-forward network's; logits in bfloat16, float32 and their gradient.
        inside = tokens * shape.layers * (34 * shape.dim + 6 * shape.ffn)
        return states + gathered + inside + tokens * shape.vocab * 14 + SLACK


SLACK: Final = 4 << 30
"""Bytes for CUDA, NCCL's buffers and what the guard keeps."""
SIZES: Final = (
    Size(dim=4096, layers=16, heads=32, ffn=14336, vocab=32768, rows=2),
    Size(dim=3072, layers=16, heads=24, ffn=8192, rows=4),
    Size(),
    Size(rows=4),
    Size(rows=2),
    Size(dim=1536, layers=12, heads=12, ffn=6144, rows=2),
    Size(dim=1024, layers=12, heads=8, ffn=4096, length=2048, rows=2),
)
"""From the largest."""
USABLE: Final = 0.9
"""Of a GPU's memory."""
TINY: Final = Size(dim=32, layers=2, heads=2, ffn=64, vocab=64, length=32, rows=2, compiled=False)
PATIENCE: Final = 1800.0
"""Seconds for all blocks of a run: the first step of each side compiles."""
SHARED_GPU: Final = {
    "NCCL_MULTI_RANK_GPU_ENABLE": "1",  # NCCL 2.30 and later ask for it
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_CUMEM_ENABLE": "0",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_SOCKET_IFNAME": "=lo",
    "NCCL_NET": "Socket",
}
"""Settings for several ranks on one GPU: NCCL takes them for several hosts (nccl issue 418)."""


def size_for(memory: int, *, ranks: int, sharing: int) -> Size:
    """The largest size that fits.

    Args:
        memory: Of one GPU, in bytes.
        ranks: Of the run.
        sharing: Ranks on one GPU.

    Raises:
        ValueError: none does.
    """
    for size in SIZES:
        if size.memory(ranks) * sharing <= USABLE * memory:
            return size
    raise ValueError(f"no size fits into {memory / sharing / 2**30:.0f} GiB a rank")


def join_on_gpu(store: str, gpus: int) -> torch.device:
    """Leave the group that this rank is in for one with NCCL; several ranks may share a GPU."""
    rank, world = dist.get_rank(), dist.get_world_size()
    dist.destroy_process_group()
    if world > gpus:
        os.environ.update(SHARED_GPU, NCCL_HOSTID=f"host-{rank}")
    device = torch.device("cuda", rank % gpus)
    torch.cuda.set_device(device)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl",
        store=dist.FileStore(store, world),  # type: ignore[attr-defined]
        rank=rank,
        world_size=world,
        device_id=device,
    )
    return device


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
class Gpus:
    """Seconds for a block of steps; a `Benchmark`."""

    size: Size
    gpus: int
    """0: the CPU."""
    ranks: int = 2
    steps: int = 5
    pairs: int = 9
    name: str = "gpus"

    @property
    def title(self) -> str:
        """What is compared."""
        return f"steps of the trainer with the guard against by hand, {self.ranks} ranks"

    @property
    def goal(self) -> ab.Goal:
        """At least 0.98 of the plain throughput."""
        return ab.Goal(ratio=GOAL_RATIO)

    def run(self, order: Sequence[ab.Side]) -> list[float]:
        """Take one block for each entry, in ranks of their own."""
        with tempfile.TemporaryDirectory(prefix="h200-") as folder:
            store = str(Path(folder) / "store")
            found = run_ranks(_blocks, self.ranks, self, list(order), store, timeout=PATIENCE)
        return found[0]


def _blocks(what: Gpus, order: list[ab.Side], store: str) -> list[float]:
    device = join_on_gpu(store, what.gpus) if what.gpus else torch.device("cpu")
    loops = {ab.Side.OURS: hardened(what.size, device)}
    loops[ab.Side.PLAIN] = by_hand(what.size, device)

    def wait() -> None:
        dist.barrier()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    seconds = []
    for side in order:
        wait()
        started = time.perf_counter()
        for _ in range(what.steps):
            loops[side]()
        wait()
        seconds.append(time.perf_counter() - started)
    return seconds


def hardened(size: Size, device: torch.device) -> Callable[[], object]:
    """The trainer's step, gradients watched."""
    ranks = dist.get_world_size()
    job = size.job(ranks)
    worker = Worker(
        run=RunDir(Path("unused")),
        device=device,
        clock=lambda: datetime.now(UTC),
        stop=Never(),
        console=None,
    )
    mesh = make_mesh(check_world(job, ranks, "h200"), device.type)
    rows = Rows(Tokens(size.vocab), size.length, seed=1)
    return build(job, worker, mesh, Gradients(mode=GuardMode.DETECT), (rows, None)).train_step


def by_hand(size: Size, device: torch.device) -> Callable[[], object]:
    """The same model as a person writes it."""
    ranks = dist.get_world_size()
    job = size.job(ranks)
    shape = shape_of(job)
    with torch.device("meta"):
        model = Llama(shape)
    if size.compiled:
        apply_compile(model, LlamaPlan(), device)
    mesh = make_mesh(check_world(job, ranks, "h200"), device.type).fsdp
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
    source = torch.Generator().manual_seed(dist.get_rank())

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


def figures(what: Gpus, summary: ab.Summary, name: str | None) -> dict[str, Any]:
    """What the table does not say."""
    size, shape = what.size, shape_of(what.size.job(what.ranks))
    tokens = what.steps * size.rows * what.ranks * size.length
    speed = tokens / summary.ours_seconds
    peak = peak_flops(name)
    used = min(what.gpus, what.ranks)
    flops = flops_per_token(shape, size.length)
    return {
        "device": name or "CPU",
        "gpus": used,
        "ranks": what.ranks,
        "parameters": num_parameters(shape),
        "memory_estimate": size.memory(what.ranks),
        "tokens_per_second": speed,
        "mfu": None if peak is None else flops * speed / (peak * used),
        "mfu_goal": GOAL_MFU,
        "hardened_over_plain": 1 / summary.ratio,
        "hardened_over_plain_goal": 1 / GOAL_RATIO,
    }


def main(argv: list[str] | None = None) -> int:
    """Measure and print; 2 without the device that was asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--ranks", type=int, help="at least 2; one for each GPU when not given")
    parser.add_argument("--tiny", action="store_true", help="a model for trying the harness")
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--steps", type=int, default=5, help="steps in a block")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args(argv)
    if options.device == "cuda" and not torch.cuda.is_available():
        print("there is no GPU: nothing was measured", file=sys.stderr)
        return 2
    gpus = torch.cuda.device_count() if options.device == "cuda" else 0
    ranks = options.ranks or max(2, gpus)
    if ranks < 2:
        parser.error("alone nothing is reduced, and the guard costs next to nothing: --ranks 2")
    name, size = None, TINY
    if gpus:
        # Asked of the driver's properties: this process takes no memory of a GPU.
        properties = torch.cuda.get_device_properties(0)
        name = properties.name
        if not options.tiny:
            size = size_for(properties.total_memory, ranks=ranks, sharing=-(-ranks // gpus))
    elif not options.tiny:
        size = SIZES[-1]
    what = Gpus(size=size, gpus=gpus, ranks=ranks, steps=options.steps)
    summary = ab.measure(what, options.pairs, random.Random(0))  # noqa: S311
    values = figures(what, summary, name)
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
