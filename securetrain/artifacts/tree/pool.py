# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The threads that read and hash, and how much they hold.

One pool serves all files of an artifact, small and large. Rules, in order:

1. there are as many threads as the process may use cores (affinity, the cgroup's quota, an even
   share for each rank of the node), because hashing is what they do; a count that the caller gives
   is kept to;
2. when the threads wait for the disk or a store more than they compute, one more is let in after
   each round, up to `PER_CORE` a core and `MOST` in all;
3. work is taken from its source only as it is begun: at most as many pieces are in flight as
   threads are let in and as many again wait, so that memory is bounded by
   ``2 * threads * (what one piece holds)``, however many files there are;
4. results come in the order of the pieces. Whoever stops asking stops the rest: what has begun is
   waited for, so that nobody writes into memory, or reads a file, that was given back.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from securetrain.artifacts.tree.directory import Source

PER_CORE: Final = 4
MOST: Final = 64
AHEAD: Final = 8 << 20
"""Bytes behind a read that the kernel is asked to fetch meanwhile."""
_WAITING: Final = 0.5
"""The share of a thread's time under which it waits rather than computes."""
_QUOTA: Final = Path("/sys/fs/cgroup/cpu.max")
_QUOTA_V1: Final = Path("/sys/fs/cgroup/cpu")

Piece = TypeVar("Piece")
Result = TypeVar("Result")


def cores() -> int:
    """The cores that this process may use: its affinity, what its cgroup allows it, and an even
    share where the launcher has started several processes on this node.
    """
    found = len(os.sched_getaffinity(0))
    quota = _quota()
    return max(1, (found if quota is None else min(found, quota)) // local_processes())


def local_processes() -> int:
    """The processes that the launcher has started on this node; 1 where it does not say."""
    said = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(1, int(said)) if said.isdecimal() and len(said) < 6 else 1


def _quota() -> int | None:
    """The cgroup's limit in whole cores; None where there is none."""
    try:
        if _QUOTA.exists():
            limit, period = _QUOTA.read_text().split()[:2]
        else:
            limit = (_QUOTA_V1 / "cpu.cfs_quota_us").read_text().strip()
            period = (_QUOTA_V1 / "cpu.cfs_period_us").read_text().strip()
        return -(-int(limit) // int(period)) if int(limit) > 0 else None
    except (OSError, ValueError, ZeroDivisionError):
        return None  # "max", or a machine without cgroups


def fetch_ahead(source: Source, offset: int, length: int) -> None:
    """Ask the kernel to read a stretch of a local file while something else is done.

    It is a hint: without effect on stores and in memory, and nothing relies on it.
    """
    fd = getattr(source, "fd", None)
    if fd is None or length <= 0:
        return
    try:
        os.posix_fadvise(fd, offset, length, os.POSIX_FADV_WILLNEED)
    except OSError:
        return  # a file system without read-ahead


class Pool:
    """Threads that read and hash; a context manager."""

    def __init__(self, threads: int | None = None) -> None:
        """Make a pool.

        Args:
            threads: how many; None for as many as the cores and the disk give (rules 1 and 2).
        """
        if threads is not None and threads < 1:
            raise ValueError(f"threads {threads}: at least 1")
        self.width = threads or min(MOST, cores())
        """How many may work at once, now."""
        self.most = threads or max(self.width, min(MOST, PER_CORE * self.width))
        """How many may work at once, ever."""
        self._pool = ThreadPoolExecutor(self.most, thread_name_prefix="hash")
        self._gate = threading.Semaphore(self.width)
        self._lock = threading.Lock()
        self._pieces = 0
        self._computed = 0.0
        self._passed = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def submit(self, work: Callable[..., Result], *args: Any) -> Future[Result]:
        """Begin one piece; who calls this bounds the number of them."""
        return self._pool.submit(self._measured, work, args)

    def each(
        self, work: Callable[[Piece], Result], pieces: Iterable[Piece]
    ) -> Generator[tuple[Piece, Future[Result]], None, None]:
        """Work on every piece; each with its finished future, in order (rules 3 and 4)."""
        begun: deque[tuple[Piece, Future[Result]]] = deque()
        try:
            for piece in pieces:
                begun.append((piece, self.submit(work, piece)))
                while len(begun) >= 2 * self.width:
                    wait([begun[0][1]])
                    yield begun.popleft()
            while begun:
                wait([begun[0][1]])
                yield begun.popleft()
        finally:
            stop(future for _, future in begun)

    def _measured(self, work: Callable[..., Result], args: tuple[Any, ...]) -> Result:
        """Do one piece, and learn whether its time went into computing or waiting (rule 2)."""
        with self._gate:
            if self.width >= self.most:
                return work(*args)
            started, computed = time.perf_counter(), time.thread_time()
            try:
                return work(*args)
            finally:
                self._learn(time.thread_time() - computed, time.perf_counter() - started)

    def _learn(self, computed: float, passed: float) -> None:
        with self._lock:
            self._computed += computed
            self._passed += passed
            self._pieces += 1
            if self._pieces < self.width:
                return
            if self._computed < _WAITING * self._passed and self.width < self.most:
                self.width += 1
                self._gate.release()
            self._pieces, self._computed, self._passed = 0, 0.0, 0.0


def stop(futures: Iterable[Future[Any]]) -> None:
    """Let nothing go on: cancel what has not begun, wait for what has."""
    every = list(futures)
    for future in every:
        future.cancel()
    wait(every)
