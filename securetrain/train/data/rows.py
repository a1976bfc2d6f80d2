# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Rows of tokens out of a stream.

A row is a pure function of (seed, split, step, row): any rank can make any row, the state that a
checkpoint needs is one integer, another number of ranks changes nothing, and an auditor can
recompute which bytes every rank saw.
"""

from collections.abc import Iterable
from typing import Protocol

import torch

from securetrain.chain.rows import RowOrder
from securetrain.core.errors import UsageError
from securetrain.train.data.order import EpochOrder, Order, RandomOrder
from securetrain.train.data.source import ByteRange
from securetrain.train.data.token_streams import Stream

Batch = tuple[torch.Tensor, torch.Tensor]
"""Inputs and targets, both (B, S) int64 on the CPU."""


class RowSource(Protocol):
    """A source of the rows of a step."""

    def batch(self, step: int, rows: Iterable[int]) -> Batch:
        """Some rows of a step."""


class Rows:
    """Rows of `seq_len` tokens with the token that follows each."""

    def __init__(
        self, stream: Stream, seq_len: int, seed: int, order: EpochOrder | None = None
    ) -> None:
        """Cut rows from a stream.

        Args:
            stream: The tokens.
            seq_len: Tokens of a row.
            seed: Of the order.
            order: Where rows begin; anywhere when not given.

        Raises:
            UsageError: ST-USAG-007 when the stream is too short for a row.
        """
        check_length(stream, seq_len)
        self.stream = stream
        self.seq_len = seq_len
        self._order: Order = order or RandomOrder(
            seed=seed, split=stream.name, starts=len(stream) - seq_len
        )

    def start(self, step: int, row: int) -> tuple[int, int]:
        """The epoch, and where in it row number `row` of step `step` begins.

        Raises:
            UsageError: ST-USAG-014 when the data has ended.
        """
        return self._order.start(step, row)

    def described(self, batch_rows: int) -> RowOrder:
        """Everything that decides where rows begin, for records that others check."""
        match self._order:
            case EpochOrder() as order:
                return RowOrder(
                    kind="epochs",
                    seed=order.seed,
                    split=order.split,
                    starts=order.windows,
                    seq_len=self.seq_len,
                    batch_rows=batch_rows,
                    epochs=order.epochs,
                    sequential=order.sequential,
                )
            case RandomOrder() as order:
                return RowOrder(
                    kind="random",
                    seed=order.seed,
                    split=order.split,
                    starts=order.starts,
                    seq_len=self.seq_len,
                    batch_rows=batch_rows,
                )
            case order:
                raise ValueError(f"rows in an order of their own: {type(order).__name__}")

    def batch(self, step: int, rows: Iterable[int]) -> Batch:
        """Inputs and targets, both (B, S) int64 on the CPU, for some rows of a step.

        Raises:
            UsageError: ST-USAG-014 when the data has ended.
            IntegrityError: ST-DATA-122 to 200.
        """
        return self._cut(self.start(step, row) for row in rows)

    def byte_ranges(self, step: int, row: int) -> list[ByteRange]:
        """The bytes of the dataset that a row was made from."""
        epoch, start = self.start(step, row)
        return self.stream.byte_ranges(start, self.seq_len + 1, epoch)

    def spaced(self, count: int, rows: Iterable[int]) -> Batch:
        """Some of `count` rows that are spread evenly over the split: the same at every call."""
        last = len(self.stream) - self.seq_len - 1
        return self._cut((0, last * row // max(1, count - 1)) for row in rows)

    def _cut(self, starts: Iterable[tuple[int, int]]) -> Batch:
        window = torch.stack(
            [self.stream.read(start, self.seq_len + 1, epoch) for epoch, start in starts]
        )
        return window[:, :-1], window[:, 1:]


def epoch_order(
    stream: Stream, *, seq_len: int, seed: int, batch_rows: int, epochs: int
) -> EpochOrder:
    """Each window of a stream once an epoch.

    Raises:
        UsageError: ST-USAG-007 when the stream is too short for a row.
    """
    check_length(stream, seq_len)
    return EpochOrder(
        seed=seed,
        split=stream.name,
        windows=(len(stream) - 1) // seq_len,
        seq_len=seq_len,
        batch_rows=batch_rows,
        epochs=epochs,
        sequential=stream.shuffles,
        where=stream.where,
    )


def check_length(stream: Stream, seq_len: int) -> None:
    """Refuse a stream that is too short for a row.

    Raises:
        UsageError: ST-USAG-007.
    """
    if len(stream) <= seq_len:
        raise UsageError(
            "ST-USAG-007",
            f"split {stream.name!r} has {len(stream)} tokens, a row needs {seq_len + 1}",
            stream.where,
            "set data.seq_len to less, or use a larger dataset",
        )


def share(total: int, rank: int, ranks: int) -> range:
    """The rows of a step that belong to one data-parallel rank."""
    each = total // ranks
    return range(rank * each, (rank + 1) * each)
