# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The row of the optimizer's first moment is that of the real moment, whoever owns which shard."""

import math
from typing import Any

import pytest
import torch
from torch import nn

from securetrain.testing.processes import run_ranks
from tests.tables import items

RANKS = 2


def lengths(kind: str, optimizer: str) -> list[tuple[float, float]]:
    """Length of the moment's row and of the moment itself, step by step."""
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    from securetrain.guard import GradientGuard
    from securetrain.policy.schema import Gradients

    torch.set_num_threads(1)
    torch.manual_seed(1)
    # Odd sizes: shards are padded.
    model: Any = nn.Sequential(nn.Linear(37, 51), nn.Tanh(), nn.Linear(51, 13))
    if kind == "ddp":
        model = DistributedDataParallel(model)
    else:
        fully_shard(model[0])
        fully_shard(model)
    made = {
        "adamw": lambda: torch.optim.AdamW(model.parameters()),
        "sgd": lambda: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
    }[optimizer]()
    guard = GradientGuard(None, Gradients())
    guard.attach(model, optimizer=made)
    seen = []
    for step in range(4):
        x = torch.randn(8, 37, generator=torch.Generator().manual_seed(step))
        model(x).square().mean().backward()
        key = "exp_avg" if optimizer == "adamw" else "momentum_buffer"
        moments = [s[key] for s in made.state.values() if key in s]
        whole = [m.full_tensor() if hasattr(m, "full_tensor") else m for m in moments]
        real = math.sqrt(sum(float(m.double().square().sum()) for m in whole))
        verdict = guard.judge(step)
        assert verdict.ok, verdict.reason
        watch: Any = guard._watches[0]
        row = watch.rows.momentum
        said = 0.0 if row is None else float((row.sum(axis=0) ** 2).sum() ** 0.5)
        seen.append((said, real))
        made.step()
        made.zero_grad()
    return seen


@pytest.mark.dist
@items("kind, optimizer", ("ddp", "adamw"), ("fsdp", "adamw"), ("fsdp", "sgd"))
def test_the_row_stands_for_the_optimizers_moment(kind, optimizer):
    for seen in run_ranks(lengths, RANKS, kind, optimizer, timeout=60):
        assert seen[0] == (0.0, 0.0), "there is none before the first step"
        for said, real in seen[1:]:
            assert said == pytest.approx(real, rel=0.5)
            assert real > 0
