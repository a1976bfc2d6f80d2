# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The sketch by its definition, number by number: what kernel and fallback must equal."""

import numpy as np


def places(parameters, key=0):
    """For every number of every part: which of the 256 it is added to, and its sign.

    Returns:
        Two arrays (parts, numel).
    """
    p = parameters
    words = p.tables[key].numpy().view(np.uint64)
    rows, columns = -(-p.numel // 8192), min(256, -(-p.numel // 32))
    t0 = words[:columns]
    t1 = words[columns : columns + p.parts * rows]
    t2 = words[columns + p.parts * rows :]
    assert len(t2) == columns + p.parts * rows
    i = np.arange(p.numel)
    row = np.arange(p.parts)[:, None] * rows + i // 8192
    column, lane = i % 8192 // 32, i % 16
    bits = t0[column] ^ t1[row] ^ t2[row + column]
    bits = bits >> (20 * (i % 32 // 16)).astype(np.uint64)
    turn = (t1[row] >> np.uint64(60)).astype(np.int64)
    bucket = (bits >> np.uint64(16) & np.uint64(15)).astype(np.int64)
    negative = (bits >> lane.astype(np.uint64) & np.uint64(1)).astype(np.int64)
    return 16 * bucket + (lane + turn) % 16, 1.0 - 2.0 * negative


def sketch_by_definition(flat, parameters):
    """(parts, size) fp64."""
    p = parameters
    x = flat.double().numpy().reshape(p.parts, p.numel)
    out = np.zeros((p.parts, p.shape.keys, 256))
    for key in range(p.shape.keys):
        index, sign = places(p, key)
        for part in range(p.parts):
            np.add.at(out[part, key], index[part], sign[part] * x[part])
    folded = out.reshape(p.parts, p.shape.keys, -1, p.shape.numbers).sum(axis=2)
    return folded.reshape(p.parts, -1) / np.sqrt(p.shape.keys)


def cancelling_pair(parameters):
    """Two numbers of the first part that vanish when they are equal, times these signs."""
    index, sign = places(parameters)
    seen: dict[int, tuple[int, float]] = {}
    for i, (place, s) in enumerate(zip(index[0].tolist(), sign[0].tolist(), strict=True)):
        if place in seen:
            other, s_other = seen[place]
            return other, i, s_other, -s
        seen[place] = i, s
    raise AssertionError("257 numbers have 256 places")
