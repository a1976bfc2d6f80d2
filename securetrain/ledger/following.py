# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Read a ledger that grows: each line is verified once, when it is whole.

A line without its end is still being written, or was left by a death; whoever appends next cuts it
off (`ledger.log`, rule 4). So it is left for the next reading. A file that is shorter than what was
read from it is no longer the one that was verified.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from securetrain.core.errors import IntegrityError, os_error
from securetrain.core.files import open_regular
from securetrain.identity.trust import TrustRole, TrustRoot
from securetrain.ledger.log import LINE_LIMIT, LastEntry, check_line
from securetrain.ledger.reading import Ignored, Recorded, Writers, judge

BLOCK: Final = 4 << 20
"""Bytes that are read at once, so that a reader who comes late needs no more memory."""


@dataclass(slots=True)
class LedgerFollower:
    """A reader of one ledger file from its beginning."""

    path: Path
    trust: TrustRoot
    _last: LastEntry = field(default_factory=LastEntry)

    def read(self) -> list[Recorded | Ignored]:
        """Verify and return the next lines: at most a block of them, none when there are none.

        A line that is not good is refused when it is the next one.

        Raises:
            IntegrityError: ST-LEDG-001 to 004; see `verify_ledger`.
            UsageError: ST-USAG-002 when the file cannot be read.
        """
        block = self._block()
        keys, writers = self.trust.keys_for(TrustRole.LEDGER), Writers.of(self.trust)
        found: list[Recorded | Ignored] = []
        for line in block.split(b"\n")[:-1]:
            where = f"{self.path.name}:{self._last.entries + 1}"
            try:
                entry = check_line(line, self._last, keys, where)
            except IntegrityError:
                if found:
                    break  # what stands before it is good; the next reading begins with it
                raise
            found.append(judge(entry, writers))
            self._last = self._last.behind(line, entry.keyid)
        return found

    def _block(self) -> bytes:
        if not self.path.exists():
            return b""
        try:
            fd = open_regular(self.path)
            try:
                size = os.fstat(fd).st_size
                block = os.pread(fd, BLOCK, self._last.end)
            finally:
                os.close(fd)
        except OSError as error:
            raise os_error(error, str(self.path)) from error
        if size < self._last.end:
            raise IntegrityError("ST-LEDG-004", "it is shorter than it was", str(self.path))
        if b"\n" not in block and len(block) > LINE_LIMIT:
            raise IntegrityError("ST-LEDG-001", "a line is longer than any entry", str(self.path))
        return block
