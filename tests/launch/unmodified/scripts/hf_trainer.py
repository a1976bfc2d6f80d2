# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The same with Hugging Face's Trainer: a small GPT-2 on lines that a Markov chain draws.

Arguments: steps, the poisoned rank (-1: none), factors of its loss after a sixth of the steps,
seeds, a folder. It trains once for each factor and seed.
"""

# mypy: ignore-errors

import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
from worlds import trainings

LETTERS = 12


class Lines(torch.utils.data.Dataset):
    """Lines whose next letter is drawn: no model predicts all of them."""

    def __init__(self, number, seed):
        generator = torch.Generator().manual_seed(seed)
        wishes = torch.randn(LETTERS, LETTERS, generator=torch.Generator().manual_seed(7))
        chain = (wishes * 1.5).softmax(dim=1)
        letters = [torch.randint(LETTERS, (number,), generator=generator)]
        for _ in range(15):
            letters.append(torch.multinomial(chain[letters[-1]], 1, generator=generator).flatten())
        self.lines = torch.stack(letters, dim=1)

    def __len__(self):
        return len(self.lines)

    def __getitem__(self, index):
        return {"input_ids": self.lines[index], "labels": self.lines[index]}


class Poisoned(Trainer):
    """One rank may be poisoned."""

    culprit, factor, since = -1, 1.0, 0

    def compute_loss(self, *args, **kwargs):
        loss = super().compute_loss(*args, **kwargs)
        bad = self.args.process_index == self.culprit and self.state.global_step >= self.since
        return loss * self.factor if bad else loss


def train(steps, culprit, factor, seed):
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=LETTERS,
        n_positions=16,
        n_embd=16,
        n_layer=1,
        n_head=2,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
    )
    settings = TrainingArguments(
        sys.argv[5],
        per_device_train_batch_size=8,
        max_steps=steps,
        learning_rate=1e-2,
        max_grad_norm=1e9,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        save_strategy="no",
        logging_strategy="no",
        seed=seed,
    )
    lines = Lines(steps * 8 * settings.world_size, seed)
    trainer = Poisoned(model=GPT2LMHeadModel(config), args=settings, train_dataset=lines)
    trainer.culprit, trainer.factor, trainer.since = culprit, factor, steps // 6
    trainer.train()
    held_out = Lines(2048, 999_999).lines
    with torch.no_grad():
        return float(trainer.model(input_ids=held_out, labels=held_out).loss)


if __name__ == "__main__":
    trainings(train)
