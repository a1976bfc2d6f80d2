# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The same with Lightning: its trainer computes gradients in the optimizer's closure."""

# mypy: ignore-errors

import os
import sys

import lightning
import torch
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


class Task(lightning.LightningModule):
    """A classifier; one rank may be poisoned."""

    def __init__(self, culprit, factor):
        super().__init__()
        self.culprit, self.factor = culprit, factor
        self.model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))

    def training_step(self, batch, _index):
        x, y = batch
        loss = nn.functional.cross_entropy(self.model(x), y)
        bad = self.global_rank == self.culprit and self.global_step >= 5
        return loss * (self.factor if bad else 1.0)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.02)


def main():
    steps, culprit, factor = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    world = int(os.environ["WORLD_SIZE"])
    torch.manual_seed(0)
    task = Task(culprit, factor)
    trainer = lightning.Trainer(
        accelerator="cpu",
        strategy="ddp",
        devices=world,
        max_steps=steps,
        gradient_clip_val=1e9,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=sys.argv[4] if len(sys.argv) > 4 else None,
    )
    loader = torch.utils.data.DataLoader(Rows(steps * 32 * world), batch_size=32)
    trainer.fit(task, loader)
    held_out = Rows(999)
    with torch.no_grad():
        result = float(nn.functional.cross_entropy(task.model(held_out.x), held_out.y))
    if trainer.is_global_zero:
        sys.stdout.write(f"held-out {result}\n")


main()
