# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A split of a signed dataset as one long string of verified bytes.

Rules:

1. every read goes through the dataset's `read`, which verifies the bytes before they are used;
2. a split is a list of whole files, so that no document is on both sides; they are taken one after
   the other;
3. what was removed from the dataset is left out: what is before and after it becomes neighbours.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple, Protocol

from securetrain.artifacts.dataset import Removals
from securetrain.core.errors import UsageError


class ByteSource(Protocol):
    """The part of `artifacts.Dataset` that this package needs."""

    @property
    def splits(self) -> Mapping[str, Sequence[str]]:
        """Split name to the names of its files."""

    @property
    def files(self) -> Mapping[str, int]:
        """File name to its size in bytes."""

    def read(self, file: str, offset: int, length: int) -> bytes:
        """Verified bytes of a file."""

    @property
    def removals(self) -> Removals:
        """The byte ranges that must not be read."""


class ByteRange(NamedTuple):
    """Some bytes of a dataset: what an auditor looks up."""

    file: str
    offset: int
    length: int


class ByteSplit:
    """One split, or some of its files, as one long byte string."""

    def __init__(
        self,
        source: ByteSource,
        split: str,
        where: str,
        *,
        files: Iterable[str] | None = None,
        unit: int = 1,
    ) -> None:
        """Lay out the split's files in their order.

        Args:
            source: The dataset.
            split: The name of the split.
            where: The job file and field that named it, for the message.
            files: Those of its files that are meant; all of them when not given.
            unit: Bytes that belong together (a token). Files divide into them; of a unit of which
                something was removed nothing is read.

        Raises:
            UsageError: ST-USAG-007 when there is no such split, or a file does not divide.
        """
        if split not in source.splits:
            raise UsageError(
                "ST-USAG-007",
                f"the dataset has no split {split!r}",
                where,
                f"name one of: {', '.join(sorted(source.splits))}",
            )
        self.name = split
        self.where = where
        self._source = source
        self._stretches = [
            stretch
            for name in (source.splits[split] if files is None else files)
            for stretch in _stretches(source, name, unit, where)
        ]
        self._ends = list(accumulate(stretch.length for stretch in self._stretches))
        self.file_starts = self._find_file_starts()
        """Where each file begins in the string."""

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def read(self, start: int, length: int) -> bytes:
        """Verified bytes from `start`, across the ends of files.

        Raises:
            IntegrityError: ST-DATA-130 to 200.
        """
        return b"".join(self._source.read(*place) for place in self.byte_ranges(start, length))

    def byte_ranges(self, start: int, length: int) -> list[ByteRange]:
        """The places in the dataset of `length` bytes from `start`."""
        if not 0 <= start <= start + length <= len(self):
            raise ValueError(f"{start}..{start + length} is outside of {len(self)} bytes")
        found: list[ByteRange] = []
        number = bisect_right(self._ends, start)
        while length:
            stretch = self._stretches[number]
            inside = start - (self._ends[number] - stretch.length)
            take = min(length, stretch.length - inside)
            found.append(ByteRange(stretch.file, stretch.offset + inside, take))
            start, length, number = start + take, length - take, number + 1
        return found

    def _find_file_starts(self) -> list[int]:
        starts, last = [], None
        for stretch, end in zip(self._stretches, self._ends, strict=True):
            if stretch.file != last:
                starts.append(end - stretch.length)
                last = stretch.file
        return starts


def _stretches(source: ByteSource, name: str, unit: int, where: str) -> Iterable[ByteRange]:
    if source.files[name] % unit:
        raise UsageError(
            "ST-USAG-007",
            f"{name} has {source.files[name]} bytes, which do not divide into tokens of {unit}",
            where,
            "set data.token_bytes to the width that the file was written with",
        )
    for begin, end in source.removals.kept(name, source.files[name]):
        first, last = -(-begin // unit) * unit, end // unit * unit
        if first < last:
            yield ByteRange(name, first, last - first)
