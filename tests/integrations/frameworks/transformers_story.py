# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's Trainer, on lines that a Markov chain draws."""

# mypy: ignore-errors

from pathlib import Path

import story
import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

LETTERS = 12


class Lines(torch.utils.data.Dataset):
    """Lines whose next letter is drawn."""

    def __init__(self, number):
        generator = torch.Generator().manual_seed(0)
        chain = torch.randn(LETTERS, LETTERS, generator=generator).mul(1.5).softmax(dim=1)
        letters = [torch.randint(LETTERS, (number,), generator=generator)]
        for _ in range(15):
            letters.append(torch.multinomial(chain[letters[-1]], 1, generator=generator).flatten())
        self.lines = torch.stack(letters, dim=1)

    def __len__(self):
        return len(self.lines)

    def __getitem__(self, index):
        return {"input_ids": self.lines[index], "labels": self.lines[index]}


class Poisonable(Trainer):
    """One rank may be poisoned."""

    culprit = -1

    def compute_loss(self, *args, **kwargs):
        loss = super().compute_loss(*args, **kwargs)
        bad = self.args.process_index == self.culprit and self.state.global_step >= 5
        return loss * -1000 if bad else loss


def once(phase):
    torch.manual_seed(0)
    quiet = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    sizes = {"vocab_size": LETTERS, "n_positions": 16, "n_embd": 16, "n_layer": 1, "n_head": 2}
    config = GPT2Config(**sizes, **quiet, bos_token_id=0, eos_token_id=0)
    arguments = TrainingArguments(
        "out",
        per_device_train_batch_size=8,
        max_steps=phase["steps"],
        save_steps=phase.get("every", 2),
        learning_rate=1e-2,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        logging_strategy="no",
        seed=0,
    )
    Poisonable.culprit = phase.get("poisoned", -1)
    names = {
        "Trainer": Poisonable,
        "model": GPT2LMHeadModel(config),
        "arguments": arguments,
        "dataset": Lines(1000),
        "resume": phase.get("resume"),
    }
    plain = {"secure_trainer": lambda trainer, **_: trainer}
    trainer = story.run("transformers", names, phase, plain)["trainer"]
    return {"step": trainer.state.global_step, "weights": story.summed(trainer.model)}


def alter(folder):
    path = Path(folder, "model.safetensors")
    save_file({name: one + 1 for name, one in load_file(path).items()}, path, {"format": "pt"})


story.tell(once, alter)
