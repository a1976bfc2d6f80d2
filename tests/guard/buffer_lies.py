# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A first rank that broadcasts other buffers than it has computed, in a script's own DDP loop.

Everything runs in the ranks of `securetrain.testing.processes.run_ranks`, with the seams of
`securetrain run` in place or without.
"""

# mypy: ignore-errors

import math

import msgspec
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import distributed

from securetrain.policy.schema import GuardResponse
from tests.guard import after_verdict, lies
from tests.guard.after_verdict import RECORDS

SEAMS = ("torch.nn.parallel.distributed", "torch.optim.optimizer")
START, STEPS, LONG = 4, 10, 160


class Model(nn.Module):
    """Batch normalization, a counter, and numbers that nobody changes."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(32, 96), nn.BatchNorm1d(96)
        self.last = nn.Linear(96, 8)
        self.register_buffer("waves", torch.linspace(0.5, 1.5, 96))

    def forward(self, x):
        return self.last(torch.tanh(self.norm(self.first(x))) * self.waves)


def poison(value):
    def change(model, _step):
        model.norm.running_mean[3] = value

    return change


def scaled(factor):
    def change(model, _step):
        model.norm.running_var.mul_(factor)

    return change


def waves(model, _step):
    model.waves.mul_(1.1)


ATTACKS = {
    "nan": poison(math.nan),
    "huge": poison(1e18),
    "var times 3": scaled(3.0),
    "waves": waves,
}


def train(*, guarded=True, change=None, steps=STEPS, response=GuardResponse.SKIP_STEP, liar=0):
    """The script's own loop; rank 0 changes its buffers before each broadcast from START on."""
    after_verdict.fresh(response)
    rank = dist.get_rank()
    torch.manual_seed(1)
    wrap = distributed.DistributedDataParallel
    ddp = wrap(Model()) if guarded else plain(wrap)(Model())
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=3e-3)
    losses = []
    for step in range(steps):
        if change is not None and rank == liar and step >= START:
            with torch.no_grad():
                change(ddp.module, step)
        x, y = lies.batch(step, rank)
        loss = nn.functional.cross_entropy(ddp(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    ddp.eval()
    with torch.no_grad():
        x, y = lies.batch(10_000, 0, rows=2048)
        held_out = float(nn.functional.cross_entropy(ddp.module(x), y))
    return {
        "losses": losses,
        "held_out": held_out,
        "buffers": {n: b.flatten().tolist() for n, b in ddp.module.named_buffers()},
        "verdicts": [msgspec.json.decode(msgspec.json.encode(v)) for v in RECORDS],
    }


def plain(wrap):
    """DDP without the seams."""
    found = wrap.__init__

    def make(model):
        ddp = wrap.__new__(wrap)
        getattr(found, "__wrapped__", found)(ddp, model)
        return ddp

    return make


def few():
    lies.quiet()
    found = {"clean, plain": train(guarded=False)}
    for name in ("nan", "var times 3"):
        found[f"{name}, plain"] = train(guarded=False, change=ATTACKS[name])
    after_verdict.install(*SEAMS)
    found["clean"] = train()
    for name, change in ATTACKS.items():
        found[name] = train(change=change)
    found["observe"] = train(change=ATTACKS["nan"], response=GuardResponse.OBSERVE)
    found["another liar"] = train(change=ATTACKS["nan"], liar=2)
    return found


def long():
    lies.quiet()
    after_verdict.install(*SEAMS)
    return {
        "clean": train(steps=LONG),
        "slow": train(steps=LONG, change=scaled(1.02)),
        "slow, plain": train(steps=LONG, change=scaled(1.02), guarded=False),
    }
