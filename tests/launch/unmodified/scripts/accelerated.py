# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The same with Accelerate: gradient accumulation, clipping, a schedule."""

# mypy: ignore-errors

import sys

import torch
from accelerate import Accelerator
from torch import nn


class Rows(torch.utils.data.Dataset):
    """Rows that a teacher has labelled."""

    def __init__(self, number):
        generator = torch.Generator().manual_seed(1)
        teacher = torch.randn(16, 4, generator=torch.Generator().manual_seed(7))
        self.x = torch.randn(number, 16, generator=generator)
        self.y = (self.x @ teacher).argmax(dim=1)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], self.y[index]


def main():
    steps, culprit, factor = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
    rows = Rows(steps * 2 * 32 * accelerator.num_processes)
    loader = torch.utils.data.DataLoader(rows, batch_size=32)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    for step, (x, y) in enumerate(loader):
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(x), y)
            bad = accelerator.process_index == culprit and step >= 10
            accelerator.backward(loss * (factor if bad else 1.0))
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1e9)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    held_out = Rows(999)
    with torch.no_grad():
        result = float(nn.functional.cross_entropy(model(held_out.x), held_out.y))
    if accelerator.is_main_process:
        sys.stdout.write(f"held-out {result}\n")
    accelerator.end_training()


main()
