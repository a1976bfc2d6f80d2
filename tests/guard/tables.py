# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Tables of simulated ranks: what each of them says of a gradient that it really sent."""

from dataclasses import dataclass

import numpy as np
import torch

from securetrain.guard.sketch import SketchShape, derive, shape_for, sketch, sketch_part

ROUNDOFF = 2.0**-24


@dataclass
class Said:
    """The rows of all ranks; row r is rank r's, and a lie changes it."""

    parts: np.ndarray
    groups: np.ndarray
    received: np.ndarray
    moments: np.ndarray
    unit: float


def gradients(ranks, *, numel=(1680, 2400, 840), seed=0, signal=1.0):
    """One gradient a rank for each group: a common direction and noise of the same length."""
    generator = torch.Generator().manual_seed(seed)
    return [
        signal * torch.randn(size, generator=generator)
        + torch.randn(ranks, size, generator=generator)
        for size in numel
    ]


def say(sent, *, sharded, seed=b"s" * 32, told=None, moment=None):
    """What honest ranks say.

    Args:
        sent: for each group (ranks, numel): what is reduced.
        sharded: FSDP2, else DDP.
        seed: of the sketches.
        told: for each group what the ranks sketch, if it is something else.
        moment: for each group (numel,).
    """
    ranks = len(sent[0])
    parts, shape = ranks if sharded else 1, shape_for(ranks)
    told = sent if told is None else told
    k = shape.size
    rows = Said(
        parts=np.zeros((ranks, parts, k)),
        groups=np.zeros((ranks, len(sent), k)),
        received=np.zeros((ranks, len(sent), k)),
        moments=np.zeros((ranks, len(sent), k)),
        unit=SketchShape().rows ** -0.5,
    )
    for g, (real, said) in enumerate(zip(sent, told, strict=True)):
        p = derive(seed, f"{g}", numel=real.shape[1] // parts, parts=parts, shape=shape)
        mean = real.mean(dim=0).view(parts, -1)
        for rank in range(ranks):
            sketches = sketch(said[rank], p).numpy()
            rows.parts[rank] += sketches
            rows.groups[rank, g] = sketches.sum(axis=0)
            part = rank if sharded else 0
            rows.received[rank, g] = sketch_part(mean[part].contiguous(), p, part).numpy()
            if moment is not None:
                piece = moment[g].view(parts, -1)[part].contiguous()
                rows.moments[rank, g] = sketch_part(piece, p, part).numpy()
    for name in ("parts", "groups", "received", "moments"):  # rows travel in fp32
        setattr(rows, name, getattr(rows, name).astype(np.float32).astype(np.float64))
    return rows
