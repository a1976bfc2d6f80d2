# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A script of somebody else's, which does one thing that no seam of torch's wrappers shows."""

import os
import subprocess
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

PLACE, HOW = Path(sys.argv[1]), sys.argv[2]
OTHER = "import torch; torch.save(torch.nn.Linear(2, 2).state_dict(), r'{}')"


def train():
    model = DistributedDataParallel(torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
    if dist.get_rank() == 0:
        torch.save(model.module.state_dict(), PLACE / "weights.pt")


def by_hand():
    weight = torch.zeros(4, requires_grad=True)
    for _ in range(3):
        (torch.randn(8, 4) @ weight - 1).square().mean().backward()
        assert weight.grad is not None
        dist.all_reduce(weight.grad)
        with torch.no_grad():
            weight -= 0.01 * weight.grad
        weight.grad = None
    (PLACE / f"weights-{dist.get_rank()}.bin").write_bytes(weight.detach().numpy().tobytes())


def one_of_two(rank):
    os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)
    dist.init_process_group("gloo", init_method=f"file://{PLACE}/store", rank=rank, world_size=2)
    train()
    dist.barrier()
    dist.destroy_process_group()


def main():
    if HOW == "spawn":
        spawn(one_of_two, nprocs=2)
    elif HOW == "program":
        subprocess.run([sys.executable, "-c", OTHER.format(PLACE / "other.pt")], check=True)
    elif HOW == "load":
        torch.load(PLACE / "theirs.pt")
    elif HOW == "save":
        torch.save({}, PLACE / "mine.pt")
    elif HOW == "all":
        dist.init_process_group("gloo")
        by_hand()
        if dist.get_rank() == 0:
            torch.save({}, PLACE / "mine.pt")
            torch.load(PLACE / "mine.pt")
        dist.barrier()
        dist.destroy_process_group()
    elif HOW == "by-hand":
        dist.init_process_group("gloo")
        by_hand()
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
