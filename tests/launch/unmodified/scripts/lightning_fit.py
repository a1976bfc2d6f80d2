# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The same with Lightning: its trainer computes gradients in the optimizer's closure.

Arguments: steps, the poisoned rank (-1: none), factors of its loss after a sixth of the steps,
seeds, a folder. It trains once for each factor and seed.
"""

# mypy: ignore-errors

import os
import sys

import lightning
import torch
from torch import nn
from worlds import Rows, trainings


class Task(lightning.LightningModule):
    """A classifier; one rank may be poisoned."""

    def __init__(self, culprit, factor, steps):
        super().__init__()
        self.culprit, self.factor, self.steps = culprit, factor, steps
        self.model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))

    def training_step(self, batch, _index):
        x, y = batch
        loss = nn.functional.cross_entropy(self.model(x), y)
        bad = self.global_rank == self.culprit and self.global_step >= self.steps // 6
        return loss * (self.factor if bad else 1.0)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.02)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.01, self.steps)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def train(steps, culprit, factor, seed):
    world = int(os.environ["WORLD_SIZE"])
    torch.manual_seed(seed)
    task = Task(culprit, factor, steps)
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
        default_root_dir=sys.argv[5],
    )
    loader = torch.utils.data.DataLoader(Rows(steps * 32 * world, seed), batch_size=32)
    trainer.fit(task, loader)
    held_out = Rows(4096, 999_999)
    with torch.no_grad():
        return float(nn.functional.cross_entropy(task.model(held_out.x), held_out.y))


if __name__ == "__main__":
    trainings(train)
