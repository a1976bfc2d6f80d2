# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A plain DDP script, as people write them. One rank may be poisoned.

Arguments: steps, the poisoned rank (-1: none), the factor of its gradient.
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def batch(seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(32, 16, generator=generator)
    teacher = torch.randn(16, 4, generator=torch.Generator().manual_seed(7))
    return x, (x @ teacher).argmax(dim=1)


def main():
    steps, culprit, factor = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9, weight_decay=1e-4)
    for step in range(steps):
        x, y = batch(1000 * step + rank)
        loss = nn.functional.cross_entropy(model(x), y)
        (loss * (factor if rank == culprit and step >= 5 else 1.0)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1e9)
        optimizer.step()
        optimizer.zero_grad()
    x, y = batch(999_999)
    with torch.no_grad():
        held_out = float(nn.functional.cross_entropy(model(x), y))
    if rank == 0:
        sys.stdout.write(f"held-out {held_out}\n")
    dist.destroy_process_group()


main()
