# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The bounded queue before one tracker.

A tracker that is down or slow keeps its items waiting; when the queue is full, the oldest are lost
and counted. Nothing else waits for it. Of what its library raises, only the type is kept: a message
may hold an address, a path or a token.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from securetrain.integrations.trackers.items import Item, Tracker

QUEUE_LIMIT: Final = 100_000
BATCH: Final = 500
MAX_PAUSE: Final = 60.0


@dataclass(slots=True)
class Delivery:
    """One tracker, what waits for it, and how it went."""

    name: str
    tracker: Tracker
    limit: int = QUEUE_LIMIT
    delivered: int = 0
    lost: int = 0
    """Items that no longer had a place in the queue."""
    problem: str = ""
    """The type of the last error; empty after a delivery."""
    _queue: deque[Item] = field(default_factory=deque)
    _pause: float = 0.0
    _not_before: float = 0.0

    @property
    def waiting(self) -> int:
        """Items that were not delivered yet."""
        return len(self._queue)

    def put(self, items: Iterable[Item]) -> None:
        """Let items wait for their delivery."""
        for item in items:
            if len(self._queue) >= self.limit:
                self._queue.popleft()
                self.lost += 1
            self._queue.append(item)

    def push(self, now: float, *, last: bool = False) -> None:
        """Deliver what waits, unless a failure was just now.

        Args:
            now: Seconds of any clock that never goes back.
            last: Try in any case, and once.
        """
        if now < self._not_before and not last:
            return
        while self._queue:
            batch = [self._queue[n] for n in range(min(BATCH, len(self._queue)))]
            try:
                self.tracker.give(batch)
            except Exception as error:  # noqa: BLE001 - somebody else's library, over a network
                self._failed(error, now)
                return
            for _ in batch:
                self._queue.popleft()
            self.delivered += len(batch)
            self.problem, self._pause = "", 0.0

    def close(self) -> None:
        """Let the library deliver what it held back."""
        try:
            self.tracker.close()
        except Exception as error:  # noqa: BLE001
            self._failed(error, 0.0)

    def _failed(self, error: Exception, now: float) -> None:
        self.problem = type(error).__name__
        self._pause = min(MAX_PAUSE, max(1.0, 2 * self._pause))
        self._not_before = now + self._pause
