# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The ledger of a desk's decisions, which goes on from its last known entry or not at all.

Rules:

1. the desk remembers the last entry beside its tokens, in the transaction that the entry is about.
   A ledger in which that entry is missing was cut off, exchanged or deleted (ST-LEDG-004);
2. entries behind it are decisions that a death kept from coming into force. They stay;
3. each write looks at that one entry. All of them are verified when somebody reads them.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from securetrain.core.errors import IntegrityError, os_error
from securetrain.core.files import open_regular, read_file, sync_dir
from securetrain.identity.keys import PrivateKey
from securetrain.ledger import (
    Entry,
    LastEntry,
    Ledger,
    LedgerEvent,
    Memory,
    events,
    verify_ledger,
)

LEDGER_LIMIT: Final = 1 << 30
_WRITER: Final = "desk"


@dataclass(frozen=True, slots=True)
class Decisions:
    """The file."""

    path: Path
    key: PrivateKey
    """Signs every entry."""

    def write(self, said: LedgerEvent, now: datetime, last: LastEntry) -> LastEntry:
        """Append a decision behind the last known entry; returns the new last one.

        Only whoever holds the desk's transaction may call it.

        Raises:
            IntegrityError: ST-LEDG-001 or ST-LEDG-004 for a ledger that was changed.
            UsageError: ST-USAG-002 or ST-USAG-006 on I/O errors.
        """
        self.check(last)
        memory = Memory(last)
        ledger = Ledger(self.path, self.key, _WRITER, lambda: now, memory=memory)
        (ledger if last.end else ledger.begin()).write(said)
        return memory.last

    def sync(self) -> None:
        """Have what was written survive a power cut: the desk is about to rely on it.

        Raises:
            UsageError: ST-USAG-002 or ST-USAG-006.
        """
        try:
            fd = open_regular(self.path)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
            sync_dir(self.path.parent)
        except OSError as error:
            raise os_error(error, str(self.path)) from error

    def check(self, last: LastEntry) -> None:
        """Refuse a ledger in which the last known entry is missing.

        Raises:
            IntegrityError: ST-LEDG-004.
            UsageError: ST-USAG-002 when it cannot be read.
        """
        try:
            fd = open_regular(self.path)
        except FileNotFoundError as error:
            if last.end:
                raise IntegrityError("ST-LEDG-004", "it is missing", str(self.path)) from error
        except OSError as error:
            raise os_error(error, str(self.path)) from error
        else:
            with os.fdopen(fd):
                last.check(fd, str(self.path))

    def read(self, last: LastEntry) -> Sequence[Entry]:
        """Verify every entry; gives them in order.

        Raises:
            IntegrityError: ST-LEDG-001 to 004.
            UsageError: ST-USAG-002 when it cannot be read.
        """
        entries: Sequence[Entry] = ()
        if self.path.exists():
            data = read_file(self.path, LEDGER_LIMIT)
            keys = {self.key.key_id: self.key.public}
            entries = verify_ledger(data, keys, where=str(self.path)).entries
        self.check(last)
        begun = events.LedgerStarted.NAME
        return tuple(entry for entry in entries if entry.body.event.event != begun)
