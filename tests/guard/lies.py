# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Ranks that lie in a real group: a small training, and what each kind of liar does in it.

Everything runs in the ranks of `securetrain.testing.processes.run_ranks`. A lie is a change to the
liar's own process: what it sends, what it says about it, what it says that it was told.
"""

# mypy: disable-error-code="attr-defined,union-attr,assignment,method-assign,arg-type,misc"

import dataclasses
import random
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from securetrain.guard import GradientGuard, hooks, watch
from securetrain.policy.schema import Gradients, GuardResponse
from tests.guard.drawn import KINDS, lie

LIAR = 2
START = 8
STEPS = 14


def build(kind: str, *, views: bool = False) -> nn.Module:
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Linear(32, 96), nn.Tanh(), nn.Linear(96, 96), nn.Tanh(), nn.Linear(96, 8)
    )
    if kind == "ddp":
        return DistributedDataParallel(model, bucket_cap_mb=0.02, gradient_as_bucket_view=views)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def batch(step: int, rank: int, rows: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    teacher = torch.randn(32, 8, generator=torch.Generator().manual_seed(0))
    x = torch.randn(rows, 32, generator=generator)
    return x, (x @ teacher).argmax(dim=1)


def train(
    kind: str,
    settings: Gradients | None,
    *,
    factor: Callable[[int], float] | None = None,
    lie: Callable[[int, Any], Any] | None = None,
    without: int | None = None,
    drop: Collection[int] = (),
    views: bool = False,
    steps: int = STEPS,
    liars: Collection[int] = (LIAR,),
    keep_grads: bool = False,
) -> dict[str, Any]:
    """Train, and say what came of it.

    Args:
        kind: ddp or fsdp.
        settings: of the guard; None for none.
        factor: of the liar's loss in a step.
        lie: a context manager that is entered for each step of the liar, with its watch.
        without: from START on this rank's gradient is replaced by the mean of the others', which is
            what a run without that rank would have.
        drop: steps whose gradients are not used.
        views: of DDP's gradients into its buckets.
        steps: of the training.
        liars: the bad ranks.
        keep_grads: whether to gather every step's whole gradients, which costs as much as a step.
    """
    rank = dist.get_rank()
    model = build(kind, views=views)
    guard = None
    if settings is not None:
        guard = GradientGuard(None, settings)
        guard.attach(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    verdicts, grads = [], []
    for step in range(steps):
        x, y = batch(step, rank)
        scale = factor(step) if factor is not None and rank in liars and step >= START else 1.0
        if without is not None and step >= START:
            scale = 0.0 if rank == without else dist.get_world_size() / (dist.get_world_size() - 1)
        loss = nn.functional.cross_entropy(model(x), y) * scale
        lying = lie is not None and rank in liars and step >= START and guard is not None
        if lying:
            with lie(step, guard._watches[0]):
                loss.backward()
                verdicts.append(guard.judge(step))
        else:
            loss.backward()
            if guard is not None:
                verdicts.append(guard.judge(step))
        if keep_grads:
            grads.append(
                [None if p.grad is None else _full(p.grad).clone() for p in model.parameters()]
            )
        if step not in drop:  # the guard drops by itself
            optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        x, y = batch(10_000, 0, rows=2048)
        held_out = float(nn.functional.cross_entropy(model(x), y))
    parameters = [_full(p.detach()) for p in model.parameters()]
    return {
        "verdicts": [msgspec.json.decode(msgspec.json.encode(v)) for v in verdicts],
        "held_out": held_out,
        "finite": all(bool(torch.isfinite(p).all()) for p in parameters),
        "sum": float(sum(p.double().abs().sum() for p in parameters)),
        **({"grads": grads} if keep_grads else {}),
        "state": None if guard is None else guard.state_dict(),
        "totals": None if guard is None else msgspec.to_builtins(guard.totals),
    }


def _full(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


# -- lies ------------------------------------------------------------------------------------------


@contextmanager
def bends_a_part(step: int, own: Any) -> Iterator[None]:
    """Bends what it says of the part that it sent to rank 0; nothing else."""
    del step
    yield from _with_rows(own, slice(0, 1), 1.01)


@contextmanager
def scales_its_row(step: int, own: Any) -> Iterator[None]:
    """Says that it sent 1.01 times what it sent, in all rows about it."""
    del step
    yield from _with_rows(own, None, 1.01)


def _with_rows(own: Any, parts: slice | None, factor: float) -> Iterator[None]:
    real = watch.encode

    def encode(sketches: Any) -> bytes:
        said = sketches.parts.copy()
        said[slice(None) if parts is None else parts] *= factor
        groups = sketches.sent * (factor if parts is None else 1.0)
        return real(dataclasses.replace(sketches, parts=said, sent=groups))

    watch.encode = encode
    try:
        yield
    finally:
        watch.encode = real


@contextmanager
def sends_other_than_it_says(step: int, own: Any) -> Iterator[None]:
    """Sends its gradient times -5 and sketches the honest one."""
    del step, own
    real_reduce = dist.all_reduce

    def all_reduce(tensor: torch.Tensor, **options: Any) -> Any:
        return real_reduce(tensor.mul_(-5.0) if options.get("async_op") else tensor, **options)

    dist.all_reduce = all_reduce
    try:
        yield
    finally:
        dist.all_reduce = real_reduce


@contextmanager
def tells_another_hash(step: int, own: Any) -> Iterator[None]:
    """Says with its first draw that it held another table than the others."""
    del step
    own.beacon.tell = bytes(31) + b"x"
    yield
    own.beacon.tell = bytes(31) + b"x"


@contextmanager
def patched(where: Any, name: str, value: Any) -> Iterator[None]:
    """`where.name` is another thing for a while."""
    real = getattr(where, name)
    setattr(where, name, value)
    try:
        yield
    finally:
        setattr(where, name, real)


def drawn(seed: int, kind: str) -> tuple[str, Callable[[int, Any], Any]]:
    """A lie on any message of the protocol, or on what is reduced, as `train` takes it."""
    source = random.Random(seed)
    if source.random() < 0.3:
        factor, steps = source.choice((-5.0, -1.0, 0.0, 1.5, 1e6)), source.choice((1, STEPS))
        name = f"sends {factor} times what it says, for {steps} steps"
        return name, lambda step, own: _sends(kind, factor if step < START + steps else 1.0)
    name, tamper = lie(source, [one for one in KINDS if one not in {"equivocate", "silence"}])
    count = iter(range(1 << 20))

    def lying(step: int, own: Any) -> Any:
        del step
        real = own.channel.all_gather
        return patched(own.channel, "all_gather", lambda data: real(tamper(next(count), data)))

    return name, lying


@contextmanager
def _sends(kind: str, factor: float) -> Iterator[None]:
    """Sends its gradient times a factor and sketches the honest one."""
    real_reduce, real_scatter = dist.all_reduce, hooks._reduce_scatter

    def all_reduce(tensor: torch.Tensor, **options: Any) -> Any:
        return real_reduce(tensor.mul_(factor) if options.get("async_op") else tensor, **options)

    def scatter(output: torch.Tensor, local: torch.Tensor, **options: Any) -> Any:
        return real_scatter(output, local * factor, **options)

    if kind == "ddp":
        with patched(dist, "all_reduce", all_reduce):
            yield
    else:
        with patched(hooks, "_reduce_scatter", scatter):
            yield


def against_each_other(large: float) -> Callable[[int, Any], Any]:
    """Two liars shift what they say of two parts, the one by as much as the other takes away: sums
    and means are those of the honest rows. The first of them sends its gradient times -5.
    """

    @contextmanager
    def lying(step: int, own: Any) -> Iterator[None]:
        first, real = dist.get_rank() == LIAR, watch.encode

        def encode(sketches: Any) -> bytes:
            said = sketches.parts.copy()
            shift = np.random.default_rng(step).standard_normal(said.shape[1]) * large
            said[0] += shift if first else -shift
            said[1] -= shift if first else -shift
            return real(dataclasses.replace(sketches, parts=said))

        with patched(watch, "encode", encode), _sends("fsdp", -5.0 if first else 1.0):
            yield

    return lying


SETTINGS = Gradients(warmup_steps=6)
EXCLUDE = msgspec.structs.replace(SETTINGS, response=GuardResponse.EXCLUDE_RANK)
OBSERVE = msgspec.structs.replace(SETTINGS, response=GuardResponse.OBSERVE)


def quiet() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("error")
