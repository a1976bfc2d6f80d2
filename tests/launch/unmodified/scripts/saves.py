# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A plain DDP script that saves after every step, as people write it.

Arguments: a folder, steps, the way to save (dcp, async, torch, handle, memory, signed, none).
"""

# mypy: ignore-errors

import io
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def save(model, place, way, step):
    """One checkpoint, in one of the ways that people use."""
    state = {"model": model.state_dict()}
    first = dist.get_rank() == 0
    if way == "dcp":
        dcp.save(state, checkpoint_id=place)
    elif way == "async":
        dcp.async_save(state, checkpoint_id=place).result()
    elif way == "signed":
        from securetrain.artifacts.checkpoint.session import Session

        dcp.save(state, storage_writer=Session().writer(place, step))
    elif way == "torch" and first:
        torch.save(state, f"{place}.pt")
    elif way == "handle" and first:
        with Path(f"{place}.pt").open("wb") as file:
            torch.save(state, file)
    elif way == "memory" and first:
        torch.save(state, io.BytesIO())


def main():
    folder, steps, way = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        save(model, folder / f"step-{step}", way, step)
    if dist.get_rank() == 0:
        sys.stdout.write(f"steps {steps}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
