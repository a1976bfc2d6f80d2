# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Rows of the steps to come, made while the model works on this one.

Rules:

1. rows are what the source says, whoever makes them: guessing which are asked for next changes how
   long a step waits, and nothing else;
2. the guess: the next steps ask for the same rows that this step asked for;
3. an error comes out at the step that asks for what could not be made, and at no other;
4. at most `depth` steps are made ahead, by one thread, which `close` ends.
"""

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor

from securetrain.train.data.rows import Batch, RowSource


class Prefetch:
    """A source of rows that works ahead of another's."""

    def __init__(
        self,
        source: RowSource,
        depth: int,
        *,
        last: int | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Work ahead.

        Args:
            source: Makes the rows.
            depth: For how many steps to come; 0 makes each when it is asked for.
            last: The last step that there will be; None when nobody knows.
            clock: Seconds.
        """
        self.seconds = 0.0
        """How long `batch` has waited, since the beginning."""
        self._source, self._depth, self._last, self._clock = source, depth, last, clock
        self._pool = ThreadPoolExecutor(1, "rows") if depth else None
        self._made: dict[tuple[int, tuple[int, ...]], Future[Batch]] = {}

    def batch(self, step: int, rows: Iterable[int]) -> Batch:
        """Some rows of a step.

        Raises:
            SecureTrainError: as the source's.
        """
        begin = self._clock()
        try:
            return self._take(step, tuple(rows))
        finally:
            self.seconds += self._clock() - begin

    def close(self) -> None:
        """End the thread; what it is making is finished and dropped."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None
        self._made.clear()

    def _take(self, step: int, rows: tuple[int, ...]) -> Batch:
        if self._pool is None:
            return self._source.batch(step, rows)
        for key in [key for key in self._made if not step <= key[0] <= step + self._depth]:
            self._made.pop(key).cancel()
        found = self._made.pop((step, rows), None)
        # A step that waits behind something else is made here at once.
        late = found is None or found.cancel()
        batch = self._source.batch(step, rows) if late else None
        for ahead in range(step + 1, step + self._depth + 1):
            if (ahead, rows) not in self._made and (self._last is None or ahead <= self._last):
                self._made[ahead, rows] = self._pool.submit(self._source.batch, ahead, rows)
        return batch if batch is not None else found.result()  # type: ignore[union-attr]
