# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Rows of bytes out of a signed dataset.

Rules:

1. a row is a pure function of (seed, split, step, row): any rank can make any row, the state that a
   checkpoint needs is one integer, another number of ranks changes nothing, and an auditor can
   recompute which bytes every rank saw;
2. every read goes through the dataset's `read`, which verifies the bytes before they are used;
3. a split is a list of whole documents, so that no document is on both sides; inside a split rows
   are cut from the concatenation and may cross from one document to the next.
"""

import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Protocol

import torch

from securetrain.core.errors import UsageError


class ByteSource(Protocol):
    """What this module needs of `securetrain.artifacts.dataset.VerifiedDataset`."""

    @property
    def splits(self) -> Mapping[str, Sequence[str]]:
        """Split name to the names of its files."""

    @property
    def files(self) -> Mapping[str, int]:
        """File name to its size in bytes."""

    def read(self, file: str, offset: int, length: int) -> bytes:
        """Verified bytes of a file."""


class ByteSplit:
    """One split of a dataset as one long byte string."""

    def __init__(self, source: ByteSource, split: str, where: str) -> None:
        """Lay out the split's files in their order.

        Args:
            source: The dataset.
            split: The name of the split.
            where: The job file and field that named it, for the message.

        Raises:
            UsageError: ST-USAG-007 when there is no such split.
        """
        if split not in source.splits:
            raise UsageError(
                "ST-USAG-007",
                f"the dataset has no split {split!r}",
                where,
                f"one of: {', '.join(sorted(source.splits))}",
            )
        self.name = split
        self.where = where
        self._source = source
        self._files = [name for name in source.splits[split] if source.files[name]]
        self._ends = list(accumulate(source.files[name] for name in self._files))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def read(self, start: int, length: int) -> bytes:
        """Verified bytes from `start`, across document boundaries."""
        if not 0 <= start <= start + length <= len(self):
            raise ValueError(f"{start}..{start + length} is outside of {len(self)} bytes")
        pieces: list[bytes] = []
        number = bisect_right(self._ends, start)
        while length:
            begin = self._ends[number - 1] if number else 0
            take = min(length, self._ends[number] - start)
            pieces.append(self._source.read(self._files[number], start - begin, take))
            start, length, number = start + take, length - take, number + 1
        return b"".join(pieces)


class Rows:
    """Rows of `seq_len` bytes with the byte that follows each."""

    def __init__(self, split: ByteSplit, seq_len: int, seed: int) -> None:
        if len(split) <= seq_len:
            raise UsageError(
                "ST-USAG-007",
                f"split {split.name!r} has {len(split)} bytes, a row needs {seq_len + 1}",
                split.where,
                "data.seq_len: a smaller one, or use a larger dataset",
            )
        self.split = split
        self.seq_len = seq_len
        self.seed = seed

    def start(self, step: int, row: int) -> int:
        """Where row number `row` of step `step` begins in the split."""
        name = f"securetrain/row/1:{self.seed}:{self.split.name}:{step}:{row}"
        digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") % (len(self.split) - self.seq_len)

    def batch(self, step: int, rows: Iterable[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets, both (B, S) int64 on the CPU, for some rows of a step."""
        return self._cut(self.start(step, row) for row in rows)

    def spaced(self, count: int, rows: Iterable[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Some of `count` rows that are spread evenly over the split: the same at every call."""
        last = len(self.split) - self.seq_len - 1
        return self._cut(last * row // max(1, count - 1) for row in rows)

    def _cut(self, starts: Iterable[int]) -> tuple[torch.Tensor, torch.Tensor]:
        rows = [self.split.read(start, self.seq_len + 1) for start in starts]
        flat = torch.frombuffer(bytearray(b"".join(rows)), dtype=torch.uint8)
        window = flat.view(len(rows), self.seq_len + 1).long()
        return window[:, :-1], window[:, 1:]


def share(total: int, rank: int, ranks: int) -> range:
    """The rows of a step that belong to one data-parallel rank."""
    each = total // ranks
    return range(rank * each, (rank + 1) * each)
