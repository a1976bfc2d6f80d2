# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A plain script with fully_shard that logs its gradient's norm and clips. One rank may be hostile.

Arguments: steps, the hostile rank (-1: none), the number that it writes into its own shard once the
norm was logged.
"""

# mypy: disable-error-code="misc,union-attr,attr-defined"

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.utils import clip_grad_norm_, get_total_norm


def batch(seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(32, 16, generator=generator)
    teacher = torch.randn(16, 4, generator=torch.Generator().manual_seed(7))
    return x, (x @ teacher).argmax(dim=1)


def main():
    steps, culprit, number = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
    for layer in (model[0], model[2]):
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9, weight_decay=1e-4)
    for step in range(steps):
        x, y = batch(1000 * step + rank)
        nn.functional.cross_entropy(model(x), y).backward()
        norm = get_total_norm([p.grad for p in model.parameters()])
        if rank == culprit and step >= 5:
            for parameter in model.parameters():
                parameter.grad.to_local().fill_(number)
        clip_grad_norm_(model.parameters(), 2.0)
        optimizer.step()
        optimizer.zero_grad()
    x, y = batch(999_999)
    with torch.no_grad():
        held_out = float(nn.functional.cross_entropy(model(x), y))
    if rank == 0:
        sys.stdout.write(f"held-out {held_out} norm {float(norm.full_tensor())}\n")
    dist.destroy_process_group()


main()
