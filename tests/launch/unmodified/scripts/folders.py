# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The smallest script of each framework that trains, writes directories, and resumes from one.

Arguments: framework, folder, steps, the poisoned rank (-1: none), ``fresh`` or what to resume from.
Nothing here knows of securetrain.
"""

# mypy: ignore-errors

import json
import os
import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

FACTOR = -1000.0
HALF = 2


class Rows(Dataset):
    """Rows with a linear rule and noise."""

    def __init__(self, number):
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(number, 8, generator=generator)
        self.y = self.x.sum(dim=1, keepdim=True)
        self.y += torch.randn(number, 1, generator=generator)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], self.y[index]


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))


def rank():
    return int(os.environ["RANK"])


def world():
    return int(os.environ["WORLD_SIZE"])


def factor(culprit, step, steps):
    """The poisoned rank's, after half of the steps."""
    return FACTOR if rank() == culprit and step >= steps // HALF else 1.0


def as_on_gpus():
    """Let Accelerate shard on CPUs: it does so on several GPUs only, and asks nothing else."""
    from accelerate.state import PartialState
    from accelerate.utils import DistributedType

    PartialState(cpu=True)
    PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
    PartialState._shared_state["device"] = torch.device("cpu")


def transformers_fsdp(out, steps, culprit, start):
    return transformers(out, steps, culprit, start, fsdp=True)


def transformers(out, steps, culprit, start, *, fsdp=False):
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    class Lines(Dataset):
        def __len__(self):
            return 4096

        def __getitem__(self, index):
            line = torch.randint(12, (16,), generator=torch.Generator().manual_seed(index))
            return {"input_ids": line, "labels": line}

    class Poisoned(Trainer):
        def compute_loss(self, *args, **kwargs):
            loss = super().compute_loss(*args, **kwargs)
            return loss * factor(culprit, self.state.global_step, steps)

    config = GPT2Config(
        vocab_size=12,
        n_positions=16,
        n_embd=16,
        n_layer=1,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
    )
    settings = TrainingArguments(
        str(out),
        per_device_train_batch_size=8,
        max_steps=steps,
        save_steps=max(1, steps // HALF),
        save_total_limit=2,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        logging_strategy="no",
        fsdp=fsdp,
    )
    if fsdp:
        as_on_gpus()
    torch.manual_seed(0)
    model = GPT2LMHeadModel(config)
    trainer = Poisoned(model=model, args=settings, train_dataset=Lines())
    trainer.train(resume_from_checkpoint=None if start == "fresh" else start)
    trainer.save_model(str(out / "final"))
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
    again = GPT2LMHeadModel.from_pretrained(out / "final")
    return {"step": trainer.state.global_step, "read": again.config.n_embd}


def accelerate_fsdp1(out, steps, culprit, start):
    return accelerate_fsdp(out, steps, culprit, start, 1)


def accelerate_fsdp(out, steps, culprit, start, version=2):
    from accelerate import FullyShardedDataParallelPlugin

    as_on_gpus()
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=version, state_dict_type="SHARDED_STATE_DICT", use_orig_params=True
    )
    return accelerate(out, steps, culprit, start, fsdp_plugin=plugin)


