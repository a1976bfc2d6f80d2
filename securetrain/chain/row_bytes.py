# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The bytes of a dataset that the rows of some steps are made from, by a job's settings. No torch.

Only where a byte, or so many bytes, are a token: rows that are cut from documents depend on a
tokenizer, and on the whole of the split. What was removed from the dataset is left out of a split,
as the trainer leaves it out (`train.data.source`); this is written down a second time, because a
verifier trusts no trainer. Tests compare its bytes with those that were signed.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

from securetrain.artifacts.dataset import Removals
from securetrain.artifacts.statement import DatasetPredicate, dataset_predicate
from securetrain.chain import documents
from securetrain.chain.row_order import RowOrder
from securetrain.chain.store import Pieces, document
from securetrain.core.errors import IntegrityError

WIDTH: Final = "token_bytes"
"""Metadata of a dataset of tokens, which says how wide they are."""
BYTES: Final = "bytes"
TOKENS: Final = "tokens"
DOCUMENTS: Final = frozenset({"text", "jsonl", "parquet"})
"""Formats whose rows are cut from documents, which the trainer shuffles and packs itself."""


def settings_of(pieces: Pieces, job: str | None) -> Mapping[str, Any] | None:
    """The settings that a bound job declared; None when they are not there.

    Raises:
        IntegrityError: ST-CHAN-001.
    """
    found = None if job is None else document(pieces, job, documents.Job)
    if found is None or found.declared is None:
        return None
    declared = document(pieces, found.declared, documents.Declared)
    return None if declared is None else declared.settings


def format_of(dataset: DatasetPredicate, settings: Mapping[str, Any]) -> str | None:
    """The format that the trainer reads a dataset in: the job's choice, or what the dataset's own
    statement says (`train.data.open`, written down a second time); None where nobody can say.
    """
    data = settings.get("data")
    if not isinstance(data, dict):
        return None
    chosen = data.get("format")
    if chosen is not None:
        return chosen if chosen in {BYTES, TOKENS} | DOCUMENTS else None
    match dataset.format:
        case dataset_predicate.DataFormat.JSONL | dataset_predicate.DataFormat.PARQUET as signed:
            return signed.value
        case dataset_predicate.DataFormat.RAW if (
            data.get("token_bytes") is not None or WIDTH in dataset.metadata
        ):
            return TOKENS
        case dataset_predicate.DataFormat.RAW:
            return BYTES if data.get("tokenizer") == BYTES else "text"
        case _:
            return None


def width_of(dataset: DatasetPredicate, settings: Mapping[str, Any]) -> int | None:
    """Bytes of a token; None where tokens are made from documents.

    Raises:
        IntegrityError: ST-CHAN-016, the job and the dataset's statement say two widths, or none.
    """
    match format_of(dataset, settings):
        case "bytes":
            return 1
        case "tokens":
            said = {settings["data"].get("token_bytes"), dataset.metadata.get(WIDTH)}
            widths = {str(one) for one in said if one is not None}
            if widths not in ({"2"}, {"4"}):
                raise _refuse(f"tokens of {' or '.join(sorted(widths)) or 'unknown'} bytes")
            (width,) = widths
            return int(width)
        case _:
            return None


@dataclass(frozen=True, slots=True)
class RowBytes:
    """The bytes of a split that rows are cut from."""

    order: RowOrder
    width: int
    _stretches: tuple[tuple[str, int, int], ...]
    _ends: tuple[int, ...]

    @classmethod
    def of(cls, dataset: DatasetPredicate, order: RowOrder, width: int) -> "RowBytes":
        """Lay out a split.

        Raises:
            IntegrityError: ST-CHAN-016 when the dataset has no such split.
        """
        split = next((one for one in dataset.splits if one.name == order.split), None)
        if split is None:
            raise _refuse(f"the dataset has no split {order.split!r}")
        sizes = {file.name: file.size for file in dataset.files}
        removals = Removals.of(dataset.removed)
        found: list[tuple[str, int, int]] = []
        for name in split.files:
            for begin, end in removals.kept(name, sizes[name]):
                first, last = -(-begin // width) * width, end // width * width
                if first < last:
                    found.append((name, first, last - first))
        return cls(order, width, tuple(found), tuple(accumulate(one[2] for one in found)))

    @property
    def num_tokens(self) -> int:
        """The tokens of the split, without what was removed."""
        return self._ends[-1] // self.width if self._ends else 0

    def of_step(self, step: int) -> Iterator[tuple[str, int, int]]:
        """File, offset and length of every stretch that the rows of a step are made from.

        Raises:
            IntegrityError: ST-CHAN-016 when a row ends behind the data.
        """
        length = (self.order.seq_len + 1) * self.width
        for row in range(self.order.batch_rows):
            try:
                _, token = self.order.start(step, row)
            except ValueError as error:
                raise _refuse(str(error)) from error
            yield from self._cut(token * self.width, length, step)

    def leaves(self, steps: Iterable[int], leaf_size: int) -> dict[str, set[int]]:
        """By file, the numbers of the leaves that hold the rows of some steps.

        Raises:
            IntegrityError: ST-CHAN-016, as `of_step`.
        """
        found: dict[str, set[int]] = {}
        for step in steps:
            for name, offset, length in self.of_step(step):
                first, last = offset // leaf_size, (offset + length - 1) // leaf_size
                found.setdefault(name, set()).update(range(first, last + 1))
        return found

    def _cut(self, at: int, length: int, step: int) -> Iterator[tuple[str, int, int]]:
        if not self._ends or at + length > self._ends[-1]:
            raise _refuse(f"a row of step {step} ends behind the data")
        number = bisect_right(self._ends, at)
        while length:
            name, offset, size = self._stretches[number]
            inside = at - (self._ends[number] - size)
            take = min(length, size - inside)
            yield name, offset + inside, take
            at, length, number = at + take, length - take, number + 1


def _refuse(what: str) -> IntegrityError:
    return IntegrityError("ST-CHAN-016", what, "rows")
