# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Documents packed into one stream of tokens, each followed by the end token.

The stream of an epoch is a pure function of (seed, split, epoch): documents in an order of its own,
tokenized, one after the other. A window may begin and end inside a document, and positions run on
from one document to the next. Documents that are read together (row groups) stay together: the
groups are shuffled, and the documents inside each.

A held-out split has no seed: its documents come in the order of the files.
"""

from bisect import bisect_right
from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from securetrain.core.errors import UsageError
from securetrain.train.data.counts import Index
from securetrain.train.data.documents import Documents, false_index
from securetrain.train.data.order import number_of, permute
from securetrain.train.data.source import ByteRange
from securetrain.train.tokenizer import Tokenizer

KEPT_EPOCHS: Final = 2
KEPT_TOKENS: Final = 1 << 22
"""Of documents that were just tokenized: neighbouring windows share them."""


@dataclass(frozen=True, slots=True)
class _Epoch:
    """The order of an epoch."""

    documents: NDArray[np.int64]
    ends: NDArray[np.int64]
    """Where each ends in the stream."""


class PackedTokens:
    """The stream."""

    shuffles: Final = True

    def __init__(
        self, documents: Documents, index: Index, tokenizer: Tokenizer, seed: int | None
    ) -> None:
        """Lay out documents that were counted.

        Args:
            documents: Where texts are.
            index: How long they are; checked against the documents.
            tokenizer: The one that counted them.
            seed: Of the epochs' orders; None for the order of the files.

        Raises:
            UsageError: ST-USAG-015 when there is no document.
        """
        self.name, self.where = documents.name, documents.where
        self.vocab = tokenizer.vocab
        self._documents, self._index, self._tokenizer = documents, index, tokenizer
        self._seed = seed
        self._length = int(index.tokens.sum(dtype=np.int64))
        self._lock = Lock()
        self._epochs: OrderedDict[int, _Epoch] = OrderedDict()
        self._texts: OrderedDict[int, torch.Tensor] = OrderedDict()
        self._kept = 0
        if not self._length:
            raise UsageError(
                "ST-USAG-015",
                f"split {self.name!r} has no document",
                self.where,
                "set data.format to how documents lie in this dataset",
            )

    def __len__(self) -> int:
        return self._length

    def read(self, start: int, count: int, epoch: int) -> torch.Tensor:
        """Tokens of an epoch.

        Raises:
            IntegrityError: ST-DATA-133 when the index is false about a document, else as the
                dataset's `read`.
        """
        pieces = []
        with self._lock:
            for document, begin, end in self._spans(start, count, epoch):
                pieces.append(self._tokens(document)[begin:end])
        return torch.cat(pieces)

    def byte_ranges(self, start: int, count: int, epoch: int) -> list[ByteRange]:
        """The documents that they come from, whole."""
        with self._lock:
            spans = self._spans(start, count, epoch)
        return [self._documents.byte_range(document) for document, _, _ in spans]

    def _spans(self, start: int, count: int, epoch: int) -> list[tuple[int, int, int]]:
        """The documents that cover a range, each with its first and last token."""
        order = self._order(epoch)
        number = bisect_right(order.ends, start)
        spans, end = [], start + count
        while start < end:
            document = int(order.documents[number])
            first = int(order.ends[number]) - int(self._index.tokens[document])
            stop = min(end, int(order.ends[number]))
            spans.append((document, start - first, stop - first))
            start, number = stop, number + 1
        return spans

    def _tokens(self, document: int) -> torch.Tensor:
        found = self._texts.get(document)
        if found is not None:
            self._texts.move_to_end(document)
            return found
        ids = self._tokenizer.encode([self._documents.text(document)])[0]
        if len(ids) + 1 != int(self._index.tokens[document]):
            raise false_index(
                f"document {document} has {len(ids) + 1} tokens, not"
                f" {int(self._index.tokens[document])}",
                self.where,
            )
        found = torch.tensor([*ids, self._tokenizer.eos], dtype=torch.int64)
        self._texts[document] = found
        self._kept += len(found)
        while self._kept > KEPT_TOKENS and len(self._texts) > 1:
            self._kept -= len(self._texts.popitem(last=False)[1])
        return found

    def _order(self, epoch: int) -> _Epoch:
        epoch = epoch if self._seed is not None else 0
        found = self._epochs.get(epoch)
        if found is None:
            documents = self._shuffled(epoch)
            documents = documents[self._index.tokens[documents] > 0]
            ends = np.cumsum(self._index.tokens[documents], dtype=np.int64)
            found = self._epochs[epoch] = _Epoch(documents, ends)
            if len(self._epochs) > KEPT_EPOCHS:
                self._epochs.popitem(last=False)
        return found

    def _shuffled(self, epoch: int) -> NDArray[np.int64]:
        count = len(self._index.tokens)
        if self._seed is None:
            return np.arange(count, dtype=np.int64)
        name = f"securetrain/documents/1:{self._seed}:{self.name}:{epoch}"
        groups = self._documents.groups
        if not groups:
            return _permutation(count, name)
        starts = np.concatenate([[0], np.cumsum(groups, dtype=np.int64)])
        return np.concatenate(
            [
                starts[group] + _permutation(groups[group], f"{name}:{group}")
                for group in _permutation(len(groups), name)
            ]
        )


def _permutation(count: int, name: str) -> NDArray[np.int64]:
    numbers = np.arange(count, dtype=np.uint64)
    return permute(numbers, count, number_of(name)).astype(np.int64)
