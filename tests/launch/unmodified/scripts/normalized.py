# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A model with batch normalization, trained by torch, Accelerate, Lightning or Hugging Face.

Arguments: framework, steps, a number that rank 0 writes into its running means after each step from
a third of them on (``none``: it does not), a folder. Rank 1 says the held-out loss at the end: what
rank 0 has in its own buffers is its own.
"""

# mypy: ignore-errors

import os
import sys

import torch
from torch import nn

RATE = 0.02


class Rows(torch.utils.data.Dataset):
    """Rows whose labels a teacher draws: no model predicts all of them."""

    def __init__(self, number, seed):
        generator = torch.Generator().manual_seed(seed)
        teacher = torch.randn(16, 4, generator=torch.Generator().manual_seed(7))
        self.x = torch.randn(number, 16, generator=generator) * 2 + 1
        chances = (self.x @ teacher / 4).softmax(dim=1)
        self.y = torch.multinomial(chances, 1, generator=generator).flatten()

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return {"x": self.x[index], "labels": self.y[index]}


class Model(nn.Module):
    """Answers as Hugging Face's models do."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.Tanh(), nn.Linear(32, 4))

    def forward(self, x, labels):
        logits = self.net(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def poisoned(model, steps, value):
    """The optimizer, after whose steps rank 0 may change its buffers."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    made = [0]

    def after(*_):
        made[0] += 1
        if value != "none" and os.environ["RANK"] == "0" and made[0] >= steps // 3:
            next(iter(model.net[1].buffers()))[3] = float(value)

    optimizer.register_step_post_hook(after)
    return optimizer


def with_torch(model, steps, value, rows):
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    sampler = torch.utils.data.DistributedSampler(rows)
    loader = torch.utils.data.DataLoader(rows, batch_size=32, sampler=sampler)
    wrapped, optimizer = DistributedDataParallel(model), poisoned(model, steps, value)
    for batch in loader:
        wrapped(**batch)["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()


def with_accelerate(model, steps, value, rows):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    loader = torch.utils.data.DataLoader(rows, batch_size=32, shuffle=True)
    wrapped, optimizer, loader = accelerator.prepare(model, poisoned(model, steps, value), loader)
    for batch in loader:
        accelerator.backward(wrapped(**batch)["loss"])
        optimizer.step()
        optimizer.zero_grad()


def with_lightning(model, steps, value, rows):
    import lightning

    class Task(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = model

        def training_step(self, batch, _index):
            return self.model(**batch)["loss"]

        def configure_optimizers(self):
            return poisoned(model, steps, value)

    trainer = lightning.Trainer(
        accelerator="cpu",
        strategy="ddp",
        devices=int(os.environ["WORLD_SIZE"]),
        max_steps=steps,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=sys.argv[4],
    )
    trainer.fit(Task(), torch.utils.data.DataLoader(rows, batch_size=32))


def with_transformers(model, steps, value, rows):
    from transformers import Trainer, TrainingArguments

    settings = TrainingArguments(
        sys.argv[4],
        per_device_train_batch_size=32,
        max_steps=steps,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        save_strategy="no",
        logging_strategy="no",
    )
    optimizer = poisoned(model, steps, value)
    Trainer(model=model, args=settings, train_dataset=rows, optimizers=(optimizer, None)).train()


FRAMEWORKS = {
    "torch": with_torch,
    "accelerate": with_accelerate,
    "lightning": with_lightning,
    "transformers": with_transformers,
}


def main():
    framework, steps, value = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    torch.manual_seed(1)
    model = Model()
    FRAMEWORKS[framework](model, steps, value, Rows(steps * 32 * int(os.environ["WORLD_SIZE"]), 1))
    model.eval()
    held_out = Rows(4096, 999_999)
    with torch.no_grad():
        loss = float(model(held_out.x, held_out.y)["loss"])
    if os.environ["RANK"] == "1":
        sys.stdout.write(f"held-out {value} 0 {loss}\n")


if __name__ == "__main__":
    main()
