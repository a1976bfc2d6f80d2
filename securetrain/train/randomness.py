# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Random numbers of a step: a function of (seed, step, place), like its rows.

Nothing about generators has to be saved, then, and a resumed run draws what the uninterrupted one
would have drawn. Ranks that share a replica's layers (tensor- and context-parallel ones) draw the
same, because what they compute together has to be computed alike; other rows and other stages draw
something else. On another mesh other numbers are drawn for the same rows.

The built-in models draw nothing while they train; models of one's own may (dropout).
"""

import hashlib
import random

import numpy as np
import torch


def seed_step(seed: int, step: int, *, rows: int, stage: int) -> None:
    """Seed torch, numpy and Python for one step.

    Args:
        seed: The job's.
        step: From 1.
        rows: Which share of the rows this rank sees.
        stage: Its pipeline rank.
    """
    said = f"securetrain/step/1|{seed}|{step}|{rows}|{stage}".encode()
    number = int.from_bytes(hashlib.sha256(said).digest()[:8], "big")
    torch.manual_seed(number)
    np.random.seed(number & 0xFFFFFFFF)  # noqa: NPY002 - the generator that libraries use
    random.seed(number)
