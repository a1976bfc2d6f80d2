# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The bytes that a seed is the hash of, and the ends of the ranks' chains. Pure.

A seed is the SHA-256 of its **opening**: a label, the draw's context, the number of ranks and every
rank's preimage, in order of rank; zeros stand for one that did not open its commitment. So the
opening is kept under the seed like any other piece of evidence, and shows that the seed is one. The
preimages hash to those of the draw before, the first ones to the **anchors** (beacon.py).
"""

import hashlib
from collections.abc import Sequence
from typing import Final

SIZE: Final = 32
MAX_RANKS: Final = 1 << 16
TRANSCRIPT: Final = b"securetrain-transcript-v2"
"""Where the digest of a transcript begins."""
_SEED: Final = "securetrain-seed-v1"
_ANCHORS: Final = b"securetrain-anchors-v1|"


def hash_of(data: bytes) -> bytes:
    """The next value of a chain."""
    return hashlib.sha256(b"securetrain-chain-v1|" + data).digest()


def opening_of(context: str, values: Sequence[bytes]) -> bytes:
    """The opening of a seed."""
    return f"{_SEED}|{context}|{len(values)}|".encode() + b"".join(values)


def values_of(opening: bytes, ranks: int) -> tuple[str, tuple[bytes, ...]]:
    """The context of an opening, and each rank's value.

    Raises:
        ValueError: it is none of so many ranks.
    """
    head, values = opening[: -ranks * SIZE], _cut(opening, ranks)
    label, _, rest = head.decode("ascii", "replace").partition("|")
    context, _, number = rest.rstrip("|").rpartition("|")
    if label != _SEED or number != str(ranks) or opening_of(context, values) != opening:
        raise ValueError(f"no opening of {ranks} ranks' values")
    return context, values


def anchors_of(values: Sequence[bytes]) -> bytes:
    """The commitments of ranks, in one piece."""
    return _ANCHORS + b"".join(values)


def read_anchors(data: bytes, ranks: int) -> tuple[bytes, ...]:
    """The ends of so many ranks' chains.

    Raises:
        ValueError: they are none.
    """
    values = _cut(data, ranks)
    if anchors_of(values) != data:
        raise ValueError(f"no anchors of {ranks} ranks")
    return values


def _cut(data: bytes, ranks: int) -> tuple[bytes, ...]:
    if not 1 <= ranks <= MAX_RANKS or len(data) < ranks * SIZE:
        raise ValueError(f"{len(data)} bytes for the values of {ranks} ranks")
    begin = len(data) - ranks * SIZE
    return tuple(data[n : n + SIZE] for n in range(begin, len(data), SIZE))
