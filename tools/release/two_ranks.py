# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A few steps of two ranks: what a wheel must be able to protect wherever torch is beside it."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    """Train, and say that all ranks have the same weights."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        torch.manual_seed(100 * step + dist.get_rank())
        optimizer.zero_grad()
        model(torch.randn(4, 8)).pow(2).mean().backward()
        optimizer.step()
    total = torch.stack([one.detach().sum() for one in model.parameters()]).sum()
    both = [torch.zeros(()) for _ in range(dist.get_world_size())]
    dist.all_gather(both, total)
    if dist.get_rank() == 0:
        print(f"ranks: {len(both)}, equal: {len({float(one) for one in both}) == 1}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
