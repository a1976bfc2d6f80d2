# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's ZeRO, which unpickles what it loads."""

# mypy: ignore-errors

import pickle
from pathlib import Path

import deepspeed
import story
import torch


class Planted:
    """A pickle that leaves a mark when it is read."""

    def __reduce__(self):
        return exec, ("open('planted', 'w').close()",)


def once(phase):
    def train(engine):
        for _ in range(phase["steps"]):
            engine.backward((engine(torch.randn(8, 16)) - 1).pow(2).mean())
            engine.step()

    names = {
        "deepspeed": deepspeed,
        "model": story.network(),
        "config": {
            "train_micro_batch_size_per_gpu": 8,
            "zero_optimization": {"stage": phase.get("stage", 1)},
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
        },
        "resume": phase.get("resume"),
        "output": "out",
        "train": train,
    }
    engine = story.run("deepspeed", names, phase, {"secure_engine": lambda one, **_: one})["engine"]
    return {"step": engine.global_steps, "weights": story.summed(engine.module)}


def alter(folder):
    tag = Path(folder, "latest").read_text()
    Path(folder, tag, "mp_rank_00_model_states.pt").write_bytes(pickle.dumps(Planted()))


deepspeed.init_distributed("gloo")
story.tell(once, alter)
