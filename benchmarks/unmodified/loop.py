# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A small language model, trained by each framework as its own first example does.

Arguments: framework, folder, steps. It saves halfway and at the end. Nothing here knows of
securetrain.
"""

# mypy: ignore-errors

import os
import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

VOCABULARY, WIDTH, DEPTH, LENGTH, BATCH = 256, 128, 4, 64, 16


class Lines(Dataset):
    """Lines that count up from a random byte."""

    def __init__(self, steps):
        self.number = steps * BATCH * int(os.environ["WORLD_SIZE"])

    def __len__(self):
        return self.number

    def __getitem__(self, index):
        start = torch.randint(VOCABULARY, (1,), generator=torch.Generator().manual_seed(index))
        return (start + torch.arange(LENGTH + 1)) % VOCABULARY


class Model(nn.Module):
    """A transformer of about a million parameters; its output is the loss."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, DEPTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self.mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)

    def forward(self, lines):
        hidden = self.layers(self.embedding(lines[:, :-1]), mask=self.mask, is_causal=True)
        return nn.functional.cross_entropy(self.head(hidden).flatten(0, 1), lines[:, 1:].flatten())


def is_saved(step, steps):
    """Tell whether a step is followed by a save."""
    return step in {steps // 2, steps}


def plain(out, steps):
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DistributedSampler

    dist.init_process_group("gloo")
    model = DistributedDataParallel(Model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    lines = Lines(steps)
    loader = DataLoader(lines, batch_size=BATCH, sampler=DistributedSampler(lines))
    for step, batch in enumerate(loader, 1):
        model(batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        if is_saved(step, steps):
            state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
            dcp.save(state, checkpoint_id=out / f"step-{step}")
    dist.barrier()
    dist.destroy_process_group()


def accelerate(out, steps):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = Model()
    model, optimizer, loader = accelerator.prepare(
        *(model, torch.optim.AdamW(model.parameters(), lr=1e-3)),
        DataLoader(Lines(steps), batch_size=BATCH, shuffle=True),
    )
    for step, batch in enumerate(loader, 1):
        accelerator.backward(model(batch))
        optimizer.step()
        optimizer.zero_grad()
        if is_saved(step, steps):
            accelerator.save_state(str(out / f"step-{step}"))
    accelerator.end_training()


def transformers(out, steps):
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    class Rows(Lines):
        def __getitem__(self, index):
            line = super().__getitem__(index)[:-1]
            return {"input_ids": line, "labels": line}

    sizes = {"n_embd": WIDTH, "n_layer": DEPTH, "n_head": 4, "n_positions": LENGTH}
    config = GPT2Config(vocab_size=VOCABULARY, bos_token_id=0, eos_token_id=0, **sizes)
    settings = TrainingArguments(
        str(out),
        per_device_train_batch_size=BATCH,
        max_steps=steps,
        save_steps=steps // 2,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
    )
    Trainer(model=GPT2LMHeadModel(config), args=settings, train_dataset=Rows(steps)).train()


def lightning(out, steps):
    import lightning as pl
    from lightning.pytorch.callbacks import ModelCheckpoint

    class Task(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = Model()

        def training_step(self, batch, _index):
            return self.model(batch)

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    saves = ModelCheckpoint(dirpath=out, every_n_train_steps=steps // 2, save_top_k=-1)
    trainer = pl.Trainer(
        accelerator="cpu",
        strategy="ddp",
        devices=int(os.environ["WORLD_SIZE"]),
        max_steps=steps,
        callbacks=[saves],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=out,
    )
    trainer.fit(Task(), DataLoader(Lines(steps), batch_size=BATCH, shuffle=True))


def deepspeed(out, steps):
    import deepspeed as ds
    from torch.utils.data import DistributedSampler

    ds.init_distributed("gloo")
    model, lines = Model(), Lines(steps)
    settings = {
        "train_micro_batch_size_per_gpu": BATCH,
        "zero_optimization": {"stage": 1},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    }
    engine, *_ = ds.initialize(model=model, model_parameters=model.parameters(), config=settings)
    loader = DataLoader(lines, batch_size=BATCH, sampler=DistributedSampler(lines))
    for step, batch in enumerate(loader, 1):
        engine.backward(engine(batch))
        engine.step()
        if is_saved(step, steps):
            engine.save_checkpoint(str(out))


if __name__ == "__main__":
    name, place, count = sys.argv[1:4]
    globals()[name](Path(place), int(count))
