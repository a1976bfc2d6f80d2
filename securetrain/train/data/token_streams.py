# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Streams of tokens: what rows are cut from.

A stream has a length and can be read anywhere. Bytes are their own tokens; a token bin holds
numbers of two or four bytes (little-endian), each of which must be of the vocabulary before a
model sees it: an embedding that is asked for a row which it does not have reads other memory on
some devices, and ends the process on others.
"""

from typing import Final, Protocol

import numpy as np
import torch

from securetrain.core.errors import UsageError
from securetrain.train.data.source import ByteRange, ByteSplit

BYTE_VALUES: Final = 256


class Stream(Protocol):
    """Tokens one after the other."""

    @property
    def name(self) -> str:
        """The split's name, from which its order is drawn."""

    @property
    def where(self) -> str:
        """The job file and field that named it, for messages."""

    @property
    def vocab(self) -> int:
        """Every token is below this."""

    @property
    def shuffles(self) -> bool:
        """True when the stream shuffles each epoch itself, so that windows come in turn."""

    def __len__(self) -> int:
        """Tokens of an epoch."""

    def read(self, start: int, count: int, epoch: int) -> torch.Tensor:
        """Verified tokens, int64."""

    def byte_ranges(self, start: int, count: int, epoch: int) -> list[ByteRange]:
        """The bytes of the dataset that some tokens come from."""


class ByteTokens:
    """Every byte is a token."""

    vocab: Final = BYTE_VALUES
    shuffles: Final = False

    def __init__(self, split: ByteSplit) -> None:
        self.split = split
        self.name, self.where = split.name, split.where

    def __len__(self) -> int:
        return len(self.split)

    def read(self, start: int, count: int, epoch: int) -> torch.Tensor:
        """Verified tokens; every epoch is the same."""
        del epoch
        data = bytearray(self.split.read(start, count))
        return torch.frombuffer(data, dtype=torch.uint8).long() if data else _nothing()

    def byte_ranges(self, start: int, count: int, epoch: int) -> list[ByteRange]:
        """The bytes of the dataset that some tokens come from."""
        del epoch
        return self.split.byte_ranges(start, count)


class BinTokens:
    """Raw numbers of a fixed width."""

    shuffles: Final = False

    def __init__(self, split: ByteSplit, width: int, vocab: int) -> None:
        """Lay tokens over a split.

        Args:
            split: The bytes, laid out in units of `width`.
            width: Bytes of a token: 2 or 4.
            vocab: Every token must be below this.
        """
        self.split = split
        self.name, self.where = split.name, split.where
        self.vocab = vocab
        self._width = width
        self._dtype = np.dtype({2: "<u2", 4: "<u4"}[width])

    def __len__(self) -> int:
        return len(self.split) // self._width

    def read(self, start: int, count: int, epoch: int) -> torch.Tensor:
        """Verified tokens; every epoch is the same.

        Raises:
            UsageError: ST-USAG-015 when one is not of the vocabulary.
        """
        del epoch
        data = self.split.read(start * self._width, count * self._width)
        tokens = np.frombuffer(data, dtype=self._dtype).astype(np.int64)
        if count and int(tokens.max()) >= self.vocab:
            at = int(np.argmax(tokens >= self.vocab))
            place = self.split.byte_ranges((start + at) * self._width, self._width)[0]
            raise UsageError(
                "ST-USAG-015",
                f"token {tokens[at]} at byte {place.offset}; the vocabulary has {self.vocab}",
                f"{self.where}: {place.file}",
                "set data.token_bytes to the width that the file was written with, or model.vocab"
                " to the size of the tokenizer that wrote it",
            )
        return torch.from_numpy(tokens)

    def byte_ranges(self, start: int, count: int, epoch: int) -> list[ByteRange]:
        """The bytes of the dataset that some tokens come from."""
        del epoch
        return self.split.byte_ranges(start * self._width, count * self._width)


def _nothing() -> torch.Tensor:
    return torch.empty(0, dtype=torch.int64)
