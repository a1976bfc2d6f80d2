# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""No process of a run outlives its launcher.

1. signals that end the launcher become an exception, so that everything is closed in order, and
   do nothing while it is being closed;
2. the launcher is the *subreaper* of its descendants (Linux, PR_SET_CHILD_SUBREAPER): a data loader
   whose worker was killed becomes its child, and can be found;
3. at the end every descendant that carries this run's directory in its environment is killed. A
   descendant that somebody else started in this process is left alone.
"""

import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import current_thread, main_thread
from types import FrameType
from typing import Final

from securetrain.core import RUN_DIR_VARIABLE, all_stats, environment_of

ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)

_PR_SET_CHILD_SUBREAPER: Final = 36
_PR_GET_CHILD_SUBREAPER: Final = 37
_PATIENCE_SECONDS: Final = 5.0


class Interrupted(BaseException):
    """A signal asked the launcher to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.name = signal.Signals(number).name


@contextmanager
def handled(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Have the ending signals call `handler`; the old handlers come back at the end."""
    # A mask would not do: another thread of the process would take the signal.
    if current_thread() is not main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in ENDING}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


@contextmanager
def interruptible() -> Iterator[None]:
    """Turn the ending signals into `Interrupted`; the old handlers come back at the end.

    Outside the main thread nothing changes: Python delivers signals to the main thread only.
    """

    def interrupt(number: int, _frame: FrameType | None) -> None:
        raise Interrupted(number)

    with handled(interrupt):
        yield


@contextmanager
def ignoring_signals() -> Iterator[None]:
    """Let the ending signals do nothing: what is closed here takes seconds at most."""
    with handled(lambda _number, _frame: None):
        yield


@contextmanager
def subreaper() -> Iterator[None]:
    """Adopt orphaned descendants for as long as the block lasts."""
    libc = ctypes.CDLL(None, use_errno=True)
    before = ctypes.c_int(0)
    with suppress(AttributeError):  # not Linux
        libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        with suppress(AttributeError):
            libc.prctl(_PR_SET_CHILD_SUBREAPER, before.value, 0, 0, 0)


def end_stragglers(run_dir: Path, proc: Path = Path("/proc")) -> int:
    """Kill what is left of a run below this process; returns how many processes that were."""
    killed: set[int] = set()
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while (left := stragglers(run_dir, proc)) and time.monotonic() < deadline:
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        killed |= left
        time.sleep(0.01)
    return len(killed)


def stragglers(run_dir: Path, proc: Path = Path("/proc")) -> set[int]:
    """Descendants of this process that carry the run's directory in their environment."""
    marker = f"{RUN_DIR_VARIABLE}={run_dir}".encode()
    parents = {pid: found.parent for pid, found in all_stats(proc) if found.state != "Z"}
    found = set()
    for pid in parents:
        ancestor = pid
        while ancestor in parents and ancestor != os.getpid():
            ancestor = parents[ancestor]
        if ancestor == os.getpid() and pid != ancestor and _carries(pid, proc, marker):
            found.add(pid)
    return found


def _carries(pid: int, proc: Path, marker: bytes) -> bool:
    try:
        return marker in environment_of(pid, proc)
    except OSError:
        return False
