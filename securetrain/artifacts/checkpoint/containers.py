# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What a rank's file looks like inside, and how the files are called."""

import re
from collections.abc import Sequence
from typing import Final, Protocol

from torch.distributed.checkpoint.planner import WriteItem

from securetrain.artifacts.index import ALIGNMENT, Index
from securetrain.artifacts.layout import rank_file


class Container(Protocol):
    """A kind of data file."""

    alignment: int
    """Tensors start at multiples of this."""

    def names(self, has_file: Sequence[bool]) -> list[str]:
        """The name of every rank's file, by rank; empty for a rank that writes none."""

    def is_name(self, name: str) -> bool:
        """Whether a rank may write a file of this name."""

    def header(self, items: Sequence[WriteItem]) -> bytes:
        """What stands before the tensors."""

    def documents(self, index: Index) -> dict[str, bytes]:
        """Further small files of the checkpoint, by name."""


class Native:
    """Raw bytes; the index says what they are."""

    alignment: int = ALIGNMENT

    def names(self, has_file: Sequence[bool]) -> list[str]:
        """See `Container`."""
        return [rank_file(rank) if there else "" for rank, there in enumerate(has_file)]

    def is_name(self, name: str) -> bool:
        """See `Container`."""
        return _NATIVE.fullmatch(name) is not None

    def header(self, items: Sequence[WriteItem]) -> bytes:
        """See `Container`."""
        del items
        return b""

    def documents(self, index: Index) -> dict[str, bytes]:
        """See `Container`."""
        del index
        return {}


_NATIVE: Final = re.compile(r"rank-\d{5,8}\.bin")
