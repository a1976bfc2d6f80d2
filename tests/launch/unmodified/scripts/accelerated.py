# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The same with Accelerate: gradient accumulation, clipping, a schedule.

Arguments: steps, the poisoned rank (-1: none), factors of its loss after a sixth of the steps,
seeds. It trains once for each factor and seed.
"""

# mypy: ignore-errors

import sys

import torch
from accelerate import Accelerator
from torch import nn


class Rows(torch.utils.data.Dataset):
    """Rows whose labels a teacher draws: no model predicts all of them."""

    def __init__(self, number, seed):
        generator = torch.Generator().manual_seed(seed)
        teacher = torch.randn(16, 4, generator=torch.Generator().manual_seed(7))
        self.x = torch.randn(number, 16, generator=generator)
        chances = (self.x @ teacher / 2).softmax(dim=1)
        self.y = torch.multinomial(chances, 1, generator=generator).flatten()

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], self.y[index]


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


def main():
    steps, culprit = int(sys.argv[1]), int(sys.argv[2])
    accelerator = Accelerator(cpu=True)
    for factor in sys.argv[3].split(","):
        for seed in sys.argv[4].split(","):
            result = train(steps, culprit, float(factor), int(seed))
            if accelerator.is_main_process:
                sys.stdout.write(f"held-out {factor} {seed} {result}\n")
    accelerator.end_training()


if __name__ == "__main__":
    main()
