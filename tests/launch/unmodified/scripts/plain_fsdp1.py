# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A plain script with FSDP1, as people wrote them. One rank may be poisoned.

Arguments: those of `worlds`.
"""

# mypy: ignore-errors

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from worlds import batch, trainings


def train(steps, culprit, factor, seed):
    rank = dist.get_rank()
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
    cpu = torch.device("cpu")
    for index in (0, 2):
        model[index] = FullyShardedDataParallel(model[index], device_id=cpu, use_orig_params=True)
    model = FullyShardedDataParallel(model, device_id=cpu, use_orig_params=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.01, steps)
    for step in range(steps):
        x, y = batch(seed * 1_000_000 + 1000 * step + rank)
        loss = nn.functional.cross_entropy(model(x), y)
        (loss * (factor if rank == culprit and step >= steps // 6 else 1.0)).backward()
        model.clip_grad_norm_(1e9)
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
