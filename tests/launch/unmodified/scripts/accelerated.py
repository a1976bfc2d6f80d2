# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The same with Accelerate: gradient accumulation, clipping, a schedule.

Arguments: those of `worlds`.
"""

# mypy: ignore-errors

import torch
from accelerate import Accelerator
from torch import nn
from worlds import Rows, trainings


def train(steps, culprit, factor, seed):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    ranks = accelerator.num_processes
    loader = torch.utils.data.DataLoader(Rows(steps * 2 * 16 * ranks, seed), batch_size=16)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.01, steps * ranks)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    for number, (x, y) in enumerate(loader):
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(x), y)
            bad = accelerator.process_index == culprit and number // 2 >= steps // 6
            accelerator.backward(loss * (factor if bad else 1.0))
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1e9)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    held_out = Rows(4096, 999_999)
    with torch.no_grad():
        return float(nn.functional.cross_entropy(model(held_out.x), held_out.y))


if __name__ == "__main__":
    started = Accelerator(cpu=True)
    trainings(train)
    started.end_training()
