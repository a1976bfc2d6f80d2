# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""sketches.jsonl: what the guard saw of every rank, one line a step, written by rank 0."""

from pathlib import Path
from typing import TextIO

import msgspec

from securetrain.core.errors import os_error
from securetrain.core.files import drop_lines_after
from securetrain.guard.verdict import StepRecord


class SketchWriter:
    """Opened at the first record, after the resumed step is known."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: TextIO | None = None

    def write(self, record: StepRecord) -> None:
        """Append one record."""
        try:
            if self._file is None:
                drop_lines_after(self._path, record.verdict.step - 1, field=("verdict", "step"))
                self._file = self._path.open("a", encoding="utf-8", buffering=1)
            self._file.write(msgspec.json.encode(record).decode() + "\n")
        except OSError as error:
            raise os_error(error, str(self._path)) from error

    def close(self) -> None:
        """Close the file, if there is one."""
        if self._file is not None:
            self._file.close()
            self._file = None
