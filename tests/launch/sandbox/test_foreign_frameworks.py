# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Frameworks that know nothing of us train, save and resume in the sandbox as under torchrun.

Each script is its framework's own minimal example; ``pip install -e '.[frameworks]'`` has them, and
``make test-slow`` installs it. docs/how-to/run-your-script.md has the table of what is seen here.
"""

import json
import os
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.launch.sandbox.machine import lacking
from tests.vocabulary import needs

ACCELERATE = """
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

def main():
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    data = DataLoader(TensorDataset(torch.randn(64, 8), torch.randn(64, 1)), 8, num_workers=1)
    model, optimizer, data = accelerator.prepare(model, optimizer, data)
    steps = 0
    for x, y in data:
        accelerator.backward((model(x) - y).pow(2).mean())
        optimizer.step()
        optimizer.zero_grad()
        steps += 1
    accelerator.save_state("out/state")
    accelerator.wait_for_everyone()
    accelerator.load_state("out/state")
    assert accelerator.reduce(torch.ones(1), "sum").item() == 2
    tell(accelerator.process_index, accelerator.num_processes, steps)
    accelerator.end_training()
"""

LIGHTNING = """
import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch, _):
        loss = (self.layer(batch[0]) - batch[1]).pow(2).mean()
        self.log("loss", loss, sync_dist=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 1e-2)

def main():
    lightning.seed_everything(0)
    data = DataLoader(TensorDataset(torch.randn(64, 8), torch.randn(64, 1)), 8, num_workers=1)
    settings = dict(accelerator="cpu", devices=2, strategy="ddp", default_root_dir="out")
    trainer = lightning.Trainer(max_epochs=1, **settings)
    trainer.fit(Model(), data)
    trainer.save_checkpoint("out/last.ckpt")
    trainer = lightning.Trainer(max_epochs=2, **settings)
    trainer.fit(Model(), data, ckpt_path="out/last.ckpt")
    tell(trainer.global_rank, trainer.world_size, trainer.global_step)
"""

TRANSFORMERS = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        ids = torch.arange(index, index + 16) % 64
        return {"input_ids": ids, "labels": ids}

def main():
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=2)
    settings = TrainingArguments(
        "out", per_device_train_batch_size=4, max_steps=3, save_steps=2, use_cpu=True,
        dataloader_num_workers=1, report_to=[], disable_tqdm=True,
    )
    trainer = Trainer(model=GPT2LMHeadModel(config), args=settings, train_dataset=Data())
    trainer.train()
    trainer.train(resume_from_checkpoint="out/checkpoint-2")
    tell(settings.process_index, settings.world_size, trainer.state.global_step)
"""

DEEPSPEED = """
import deepspeed
import torch

def main():
    deepspeed.init_distributed("gloo")
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    config = {
        "train_micro_batch_size_per_gpu": 8,
        "zero_optimization": {"stage": 1},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
    }
    engine, _, _, _ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=config
    )
    for _ in range(4):
        engine.backward((engine(torch.randn(8, 8)) - torch.randn(8, 1)).pow(2).mean())
        engine.step()
    engine.save_checkpoint("out")
    assert engine.load_checkpoint("out")[0]
    tell(engine.global_rank, engine.world_size, engine.global_steps)
"""

TELL = """
import json, os

def tell(rank, size, steps):
    with open(f"done-{rank}.json", "w") as file:
        json.dump({"size": size, "steps": steps, "user": os.getuid()}, file)

if __name__ == "__main__":
    main()
"""

COMPILES = 1200.0
"""Seconds: DeepSpeed compiles an extension in C++ at its first start."""


@dataclass(frozen=True)
class Framework:
    package: str
    module: str
    script: str
    steps: int
    writes: str
    """What it leaves behind."""


FRAMEWORKS = [
    Framework("accelerate", "accelerate", ACCELERATE, 4, "out/state/model.safetensors"),
    Framework("lightning", "lightning", LIGHTNING, 8, "out/last.ckpt"),
    Framework("transformers", "transformers", TRANSFORMERS, 3, "out/checkpoint-3/optimizer.pt"),
    Framework("deepspeed", "deepspeed", DEEPSPEED, 4, "out/latest"),
]


@pytest.mark.many
@pytest.mark.dist
@pytest.mark.netns
@pytest.mark.timeout(COMPILES + 60)
@needs(lacking)
@pytest.mark.parametrize("framework", FRAMEWORKS, ids=lambda one: one.package)
def test_a_framework_trains_saves_and_resumes(launch, tmp_path, monkeypatch, framework):
    if find_spec(framework.module) is None:
        pytest.skip(f"this needs: {framework.package} (pip install -e '.[frameworks]')")
    work = tmp_path / "work"
    work.mkdir()
    (work / "train.py").write_text(framework.script + TELL)
    monkeypatch.chdir(work)
    command = ("--standalone", "--nproc-per-node", "2", "train.py")
    done = launch(tmp_path / "run", *command, patience=COMPILES)
    assert done.code == 0, done.err
    said = [json.loads((work / f"done-{rank}.json").read_text()) for rank in range(2)]
    assert {one["size"] for one in said} == {2}
    assert {one["steps"] for one in said} == {framework.steps}
    assert os.getuid() not in {one["user"] for one in said}
    assert (work / framework.writes).stat().st_uid == os.getuid()
    assert done.events("sandbox-achieved")


def test_the_page_names_every_framework_and_the_version_that_was_tried():
    page = Path("docs/how-to/run-your-script.md").read_text()
    rows = {line.split("|")[1].strip(): line for line in page.splitlines() if line.startswith("|")}
    words = Path("constraints.txt").read_text().split()
    pins = dict(word.split("==") for word in words if "==" in word)
    for framework in FRAMEWORKS:
        found = [row for name, row in rows.items() if framework.package in name.lower()]
        assert found, framework.package
        assert f" {pins[framework.package]} " in found[0], f"not the pin: {found[0]}"
        try:
            assert version(framework.package) == pins[framework.package]
        except PackageNotFoundError:
            continue  # only make test-slow installs them
