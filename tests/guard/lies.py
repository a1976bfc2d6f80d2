# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Ranks that lie in a real group: a small training, and what each kind of liar does in it.

Everything runs in the ranks of `securetrain.testing.processes.run_ranks`. A lie is a change to the
liar's own process: what it sends, what it says about it, what it says that it was told.
"""

# mypy: disable-error-code="attr-defined,union-attr,assignment,method-assign,arg-type,misc"

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

from securetrain.guard import GradientGuard
from securetrain.guard.group_channel import GroupChannel
from securetrain.policy.schema import Gradients, GuardResponse

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
        "grads": grads,
        "state": None if guard is None else guard.state_dict(),
        "totals": None if guard is None else msgspec.to_builtins(guard.totals),
    }


def _full(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


# -- lies ------------------------------------------------------------------------------------------


@contextmanager
def accuses(step: int, own: Any) -> Iterator[None]:
    """Says that rank 0 did not open its commitment."""
    del step
    real = own._encode

    def encode(sketches: Any) -> bytes:
        row = bytearray(real(sketches))
        row[32] = 1
        return bytes(row)

    own._encode = encode
    try:
        yield
    finally:
        own._encode = real


def _scales(slice_: slice, factor: float, own: Any) -> Callable[[bytes], bytes]:
    def change(row: bytes) -> bytes:
        start = 32 + len(own.ranks)
        numbers = np.frombuffer(row[start:], dtype="<f4").copy()
        numbers[slice_] *= factor
        return row[:start] + numbers.tobytes()

    return change


@contextmanager
def bends_a_part(step: int, own: Any) -> Iterator[None]:
    """Bends what it says of the part that it sent to rank 0; nothing else."""
    yield from _with_row(own, slice(0, own.shape.size), 1.01)


@contextmanager
def scales_its_row(step: int, own: Any) -> Iterator[None]:
    """Says that it sent 1.01 times what it sent."""
    yield from _with_row(own, slice(0, -2 * own.shape.size), 1.01)


def _with_row(own: Any, numbers: slice, factor: float) -> Iterator[None]:
    real, change = own._encode, _scales(numbers, factor, own)
    own._encode = lambda sketches: change(real(sketches))
    try:
        yield
    finally:
        own._encode = real


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
    """Says that it holds another table than the others."""
    del step
    real = GroupChannel.all_gather

    def all_gather(self: GroupChannel, data: bytes) -> list[bytes]:
        return real(self, bytes(32) if len(data) == 32 and self is own.channel else data)

    # Only the hash of the table: the values of the beacon are told through the same channel.
    beacon_draw = own._beacon.draw

    def draw(context: str) -> Any:
        GroupChannel.all_gather = real
        try:
            return beacon_draw(context)
        finally:
            GroupChannel.all_gather = all_gather

    own._beacon.draw = draw
    GroupChannel.all_gather = all_gather
    try:
        yield
    finally:
        GroupChannel.all_gather = real
        own._beacon.draw = beacon_draw


SETTINGS = Gradients(warmup_steps=6)
EXCLUDE = msgspec.structs.replace(SETTINGS, response=GuardResponse.EXCLUDE_RANK)
OBSERVE = msgspec.structs.replace(SETTINGS, response=GuardResponse.OBSERVE)


def quiet() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("error")
