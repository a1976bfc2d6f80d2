# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Baselines from byte counts alone: the numbers that a trained model has to beat.

Unigram and bigram tables are counted on the training split and scored on the held-out split (cross
entropy in bits a byte), with every count raised by a little so that unseen pairs cost something
finite. At most `SAMPLE` bytes of either split are read.
"""

from dataclasses import dataclass
from typing import Final

import torch

from securetrain.train.data import ByteSplit

SAMPLE: Final = 8 << 20
ADD: Final = 0.05
VALUES: Final = 256


@dataclass(frozen=True, slots=True)
class Baselines:
    """Bits a byte on the held-out split."""

    unigram: float
    bigram: float


def baselines(train: ByteSplit, validation: ByteSplit) -> Baselines:
    """Count one split and score the other."""
    seen, held = _bytes(train), _bytes(validation)
    pairs = torch.bincount(seen[:-1] * VALUES + seen[1:], minlength=VALUES**2).double()
    singles = torch.bincount(seen, minlength=VALUES).double()
    bigram = pairs.view(VALUES, VALUES) + ADD * _normal(singles + ADD) * VALUES
    scores = bigram.div(bigram.sum(1, keepdim=True)).log2()
    unigram = _normal(singles + ADD).log2()
    return Baselines(
        unigram=-float(unigram[held].mean()),
        bigram=-float(scores[held[:-1], held[1:]].mean()),
    )


def _normal(counts: torch.Tensor) -> torch.Tensor:
    return counts / counts.sum()


def _bytes(split: ByteSplit) -> torch.Tensor:
    data = split.read(0, min(len(split), SAMPLE))
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).long()
