# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A plain script with fully_shard, as people write them. One rank may be poisoned.

Arguments: those of `worlds`.
"""

# mypy: ignore-errors

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from worlds import batch, trainings


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


if __name__ == "__main__":
    dist.init_process_group("gloo")
    trainings(train)
    dist.destroy_process_group()
