# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Accelerate with DDP, and an object that was registered for checkpointing."""

# mypy: ignore-errors

import pickle
from pathlib import Path

import story
import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration
from torch import nn


class Counter:
    """The step, which Accelerate pickles."""

    step = 0

    def state_dict(self):
        return {"step": self.step}

    def load_state_dict(self, state):
        self.step = state["step"]


class Planted:
    """A pickle that leaves a mark when it is read."""

    def __reduce__(self):
        return exec, ("open('planted', 'w').close()",)


def once(phase):
    counter = Counter()
    model = story.network()
    clip = phase.get("clip", 1e9)

    def train(accelerator, model, optimizer, loader):
        for (x, y), _ in zip(loader, range(phase["steps"]), strict=False):
            loss = nn.functional.cross_entropy(model(x), y)
            bad = accelerator.process_index == phase.get("poisoned", -1) and counter.step >= 5
            accelerator.backward(loss * (-1000 if bad else 1.0))
            accelerator.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()
            counter.step += 1

    def registered(**settings):
        made = Accelerator(cpu=True, **settings)
        made.register_for_checkpointing(counter)
        return made

    names = {
        "Accelerator": registered,
        "project": ProjectConfiguration(),
        "model": model,
        "optimizer": torch.optim.AdamW(model.parameters(), lr=0.02),
        "loader": torch.utils.data.DataLoader(story.Rows(4000), batch_size=16),
        "resume": phase.get("resume"),
        "train": train,
        "output": phase.get("output", "out/state"),
    }
    story.run("accelerate", names, phase, {"secure_accelerator": lambda one, **_: one})
    return {"step": counter.step, "weights": story.summed(names["model"])}


def alter(state):
    path = Path(state, "custom_checkpoint_0.pkl")
    path.write_bytes(pickle.dumps(Planted()))


story.tell(once, alter)
