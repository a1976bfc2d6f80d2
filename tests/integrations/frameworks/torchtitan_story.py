# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""torchtitan's own checkpoint manager, and a stand-in for its trainer, which needs an accelerator.

The stand-in has the methods that the hook takes hold of, with their signatures, around FSDP2.
"""

# mypy: ignore-errors

import pickle
from pathlib import Path
from types import SimpleNamespace

import story
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torchtitan.components.checkpoint import CheckpointManager


class Planted:
    """A pickle that leaves a mark when it is read."""

    def __reduce__(self):
        return exec, ("open('planted', 'w').close()",)


class StandIn:
    """The step counts, as torchtitan's trainer does, in the checkpoint."""

    gradient_accumulation_steps = 2

    def __init__(self, phase):
        self.phase, self.step = phase, 0
        model = story.network()
        for layer in (model[0], model[2]):
            fully_shard(layer)
        self.model_parts = [fully_shard(model)]
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
        mode, every = phase.get("mode", "disabled"), phase.get("every", 2)
        config = CheckpointManager.Config(
            enable=True, folder="out", interval=every, async_mode=mode, last_save_model_only=False
        )
        self.checkpointer = CheckpointManager(
            config,
            dataloader=None,
            model_parts=self.model_parts,
            optimizers=self.optimizer,
            lr_schedulers=torch.optim.lr_scheduler.ConstantLR(self.optimizer, 1.0),
            states={"train_state": self},
            sd_adapter=None,
        )
        self.checkpointer.states.pop("dataloader")
        self.checkpointer.states.pop("optimizer")
        self.checkpointer.states.pop("lr_scheduler")

    def state_dict(self):
        return {"step": torch.tensor(self.step)}

    def load_state_dict(self, state):
        self.step = int(state["step"])

    def forward_backward_step(self, *, input_dict, labels):
        loss = nn.functional.cross_entropy(self.model_parts[0](input_dict), labels)
        bad = self.phase.get("poisoned", -1) == story.RANK and self.step > 5
        (loss * (-1000 if bad else 1.0) / 2).backward()
        return loss

    def train_step(self, rows):
        self.optimizer.zero_grad()
        for _ in range(self.gradient_accumulation_steps):
            x, y = next(rows)
            self.forward_backward_step(input_dict=x, labels=y)
        nn.utils.clip_grad_norm_(self.model_parts[0].parameters(), 1e9)
        self.checkpointer.maybe_wait_for_staging()
        self.optimizer.step()

    def train(self):
        self.checkpointer.load(step=-1)
        loader = torch.utils.data.DataLoader(story.Rows(8000, seed=story.RANK), batch_size=16)
        rows = iter(loader)
        while self.step < self.phase["steps"]:
            self.step += 1
            self.train_step(rows)
            self.checkpointer.save(self.step, last_step=self.step == self.phase["steps"])

    def close(self):
        self.checkpointer.close()


def once(phase):
    config = SimpleNamespace(build=lambda: StandIn(phase))
    names = {"config": config}
    trainer = story.run("torchtitan", names, phase, {"secure_titan": lambda one, **_: one})[
        "trainer"
    ]
    whole = [p.full_tensor() for p in trainer.model_parts[0].parameters()]
    return {"step": trainer.step, "weights": float(sum(p.double().sum() for p in whole))}


def alter(folder):
    Path(folder, ".metadata").write_bytes(pickle.dumps(Planted()))


dist.init_process_group("gloo")
story.tell(once, alter)
dist.destroy_process_group()
