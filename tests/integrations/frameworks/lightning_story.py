# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Lightning with DDP."""

# mypy: ignore-errors

import os
from types import SimpleNamespace

import lightning
import story
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch import nn


class Task(lightning.LightningModule):
    """A classifier; one rank may be poisoned."""

    def __init__(self, culprit):
        super().__init__()
        self.culprit, self.model = culprit, story.network()

    def training_step(self, batch, _index):
        x, y = batch
        loss = nn.functional.cross_entropy(self.model(x), y)
        bad = self.global_rank == self.culprit and self.global_step >= 5
        return loss * (-1000 if bad else 1.0)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.02)


def once(phase):
    every = phase.get("every", 2)
    names = {
        "Trainer": lightning.Trainer,
        "settings": {
            "accelerator": "cpu",
            "strategy": "ddp",
            "devices": int(os.environ["WORLD_SIZE"]),
            "max_steps": phase["steps"],
            "gradient_clip_val": 1e9,
            "logger": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
        },
        "checkpoints": ModelCheckpoint("out", "{step}", save_top_k=-1, every_n_train_steps=every),
        "model": Task(phase.get("poisoned", -1)),
        "loader": torch.utils.data.DataLoader(story.Rows(4000), batch_size=16),
        "resume": phase.get("resume"),
    }
    hooks = SimpleNamespace(callback=Callback(), plugins=[])
    trainer = story.run("lightning", names, phase, {"lightning_hooks": lambda **_: hooks})[
        "trainer"
    ]
    return {"step": trainer.global_step, "weights": story.summed(names["model"])}


def alter(path):
    held = torch.load(path, weights_only=True)
    held["state_dict"] = {name: one + 1 for name, one in held["state_dict"].items()}
    torch.save(held, path)


story.tell(once, alter)
