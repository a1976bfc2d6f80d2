# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's ZeRO, which reduces gradients by itself: nobody watches."""

# mypy: ignore-errors

import sys

import deepspeed
import torch


def main():
    deepspeed.init_distributed("gloo")
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    settings = {
        "train_micro_batch_size_per_gpu": 8,
        "zero_optimization": {"stage": int(sys.argv[2])},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
    }
    engine, _, _, _ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=settings
    )
    for _ in range(int(sys.argv[1])):
        engine.backward((engine(torch.randn(8, 8)) - torch.randn(8, 1)).pow(2).mean())
        engine.step()
    sys.stdout.write(f"{sys.argv[1]} steps\n")


main()
