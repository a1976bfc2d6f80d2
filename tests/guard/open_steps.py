# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A liar in a sharded model whose unreduced gradients are not kept, or whose shards have copies."""

# mypy: ignore-errors

from contextlib import contextmanager

import msgspec
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from securetrain.guard import GradientGuard, hooks, rereduction
from securetrain.policy.schema import GuardResponse
from tests.guard import lies

LIAR, START = lies.LIAR, 6
STEPS = 14
BUDGETS = {"large": 1, "small": 64 << 20}
"""Bytes that may be kept."""


def build(kind):
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Linear(32, 96), nn.Tanh(), nn.Linear(96, 96), nn.Tanh(), nn.Linear(96, 8)
    )
    size = dist.get_world_size()
    mesh = init_device_mesh("cpu", (size,))
    if kind == "hsdp":
        mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("replicate", "shard"))
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def train(kind, *, lie=None, budget="large", response=GuardResponse.SKIP_STEP, factor=None):
    """Train; the liar lies in each step from START on."""
    settings = msgspec.structs.replace(lies.SETTINGS, response=response)
    model = build(kind)
    guard = GradientGuard(None, settings, retain_bytes=BUDGETS[budget])
    guard.attach(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    rank, verdicts, opened = dist.get_rank(), [], []
    for step in range(STEPS):
        x, y = lies.batch(step, rank)
        loss = nn.functional.cross_entropy(model(x), y)
        if factor is not None and rank == LIAR and step >= START:
            loss = loss * factor
        lying = lie is not None and rank == LIAR and step >= START
        with lie(step, guard._watches[0]) if lying else nothing():
            opened.append(guard._watches[0]._open.active)
            loss.backward()
            verdicts.append(guard.judge(step))
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        x, y = lies.batch(10_000, 0, rows=2048)
        held_out = float(nn.functional.cross_entropy(model(x), y))
    return {
        "verdicts": [msgspec.json.decode(msgspec.json.encode(v)) for v in verdicts],
        "held_out": held_out,
        "opened": opened,
        "finite": all(bool(torch.isfinite(lies._full(p)).all()) for p in model.parameters()),
        "evidence": [e for v in verdicts[-1:] for e in (s.evidence for s in v.table)],
    }


@contextmanager
def nothing():
    yield


@contextmanager
def sends_other_than_it_says(step, own):
    """Its gradient times -5 goes out; it sketches the honest one."""
    real = hooks._reduce_scatter

    def reduce_scatter(output, local, **options):
        return real(output, local * -5.0, **options)

    hooks._reduce_scatter = reduce_scatter
    try:
        yield
    finally:
        hooks._reduce_scatter = real


@contextmanager
def accuses(step, own, victims=(0,)):
    """As an owner it says that it heard something else from others."""
    with lies.scales_its_row(step, own), _with_table(heard=victims):
        yield


@contextmanager
def denies(step, own):
    """As a sender it says that it sent other numbers than it did, to one owner after another."""
    with lies.scales_its_row(step, own), _with_table(sent=(step % dist.get_world_size(),)):
        yield


@contextmanager
def complains(step, own):
    """It says that it got something else than the owners sent."""
    with lies.scales_its_row(step, own), _with_table(got=True):
        yield


@contextmanager
def _with_table(*, sent=(), heard=(), got=False):
    real = rereduction.torch.cat

    def cat(tensors, **options):
        if len(tensors) == 5 and tensors[0].ndim == 2:
            said, listened, received, mean, moment = (t.clone() for t in tensors)
            for part in sent:
                said[part % len(said)] *= 1.01
            for rank in heard:
                listened[rank] *= 1.01
            received *= 1.01 if got else 1.0
            tensors = [said, listened, received, mean, moment]
        return real(tensors, **options)

    rereduction.torch = _Torch(cat)
    try:
        yield
    finally:
        rereduction.torch = torch


class _Torch:
    """Torch with another `cat`, for one module of this rank."""

    def __init__(self, cat):
        self.cat = cat

    def __getattr__(self, name):
        return getattr(torch, name)


LIES = {
    "bends a part": lies.bends_a_part,
    "scales its row": lies.scales_its_row,
    "tells another hash": lies.tells_another_hash,
    "sends other than it says": sends_other_than_it_says,
    "accuses": accuses,
    "denies": denies,
    "complains": complains,
}
FAULTS = {"nan": float("nan"), "flips": -40.0}


def campaign(kind, budget, names):
    lies.quiet()
    found = {"clean": train(kind, budget=budget)}
    for name in names:
        if name in LIES:
            found[name] = train(kind, lie=LIES[name], budget=budget)
        else:
            found[name] = train(kind, factor=FAULTS[name], budget=budget)
    return found
