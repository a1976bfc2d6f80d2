# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A task with noise for the scripts beside it, and the trainings that their arguments ask for.

Arguments: steps, the poisoned rank (-1: none), factors of its loss after a sixth of the steps,
seeds. A script trains once for each factor and seed.
"""

# mypy: ignore-errors

import os
import sys

import torch
import torch.distributed as dist
from torch import nn


def batch(seed, number=32):
    """Rows whose labels a teacher draws: no model predicts all of them."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(number, 16, generator=generator)
    teacher = torch.randn(16, 4, generator=torch.Generator().manual_seed(7))
    chances = (x @ teacher / 2).softmax(dim=1)
    return x, torch.multinomial(chances, 1, generator=generator).flatten()


class Rows(torch.utils.data.Dataset):
    """The same as a data set."""

    def __init__(self, number, seed):
        self.x, self.y = batch(seed, number)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], self.y[index]


def trainings(train):
    """Train, and say what came of each."""
    steps, culprit = int(sys.argv[1]), int(sys.argv[2])
    for factor in sys.argv[3].split(","):
        for seed in sys.argv[4].split(","):
            result = train(steps, culprit, float(factor), int(seed))
            if os.environ["RANK"] == "0":
                sys.stdout.write(f"held-out {factor} {seed} {result}\n")


def main(build, clip=lambda _: None):
    """A plain script around one model: what it wraps, and how it clips, is all that differs."""

    def train(steps, culprit, factor, seed):
        rank = dist.get_rank()
        torch.manual_seed(seed)
        model = build()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.01, steps)
        for step in range(steps):
            x, y = batch(seed * 1_000_000 + 1000 * step + rank)
            loss = nn.functional.cross_entropy(model(x), y)
            (loss * (factor if rank == culprit and step >= steps // 6 else 1.0)).backward()
            clip(model)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        x, y = batch(999_999, 4096)
        with torch.no_grad():
            return float(nn.functional.cross_entropy(model(x), y))

    dist.init_process_group("gloo")
    trainings(train)
    dist.destroy_process_group()
