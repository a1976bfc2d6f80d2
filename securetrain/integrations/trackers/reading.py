# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The records of a run directory, as they grow.

The ledger is verified line by line (`ledger.LedgerFollower`). metrics.jsonl is a file that workers
write: lines are bounded and strictly read, bad ones are counted, and it may be replaced by a
shorter one when a run goes back. Then it is read again, and what was told before is left out.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from securetrain.core import canonical
from securetrain.core.errors import SecureTrainError, os_error
from securetrain.core.files import open_regular

BLOCK: Final = 1 << 20
LINE_LIMIT: Final = 64 << 10

_Number = Annotated[float, Meta(ge=-1e300, le=1e300)]


class StepLine(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a line of metrics.jsonl that is told; other fields are left alone."""

    step: Annotated[int, Meta(ge=0, le=1 << 53)]
    seconds: Annotated[float, Meta(ge=0, le=1e9)]
    verdict: Annotated[str, Meta(max_length=100)] = ""
    ended: Annotated[float, Meta(ge=0, le=1e11)] | None = None
    loss: _Number | None = None
    grad_norm: _Number | None = None
    lr: _Number | None = None
    tokens_per_second: _Number | None = None
    tokens: _Number | None = None
    mfu: _Number | None = None
    memory_bytes: _Number | None = None
    val_loss: _Number | None = None


@dataclass(slots=True)
class StepsFollower:
    """A reader of metrics.jsonl from its beginning."""

    path: Path
    bad: int = 0
    """Lines that are none."""
    _file: int = 0
    """Its inode."""
    _offset: int = 0
    _last: tuple[float, int] = (-1.0, -1)
    """Time and number of the last step that was given."""
    _skipping: bool = False

    def read(self) -> list[StepLine]:
        """The next lines: at most a block of them, none when there are none.

        Raises:
            UsageError: ST-USAG-002 when the file cannot be read.
        """
        found = []
        for line in self._lines():
            try:
                value = canonical.loads(line, limit=LINE_LIMIT)
                step = msgspec.convert(value, StepLine, strict=False)
            except (SecureTrainError, msgspec.ValidationError):
                self.bad += 1
                continue
            if not self._told(step):
                found.append(step)
                self._last = (step.ended or 0.0, step.step)
        return found

    def _told(self, step: StepLine) -> bool:
        """Tell whether it was given before the file was replaced."""
        if not self._skipping:
            return False
        if step.ended is not None:
            return step.ended <= self._last[0]
        return step.step <= self._last[1]

    def _lines(self) -> list[bytes]:
        if not self.path.exists():
            return []
        try:
            fd = open_regular(self.path)
            try:
                about = os.fstat(fd)
                if (self._file and about.st_ino != self._file) or about.st_size < self._offset:
                    self._offset, self._skipping = 0, True
                self._file = about.st_ino
                block = os.pread(fd, BLOCK, self._offset)
                while len(block) == BLOCK and b"\n" not in block:  # passed over: it is no line
                    self._offset += BLOCK
                    block = os.pread(fd, BLOCK, self._offset)
            finally:
                os.close(fd)
        except OSError as error:
            raise os_error(error, str(self.path)) from error
        whole, newline, _ = block.rpartition(b"\n")
        self._offset += len(whole) + len(newline)
        return whole.split(b"\n") if newline else []
