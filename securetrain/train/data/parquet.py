# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The documents of Parquet files: a column of strings, read by pyarrow from verified bytes.

Rules:

1. pyarrow sees nothing but bytes that were verified, through a file object of the dataset;
2. its limits for file metadata are set, and a row group whose column says that it unpacks to more
   than 1 GiB is refused before it is read;
3. row groups are read whole, and the last few are kept: an epoch's order keeps rows of one group
   together (`Documents.groups`).
"""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from threading import Lock
from typing import Any, Final

import numpy as np

from securetrain.artifacts.dataset import VerifiedFile
from securetrain.core import install_hint
from securetrain.core.errors import UsageError
from securetrain.train.data.documents import Sizes, false_index, not_in_format
from securetrain.train.data.source import ByteRange, ByteSource

GROUP_LIMIT: Final = 1 << 30
METADATA_LIMIT: Final = 64 << 20
KEPT: Final = 4
_LIBRARY: Final = (OSError, ValueError, TypeError, KeyError, IndexError, NotImplementedError)
"""The exceptions of pyarrow."""


@dataclass(frozen=True, slots=True)
class _Group:
    """A row group of a file."""

    file: str
    number: int
    rows: int


class ParquetRows:
    """One document a row."""

    def __init__(
        self, source: ByteSource, split: str, files: Sequence[str], field: str, where: str
    ) -> None:
        """Read the metadata of the files.

        Raises:
            UsageError: ST-USAG-004 without pyarrow, ST-USAG-015 when a file is not such a file.
            IntegrityError: as the dataset's `read`.
        """
        self.name, self.where = split, where
        self.format = f"parquet:{field}"
        self._source, self._field = source, field
        self._lock = Lock()
        self._kept: OrderedDict[int, list[str | None]] = OrderedDict()
        self._groups = [group for name in files for group in self._groups_of(name)]
        self._ends = list(accumulate(group.rows for group in self._groups))

    @property
    def groups(self) -> Sequence[int]:
        """Rows of each group."""
        return [group.rows for group in self._groups]

    def scan(self) -> Iterator[tuple[int, str | None]]:
        """Read all rows."""
        for number in range(self._ends[-1] if self._ends else 0):
            yield 0, self.text(number)

    def set_sizes(self, sizes: Sizes) -> None:
        """The files say how many rows they have."""
        if len(sizes) != (self._ends[-1] if self._ends else 0) or np.any(sizes):
            raise false_index("its rows are not the dataset's", self.where)

    def text(self, number: int) -> str:
        """The column's value in a row."""
        group = bisect_right(self._ends, number)
        row = number - (self._ends[group] - self._groups[group].rows)
        with self._lock:
            value = self._read(group)[row]
        if value is None:
            raise not_in_format(f"row {number} has no text", self.where, self._groups[group].file)
        return value

    def byte_range(self, number: int) -> ByteRange:
        """The whole file: columns of one are read together."""
        file = self._groups[bisect_right(self._ends, number)].file
        return ByteRange(file, 0, self._source.files[file])

    def _groups_of(self, name: str) -> list[_Group]:
        if not self._source.removals.kept(name, self._source.files[name]):
            return []
        with self._open(name) as file:
            metadata = file.metadata
            columns = [
                metadata.row_group(0).column(i).path_in_schema if metadata.num_row_groups else ""
                for i in range(metadata.num_columns)
            ]
            if metadata.num_row_groups and self._field not in columns:
                names = ", ".join(columns[:10])
                raise not_in_format(f"no column {self._field!r}; it has {names}", self.where, name)
            groups = []
            for number in range(metadata.num_row_groups):
                group = metadata.row_group(number)
                size = group.column(columns.index(self._field)).total_uncompressed_size
                if size > GROUP_LIMIT:
                    raise not_in_format(f"a row group of {size} bytes", self.where, name)
                groups.append(_Group(name, number, group.num_rows))
            return groups

    def _read(self, number: int) -> list[str | None]:
        found = self._kept.get(number)
        if found is None:
            group = self._groups[number]
            with self._open(group.file) as file:
                column = file.read_row_group(group.number, columns=[self._field]).column(0)
            if str(column.type) not in {"string", "large_string"}:
                raise not_in_format(
                    f"column {self._field!r} holds {column.type}, not text",
                    self.where,
                    group.file,
                )
            found = column.to_pylist()
            if len(found) != group.rows:
                raise not_in_format("a row group of another length", self.where, group.file)
            self._kept[number] = found
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        else:
            self._kept.move_to_end(number)
        return found

    def _open(self, name: str) -> "_Opened":
        return _Opened(self._source, name, self.where)


class _Opened:
    """A file while pyarrow reads it; its errors become ours."""

    def __init__(self, source: ByteSource, name: str, where: str) -> None:
        self._source, self._name, self._where = source, name, where

    def __enter__(self) -> Any:
        try:
            from pyarrow import parquet  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise UsageError(
                "ST-USAG-004",
                "the package pyarrow is not installed",
                self._where,
                install_hint("parquet"),
            ) from error
        try:
            return parquet.ParquetFile(
                VerifiedFile(self._source, self._name),
                thrift_string_size_limit=METADATA_LIMIT,
                thrift_container_size_limit=METADATA_LIMIT,
            )
        except _LIBRARY as error:
            raise self._bad(error) from error

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, _LIBRARY):
            raise self._bad(error) from error

    def _bad(self, error: BaseException) -> UsageError:
        return not_in_format(f"not Parquet: {str(error)[:200]}", self._where, self._name)
