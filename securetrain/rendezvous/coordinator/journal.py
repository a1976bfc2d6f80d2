# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The coordinator's entries in the run's ledger.

Every admission, refusal and membership goes in. Refusals of peers that never authenticated are
written one by one up to a number a minute and a code, then counted: an attacker who opens
connections must not be able to fill the disk or to keep the coordinator busy with fsync.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from securetrain.core.errors import SecureTrainError
from securetrain.ledger import Ledger, LedgerEvent, events

WINDOW_SECONDS: Final = 60.0
WINDOW_ENTRIES: Final = 50


@dataclass(slots=True)
class _Window:
    begins: float
    written: int = 0
    left_out: int = 0


@dataclass(slots=True)
class Journal:
    """A ledger, or nothing at all when the job keeps none. Safe to use from several threads."""

    ledger: Ledger | None
    monotonic: Callable[[], float] = time.monotonic
    _windows: dict[str, _Window] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def write(self, said: LedgerEvent) -> None:
        """Record an event; the refusal of a node that had authenticated is always written."""
        if self.ledger is not None:
            self.ledger.write(said)

    def refuse_stranger(self, error: SecureTrainError, subject: str) -> None:
        """A peer that had not authenticated was refused: written, or counted in a flood."""
        if self.ledger is None:
            return
        now = self.monotonic()
        with self._lock:
            window = self._windows.get(error.code)
            if window is None or now >= window.begins + WINDOW_SECONDS:
                self._report(error.code)
                window = self._windows[error.code] = _Window(now)
            if window.written >= WINDOW_ENTRIES:
                window.left_out += 1
                return
            window.written += 1
        self.ledger.write(events.ConnectionRefused.of(error, subject))

    def finish(self) -> None:
        """Write the counts of what was left out."""
        with self._lock:
            for code in list(self._windows):
                self._report(code)

    def _report(self, code: str) -> None:
        window = self._windows.pop(code, None)
        if window is not None and window.left_out:
            self.write(events.RefusalsNotListed(subject=code, count=window.left_out))
