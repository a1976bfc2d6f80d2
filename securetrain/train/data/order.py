# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The start of each row: pure functions of (seed, split, step, row).

Two orders:

- ``random``: each row begins anywhere, drawn anew. Data never ends and nothing is promised about
  how often a byte is seen;
- ``epochs``: the split is cut into windows once, and an epoch takes each of them once, in an order
  of its own. After the last epoch the data has ended.

The order of an epoch is a permutation that is computed for one number at a time and never stored: a
Feistel network over the next power of four, walked until the number is inside (Black and Rogaway
2002, "Ciphers with arbitrary finite domains"). It shuffles; it does not hide anything.
"""

import hashlib
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from securetrain.core.errors import UsageError

ROUNDS: Final = 6
_GOLDEN: Final = 0x9E3779B97F4A7C15
_MASK: Final = (1 << 64) - 1


class Order(Protocol):
    """Says where rows begin."""

    def start(self, step: int, row: int) -> tuple[int, int]:
        """The epoch, and the token of it with which row number `row` of a step begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomOrder:
    """Rows that begin anywhere."""

    seed: int
    split: str
    starts: int
    """How many places there are to begin."""

    def start(self, step: int, row: int) -> tuple[int, int]:
        """Drawn from the row's own name."""
        name = f"securetrain/row/1:{self.seed}:{self.split}:{step}:{row}"
        return 0, number_of(name) % self.starts


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochOrder:
    """Each window once an epoch."""

    seed: int
    split: str
    windows: int
    seq_len: int
    batch_rows: int
    """Rows of a step, over all ranks: the cursor is step times this."""
    epochs: int
    sequential: bool
    """Whether windows are taken one after the other, because the stream has shuffled already."""
    where: str

    def start(self, step: int, row: int) -> tuple[int, int]:
        """Steps are counted from 1.

        Raises:
            UsageError: ST-USAG-014 when the data has ended.
        """
        epoch, number = divmod((step - 1) * self.batch_rows + row, self.windows)
        if epoch >= self.epochs:
            raise exhausted(self, step)
        if not self.sequential:
            key = number_of(f"securetrain/epoch/1:{self.seed}:{self.split}:{epoch}")
            number = int(permute(np.array([number], dtype=np.uint64), self.windows, key)[0])
        return epoch, number * self.seq_len

    def check(self, steps: int) -> None:
        """Refuse a job whose data would end before it does.

        Raises:
            UsageError: ST-USAG-014.
        """
        if steps * self.batch_rows > self.epochs * self.windows:
            raise exhausted(self, steps)


def exhausted(order: EpochOrder, step: int) -> UsageError:
    """The refusal of a step for which there is no data any more."""
    rows = order.windows * order.epochs
    needed = -(-step * order.batch_rows // order.windows)
    return UsageError(
        "ST-USAG-014",
        f"step {step} needs row {step * order.batch_rows}, and {order.epochs} epoch(s) of split"
        f" {order.split!r} have {rows}",
        order.where,
        f"set steps to {rows // order.batch_rows} or fewer, or data.epochs to {needed}",
    )


def number_of(name: str) -> int:
    """64 bits that belong to a name."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big")


def permute(numbers: NDArray[np.uint64], count: int, key: int) -> NDArray[np.uint64]:
    """Map numbers through the permutation of 0..count-1 that `key` chooses."""
    half = max(1, (max(1, count - 1).bit_length() + 1) // 2)
    keys = [np.uint64((key + n * _GOLDEN) & _MASK) for n in range(1, ROUNDS + 1)]
    result = _network(numbers, np.uint64(half), keys)
    while (outside := result >= np.uint64(count)).any():
        result[outside] = _network(result[outside], np.uint64(half), keys)
    return result


def _network(
    numbers: NDArray[np.uint64], half: np.uint64, keys: list[np.uint64]
) -> NDArray[np.uint64]:
    mask = (np.uint64(1) << half) - np.uint64(1)
    left, right = numbers >> half, numbers & mask
    for key in keys:
        left, right = right, left ^ (_mix(right ^ key) & mask)
    return (left << half) | right


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finalizer of SplitMix64 (Steele, Lea and Flood 2014)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
