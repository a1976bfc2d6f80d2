# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The documents of a split: where each is, and its text.

Rules:

1. documents are numbered in the order of the files; their number and sizes are either signed or
   counted once by reading all of them (`counts`);
2. a document that was counted before is judged again when it is used: it must begin where a line
   begins, be one line, and hold the field. An index can therefore be late, and cannot lie;
3. text is UTF-8, at most 64 MiB a document.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from securetrain.artifacts.dataset import write
from securetrain.core import canonical
from securetrain.core.errors import IntegrityError, UsageError
from securetrain.train.data.source import ByteRange, ByteSplit

DOCUMENT_LIMIT: Final = 64 << 20
READ: Final = 1 << 20
BLANK: Final = 2
"""The longest line that may be empty: its end."""

Sizes = NDArray[np.uint32]


class Documents(Protocol):
    """The documents of a split, as counting and packing need them."""

    @property
    def name(self) -> str:
        """The split's name."""

    @property
    def where(self) -> str:
        """The job file and field that named it."""

    @property
    def format(self) -> str:
        """Their format in the files, and the field that holds their text."""

    @property
    def groups(self) -> Sequence[int]:
        """Sizes of the groups of documents that are read together; empty: each is read alone."""

    def scan(self) -> Iterator[tuple[int, str | None]]:
        """Size and text of each, in order; None where there is no document (an empty line)."""

    def set_sizes(self, sizes: Sizes) -> None:
        """Take the sizes that `scan` gave, from an index.

        Raises:
            IntegrityError: ST-DATA-133 when they cannot be those of these documents.
        """

    def text(self, number: int) -> str:
        """The text of one, verified.

        Raises:
            IntegrityError: ST-DATA-133 when there is none at its place, else as the dataset's.
        """

    def byte_range(self, number: int) -> ByteRange:
        """The position of a document in the dataset."""


class JsonLines:
    """One document a line: a field of an object."""

    groups: Sequence[int] = ()

    def __init__(self, split: ByteSplit, field: str) -> None:
        self.split = split
        self.name, self.where = split.name, split.where
        self.format = f"jsonl:{field}"
        self._field = field
        self._ends: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._file_starts = frozenset(split.file_starts)
        self._file_ends = frozenset((*split.file_starts, len(split)))

    def scan(self) -> Iterator[tuple[int, str | None]]:
        """Read all lines; a file's end ends a line, too.

        Raises:
            UsageError: ST-USAG-015 when one is not an object with the field.
        """
        starts = [*self.split.file_starts, len(self.split)]
        for begin, end in pairwise(starts):
            at = begin
            for line in _lines(self.split, begin, end):
                blank = len(line) <= BLANK and not line.strip()
                yield len(line), None if blank else self._parse(line, at)
                at += len(line)

    def set_sizes(self, sizes: Sizes) -> None:
        """Lines follow each other without a gap, to the end of the split."""
        self._ends = np.cumsum(sizes, dtype=np.int64)
        if (int(self._ends[-1]) if len(sizes) else 0) != len(self.split):
            raise false_index("its lines do not cover the split", self.where)

    def text(self, number: int) -> str:
        """The field of a line."""
        start, length = self._span(number)
        # One byte earlier, to see that a line begins here.
        first = start in self._file_starts
        data = self.split.read(start if first else start - 1, length if first else length + 1)
        line = data if first else data[1:]
        ended = line.endswith(b"\n") or start + length in self._file_ends
        if not (first or data.startswith(b"\n")) or line[:-1].count(b"\n") or not ended:
            raise false_index(f"document {number} is not a line", self.where)
        return self._parse(line, start)

    def byte_range(self, number: int) -> ByteRange:
        """The position of a line; its first bytes, if something was removed from its middle."""
        return self.split.byte_ranges(*self._span(number))[0]

    def _span(self, number: int) -> tuple[int, int]:
        start = int(self._ends[number - 1]) if number else 0
        return start, int(self._ends[number]) - start

    def _parse(self, line: bytes, at: int) -> str:
        what = ""
        try:
            value = canonical.loads(line, limit=DOCUMENT_LIMIT)
        except UsageError as error:
            what = error.what
        else:
            if not isinstance(value, dict):
                what = "not an object"
            elif not isinstance(value.get(self._field), str):
                names = ", ".join(sorted(value)[:10])
                what = f"no text in field {self._field!r}; it has {names or 'no fields'}"
        if what:
            found = self.split.byte_ranges(at, len(line))[0]
            raise not_in_format(f"the line at byte {found.offset}: {what}", self.where, found.file)
        return str(value[self._field])


class TextFiles:
    """One document a file, or what the dataset's signed table of documents names."""

    groups: Sequence[int] = ()

    def __init__(self, split: ByteSplit, documents: Sequence[write.Document]) -> None:
        """Lay documents over a split.

        Args:
            split: The bytes.
            documents: The signed table, if there is one; it covers the split.
        """
        self.split = split
        self.name, self.where = split.name, split.where
        self.format = "text"
        sizes = [one.length for one in documents]
        if not sizes or sum(sizes) != len(split):
            # Without a table, or when something was removed.
            starts = [*split.file_starts, len(split)]
            sizes = [end - begin for begin, end in pairwise(starts)]
        self._ends = list(accumulate(sizes))

    def scan(self) -> Iterator[tuple[int, str | None]]:
        """Read all of them.

        Raises:
            UsageError: ST-USAG-015 when one is not text.
        """
        for number, end in enumerate(self._ends):
            yield end - (self._ends[number - 1] if number else 0), self.text(number)

    def set_sizes(self, sizes: Sizes) -> None:
        """They are what the dataset says."""
        if np.cumsum(sizes, dtype=np.int64).tolist() != self._ends:
            raise false_index("its documents are not the dataset's", self.where)

    def text(self, number: int) -> str:
        """A whole document."""
        start = self._ends[number - 1] if number else 0
        length = self._ends[number] - start
        try:
            if length > DOCUMENT_LIMIT:
                raise ValueError(f"{length} bytes, the limit is {DOCUMENT_LIMIT}")
            return self.split.read(start, length).decode()
        except ValueError as error:
            raise not_in_format(str(error), self.where, self.byte_range(number).file) from error

    def byte_range(self, number: int) -> ByteRange:
        """The position of a document."""
        start = self._ends[number - 1] if number else 0
        found = self.split.byte_ranges(start, self._ends[number] - start)
        return found[0] if found else ByteRange("", 0, 0)


def not_in_format(what: str, where: str, file: str) -> UsageError:
    """The refusal of a document."""
    return UsageError(
        "ST-USAG-015",
        what,
        f"{where}: {file}",
        "set data.format and data.field to how documents lie in this dataset; or repair the file"
        " and sign"
        " the dataset again",
    )


def false_index(what: str, where: str) -> IntegrityError:
    """The refusal of an index that does not fit the dataset."""
    return IntegrityError("ST-DATA-133", f"the index of documents is false: {what}", where)


def _lines(split: ByteSplit, begin: int, end: int) -> Iterator[bytes]:
    """The lines between two places of a split, with their ends; reads ahead a little at a time."""
    pending = b""
    while begin < end:
        piece = split.read(begin, min(READ, end - begin))
        begin += len(piece)
        *whole, pending = (pending + piece).split(b"\n")
        for line in whole:
            yield line + b"\n"
        if len(pending) > DOCUMENT_LIMIT:
            raise not_in_format(
                f"a line of more than {DOCUMENT_LIMIT} bytes", split.where, split.name
            )
    if pending:
        yield pending
