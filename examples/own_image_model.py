# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Train any module with a `forward` in one call: ``securetrain run --standalone --nproc-per-node 2
examples/own_image_model.py``. Here it tells on which side of a picture the bright spot is.
"""

import torch
import torch.nn.functional as F
from torch import nn

from securetrain.train import fit


def rows(step: int, numbers: range) -> tuple[torch.Tensor, torch.Tensor]:
    """Pictures and sides; a row is a function of its step and number."""
    found = []
    for number in numbers:
        generator = torch.Generator().manual_seed(step * 1000 + number)
        picture, place = torch.rand(1, 8, 8, generator=generator), number % 64
        picture[0, place // 8, place % 8] = 4.0
        found.append((picture, torch.tensor(place % 8 // 4)))
    pictures, sides = zip(*found, strict=True)
    return torch.stack(pictures), torch.stack(sides)


fit(
    lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2)),
    rows,
    lambda logits, sides: F.cross_entropy(logits, sides, reduction="sum"),
    metrics={"right": lambda logits, sides: (logits.argmax(-1) == sides).sum()},
    steps=30,
    batch_rows=64,
)
