# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""sketches.jsonl: what the guard saw of every rank, one line a step, written by rank 0.

The last one is in guard.prom, too (exporter.py), and, for scripts, all are in TensorBoard's events
(board.py), where tensorboardX is installed. The built-in trainer has a writer of its own.
"""

from pathlib import Path
from typing import Any, TextIO

import msgspec

from securetrain.core.errors import os_error
from securetrain.core.files import drop_lines_after
from securetrain.guard.board import add_verdict, open_board
from securetrain.guard.exporter import GuardTextfile
from securetrain.guard.verdict import StepRecord


class SketchWriter:
    """Opened at the first record, after the resumed step is known.

    Args:
        path: sketches.jsonl.
        textfile: Takes every record as well, or None.
        board: The folder of TensorBoard's events, or None for none.
    """

    def __init__(
        self, path: Path, textfile: GuardTextfile | None = None, board: Path | None = None
    ) -> None:
        self._path = path
        self._folder = board
        self._board: Any = None
        self._textfile = textfile
        self._file: TextIO | None = None

    def write(self, record: StepRecord) -> None:
        """Append one record."""
        try:
            if self._file is None:
                drop_lines_after(self._path, record.verdict.step - 1, field=("verdict", "step"))
                self._file = self._path.open("a", encoding="utf-8", buffering=1)
                if self._folder is not None:
                    self._board = open_board(self._folder, record.verdict.step)
            self._file.write(msgspec.json.encode(record).decode() + "\n")
        except OSError as error:
            raise os_error(error, str(self._path)) from error
        if self._textfile is not None:
            self._textfile.write(record)
        if self._board is not None:
            add_verdict(self._board, record.verdict)

    def close(self) -> None:
        """Close the file, if there is one, and write what the other held back."""
        if self._textfile is not None:
            self._textfile.close()
        if self._board is not None:
            self._board.close()
            self._board = None
        if self._file is not None:
            self._file.close()
            self._file = None
