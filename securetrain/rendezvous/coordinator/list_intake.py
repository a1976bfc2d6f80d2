# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Long measurement lists, asked for in parts, so that they take little memory whoever sends them.

Rules:

1. nothing is asked of a node whose evidence does not hold up to its list: the verifier decides when
   the first part is asked for;
2. a node's parts come one by one, each in the time of any other step, all of them in
   `LIST_SECONDS`, and during a lease before it ends;
3. at most `PARTS_AT_ONCE` parts are in memory, of whichever nodes: one is asked for when there is
   room for it, and counts until its node's next one is asked for or the list is judged. A node that
   waits too long for room is told to come again (ST-ATTS-315).
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Protocol

from securetrain.core.errors import AttestationError
from securetrain.evidence import Fetch

PARTS_AT_ONCE: Final = 16
LIST_SECONDS: Final = 300.0


class Asked(Protocol):
    """A connection that is asked for parts."""

    @property
    def node(self) -> str:
        """The node's name."""

    @property
    def lease_end(self) -> float:
        """The end of its lease, by the steady clock; 0 without one."""

    def next_part(self, index: int, deadline: float) -> bytes:
        """Ask for a part and wait for it."""


class ListIntake:
    """Bounds the parts that all connections of a coordinator hold at once."""

    def __init__(
        self,
        step: float,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        parts: int = 0,
        seconds: float = LIST_SECONDS,
    ) -> None:
        """Start with room for everything.

        Args:
            step: seconds for each part, and to wait for room.
            monotonic: a steady clock in seconds.
            parts: how many there may be at once; 0 for `PARTS_AT_ONCE`.
            seconds: for a whole list.
        """
        self._step = step
        self._monotonic = monotonic
        self._parts = parts or PARTS_AT_ONCE
        self._seconds = seconds
        self._room = threading.BoundedSemaphore(self._parts)

    @contextmanager
    def of(self, session: Asked) -> Iterator[Fetch]:
        """Asks one node for one list; its room is free afterwards, whatever happens."""
        held = False
        end = 0.0

        def fetch(index: int, digest: bytes) -> bytes:
            del digest  # compared by whoever reads the part
            nonlocal held, end
            now = self._monotonic()
            end = end or now + self._seconds
            if held:
                self._room.release()
                held = False
            # Half of a step: the node waits a whole one for the next word.
            if not self._room.acquire(timeout=self._step / 2):
                raise AttestationError(
                    "ST-ATTS-315", f"{self._parts} parts of lists are under way", session.node
                )
            held = True
            deadline = min(self._monotonic() + self._step, end)
            if session.lease_end:
                deadline = min(deadline, session.lease_end)
            return session.next_part(index, deadline)

        try:
            yield fetch
        finally:
            if held:
                self._room.release()
