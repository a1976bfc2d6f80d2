# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A plain script with fully_shard, as people write them. One rank may be poisoned.

Arguments: steps, the poisoned rank (-1: none), factors of its loss after a sixth of the steps,
seeds. It trains once for each factor and seed.
"""

# mypy: ignore-errors

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


def batch(seed, number=32):
    """Rows whose labels a teacher draws: no model predicts all of them."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(number, 16, generator=generator)
    teacher = torch.randn(16, 4, generator=torch.Generator().manual_seed(7))
    chances = (x @ teacher / 2).softmax(dim=1)
    return x, torch.multinomial(chances, 1, generator=generator).flatten()


def train(steps, culprit, factor, seed):
    rank = dist.get_rank()
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
    for layer in (model[0], model[2]):
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.01, steps)
    for step in range(steps):
        x, y = batch(seed * 1_000_000 + 1000 * step + rank)
        loss = nn.functional.cross_entropy(model(x), y)
        (loss * (factor if rank == culprit and step >= steps // 6 else 1.0)).backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    x, y = batch(999_999, 4096)
    with torch.no_grad():
        return float(nn.functional.cross_entropy(model(x), y))


def main():
    steps, culprit = int(sys.argv[1]), int(sys.argv[2])
    dist.init_process_group("gloo")
    for factor in sys.argv[3].split(","):
        for seed in sys.argv[4].split(","):
            result = train(steps, culprit, float(factor), int(seed))
            if dist.get_rank() == 0:
                sys.stdout.write(f"held-out {factor} {seed} {result}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
