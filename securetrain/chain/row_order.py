# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The rows that a step reads, worked out again from a job's settings; no torch, no numpy.

The order is that of `train.data.order`, written down a second time: a verifier trusts no trainer.
Both are pure functions of (seed, split, step, row), and a test compares them.
"""

import hashlib
import struct
from collections.abc import Iterable
from functools import lru_cache
from typing import Annotated, Final, Literal

from msgspec import Meta

from securetrain.chain.documents import Count, Name, Part

ROUNDS: Final = 6
_GOLDEN: Final = 0x9E3779B97F4A7C15
_MASK: Final = (1 << 64) - 1
MAX_ROWS: Final = 1 << 20
Positive = Annotated[int, Meta(ge=1, le=(1 << 53) - 1)]


class RowOrder(Part, frozen=True):
    """Everything that decides where the rows of a job begin."""

    kind: Literal["random", "epochs"]
    seed: Count
    split: Name
    starts: Positive
    """Of a random order: the places to begin; of epochs: the windows."""
    seq_len: Positive
    """Tokens of a row."""
    batch_rows: Annotated[int, Meta(ge=1, le=MAX_ROWS)]
    """Rows of a step, over all ranks."""
    epochs: Count = 0
    """How often the windows may be gone through; 0 for a random order."""
    sequential: bool = False
    """Whether windows come one after the other, because the stream has shuffled already."""

    def start(self, step: int, row: int) -> tuple[int, int]:
        """The epoch, and the token of it with which a row of a step (from 1) begins.

        Raises:
            ValueError: The data has ended before that.
        """
        if self.kind == "random":
            name = f"securetrain/row/1:{self.seed}:{self.split}:{step}:{row}"
            return 0, _number_of(name) % self.starts
        epoch, number = divmod((step - 1) * self.batch_rows + row, self.starts)
        if epoch >= self.epochs:
            raise ValueError(f"step {step} comes after the last row of {self.epochs} epochs")
        if not self.sequential:
            number = _permute(number, self.starts, _key(self.seed, self.split, epoch))
        return epoch, number * self.seq_len

    def rows(self, step: int) -> list[bytes]:
        """The rows of a step as entries of a tree: epoch and first token."""
        if self.kind != "random":
            places = (self.start(step, row) for row in range(self.batch_rows))
            return [b"%d:%d" % place for place in places]
        # As `start` says, but what all rows begin with is hashed once.
        name = f"securetrain/row/1:{self.seed}:{self.split}:{step}:".encode()
        begun = hashlib.blake2b(name, digest_size=8).copy
        drawn, starts = [], self.starts
        for row in range(self.batch_rows):
            state = begun()
            state.update(b"%d" % row)
            drawn.append(state.digest())
        numbers = struct.unpack(f">{len(drawn)}Q", b"".join(drawn))
        return [b"0:%d" % (number % starts) for number in numbers]

    def root(self, step: int) -> str:
        """The root (hex) of the tree over the rows of a step.

        Raises:
            ValueError: As `start`.
        """
        return tree_root(self.rows(step)).hex()


def tree_root(entries: Iterable[bytes]) -> bytes:
    """The root of the tree of RFC 6962 over some entries.

    Level by level, the last node of an odd level goes up as it is: the same tree as the RFC's,
    whose left half is the largest power of two.
    """
    sha256 = hashlib.sha256
    level = [sha256(b"\0" + entry).digest() for entry in entries]
    if not level:
        return sha256().digest()
    while (count := len(level)) > 1:
        each = iter(level)
        paired = zip(each, each, strict=False)
        above = [sha256(b"\1" + left + right).digest() for left, right in paired]
        if count % 2:
            above.append(level[-1])
        level = above
    return level[0]


def _number_of(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big")


@lru_cache(maxsize=64)
def _key(seed: int, split: str, epoch: int) -> int:
    return _number_of(f"securetrain/epoch/1:{seed}:{split}:{epoch}")


def _permute(number: int, count: int, key: int) -> int:
    """Walk a Feistel network until the number is inside (Black and Rogaway 2002)."""
    half = max(1, (max(1, count - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    keys = [(key + n * _GOLDEN) & _MASK for n in range(1, ROUNDS + 1)]
    while True:
        left, right = number >> half, number & mask
        for one in keys:
            left, right = right, left ^ (_mix(right ^ one) & mask)
        number = (left << half) | right
        if number < count:
            return number


def _mix(x: int) -> int:
    """The finalizer of SplitMix64 (Steele, Lea and Flood 2014)."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)