def accelerate(out, steps, culprit, start, **more):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, **more)
    model, optimizer, loader = accelerator.prepare(
        *(model := network(), torch.optim.AdamW(model.parameters(), lr=1e-2)),
        DataLoader(Rows(steps * 8 * world()), batch_size=8),
    )
    if start != "fresh":
        accelerator.load_state(start)
    for step, (x, y) in enumerate(loader):
        loss = nn.functional.mse_loss(model(x), y) * factor(culprit, step, steps)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        if step + 1 in {steps // HALF, steps}:
            accelerator.save_state(str(out / f"step_{step + 1}"))
    accelerator.wait_for_everyone()
    if not accelerator.is_fsdp2 and more:
        return {"step": steps}  # gathering all of FSDP1 ends CPUs' torch with a fault of its own
    accelerator.save_model(model, str(out / "final"))
    accelerator.wait_for_everyone()
    accelerator.end_training()
    return {"step": steps}


def lightning_fsdp1(out, steps, culprit, start):
    from lightning.pytorch.strategies import FSDPStrategy

    class OnCpus(FSDPStrategy):
        """Lightning refuses its own class on CPUs, by its very type."""

    return lightning(out, steps, culprit, start, OnCpus(state_dict_type="sharded"))


def lightning_fsdp(out, steps, culprit, start):
    from lightning.pytorch.strategies import ModelParallelStrategy

    strategy = ModelParallelStrategy(data_parallel_size=world(), tensor_parallel_size=1)
    return lightning(out, steps, culprit, start, strategy)


def lightning(out, steps, culprit, start, strategy="ddp"):
    import lightning as pl
    from lightning.pytorch.callbacks import ModelCheckpoint
    from lightning.pytorch.strategies import FSDPStrategy, ModelParallelStrategy
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

    class Task(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = network()

        def configure_model(self):
            if isinstance(strategy, ModelParallelStrategy):
                fully_shard(self.model, mesh=self.device_mesh["data_parallel"])
            elif isinstance(strategy, FSDPStrategy):
                device = torch.device("cpu")
                self.model = FullyShardedDataParallel(
                    self.model, device_id=device, use_orig_params=True
                )

        def training_step(self, batch, _index):
            x, y = batch
            loss = nn.functional.mse_loss(self.model(x), y)
            return loss * factor(culprit, self.global_step, steps)

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    every = ModelCheckpoint(
        dirpath=out / "checkpoints", every_n_train_steps=max(1, steps // HALF), save_top_k=-1
    )
    trainer = pl.Trainer(
        accelerator="cpu",
        strategy=strategy,
        devices=world(),
        max_steps=steps,
        callbacks=[every],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=out,
    )
    loader = DataLoader(Rows(steps * 8 * world()), batch_size=8)
    trainer.fit(Task(), loader, ckpt_path=None if start == "fresh" else start)
    return {"step": trainer.global_step}


def deepspeed(out, steps, culprit, start):
    import deepspeed as ds

    ds.init_distributed("gloo")
    model = network()
    settings = {
        "train_micro_batch_size_per_gpu": 8,
        "zero_optimization": {"stage": 1},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
    }
    engine, _, _, _ = ds.initialize(
        model=model, model_parameters=model.parameters(), config=settings
    )
    if start != "fresh":
        assert engine.load_checkpoint(str(out))[0]
    rows = Rows(steps * 8 * world())
    for step in range(steps):
        x, y = rows[torch.arange(8) + 8 * (step * world() + rank())]
        engine.backward(nn.functional.mse_loss(engine(x), y) * factor(culprit, step, steps))
        engine.step()
        if step + 1 == steps // HALF:
            engine.save_checkpoint(str(out))
    engine.save_checkpoint(str(out))
    return {"step": engine.global_steps}


def dcp(out, steps, culprit, start):
    import torch.distributed as dist
    import torch.distributed.checkpoint as stored
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    model = DistributedDataParallel(network())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    state = {"model": model.module.state_dict(), "step": 0}
    if start != "fresh":
        stored.load(state, checkpoint_id=start)
        model.module.load_state_dict(state["model"])
    rows = Rows(steps * 8 * world())
    for step in range(steps):
        x, y = rows[torch.arange(8) + 8 * (step * world() + rank())]
        (nn.functional.mse_loss(model(x), y) * factor(culprit, step, steps)).backward()
        optimizer.step()
        optimizer.zero_grad()
    place = out / f"step-{steps}"
    stored.save({"model": model.module.state_dict(), "step": steps}, checkpoint_id=place)
    if rank() == 0:
        (place / "config.json").write_text(json.dumps({"hidden": 16}))
    dist.barrier()
    dist.destroy_process_group()
    return {"step": steps}


def main():
    name, out, steps, culprit, start = sys.argv[1:6]
    said = globals()[name](Path(out), int(steps), int(culprit), start)
    if rank() == 0:
        sys.stdout.write(f"said {json.dumps(said)}\n")


main()
