# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A clock that stands still until a test moves it.

Everything in securetrain that needs the time takes it as a parameter or as a callable; this is the
callable for tests: ``Ledger(path, key, "agent", clock)``.
"""

from datetime import UTC, datetime, timedelta
from typing import Final

START: Final = datetime(2026, 1, 1, tzinfo=UTC)


class SettableClock:
    """Calling it gives the time as a timezone-aware datetime."""

    def __init__(self, now: datetime = START) -> None:
        self._start = now
        self._now = now

    def __call__(self) -> datetime:
        """The time."""
        return self._now

    def advance(self, by: timedelta | float) -> datetime:
        """Go forward by a timedelta or a number of seconds (backward when negative)."""
        self._now += by if isinstance(by, timedelta) else timedelta(seconds=by)
        return self._now

    def set(self, now: datetime) -> None:
        """Jump to a time, which must be timezone-aware."""
        if now.tzinfo is None:
            raise ValueError("a clock needs a timezone-aware time")
        self._now = now

    def seconds(self) -> float:
        """Seconds since the clock was made: stands in for `time.monotonic`."""
        return (self._now - self._start).total_seconds()

    def sleep(self, seconds: float) -> None:
        """Stands in for `time.sleep`: takes no time, moves this clock."""
        self.advance(seconds)
