# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Read a run directory's files with limits, and remember what was wrong with them.

A file that is missing is ``None``: not recorded. A file that is there and cannot be used is a
problem that the report shows; it is never treated as missing.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from securetrain.core import canonical
from securetrain.core.errors import SecureTrainError
from securetrain.core.files import read_file

JSON_LIMIT: Final = 16 << 20
LINES_LIMIT: Final = 256 << 20
LINE_LIMIT: Final = 1 << 20

T = TypeVar("T")


@dataclass(slots=True)
class Reader:
    """A reader of files below one folder, which collects problems."""

    root: Path
    problems: list[str] = field(default_factory=list)

    def data(self, path: Path, limit: int) -> bytes | None:
        """The bytes of a file, or None when it is missing or a problem."""
        if not path.exists() and not path.is_symlink():
            return None
        try:
            return read_file(path, limit)
        except SecureTrainError as error:
            self.problem(path, error.what)
            return None

    def json(self, path: Path, kind: type[T]) -> T | None:
        """A JSON document of `kind`; fields that `kind` does not name are left alone."""
        data = self.data(path, JSON_LIMIT)
        if data is None:
            return None
        try:
            return canonical.decode(data, kind, limit=JSON_LIMIT, where=str(path))
        except SecureTrainError as error:
            self.problem(path, error.what)
            return None

    def lines(self, path: Path, kind: type[T]) -> tuple[T, ...]:
        """The lines of a JSONL file; the bad ones are counted as one problem."""
        data = self.data(path, LINES_LIMIT)
        if data is None:
            return ()
        found: list[T] = []
        bad: list[int] = []
        for number, line in enumerate(data.splitlines(), start=1):
            try:
                found.append(_line(line, kind))
            except (SecureTrainError, msgspec.ValidationError):
                bad.append(number)
        if bad:
            self.problem(path, f"{len(bad)} unreadable lines, the first is line {bad[0]}")
        return tuple(found)

    def problem(self, path: Path, what: str) -> None:
        """Remember that a file is not what it should be."""
        name = path.relative_to(self.root) if path.is_relative_to(self.root) else path
        self.problems.append(f"{name}: {what}")


def _line(line: bytes, kind: type[T]) -> T:
    return msgspec.convert(canonical.loads(line, limit=LINE_LIMIT), kind, strict=False)
