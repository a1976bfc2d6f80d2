# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Processes as ``/proc/PID/stat`` and ``environ`` have them (proc_pid_stat(5)).

The name in parentheses is the process's own to choose: it may hold spaces, parentheses and bytes
that are not UTF-8, and is skipped. Whoever hides behind such a name is read like anybody else.
"""

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")
_ASKED_AGAIN: Final = 20
"""Times, a millisecond apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStat:
    """A process, at one moment."""

    state: str
    """R, S, D, T, Z for one that nobody has waited for, X for one that has ended."""
    parent: int
    num_threads: int
    started: int
    """Clock ticks after boot."""

    @property
    def has_ended(self) -> bool:
        """Tell whether its first thread has ended; others may still hold what is open."""
        return self.state in {"Z", "X"}


def read_stat(pid: int, proc: Path = PROC) -> ProcessStat | None:
    """Read a process; None when it has ended and was waited for.

    Raises:
        OSError: It is there, and cannot be read.
        ValueError: The file is not the kernel's.
    """
    try:
        data = (proc / str(pid) / "stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # After the name: fields 3 (state), 4 (parent), 20 (threads) and 22 (start time).
    fields = data.rpartition(b")")[2].split()
    try:
        return ProcessStat(
            state=fields[0].decode("ascii"),
            parent=int(fields[1]),
            num_threads=int(fields[17]),
            started=int(fields[19]),
        )
    except IndexError as error:
        raise ValueError(f"/proc/{pid}/stat has {len(fields)} fields after the name") from error


def all_stats(proc: Path = PROC) -> Iterator[tuple[int, ProcessStat]]:
    """Read every process that can be read, by its id."""
    for entry in proc.iterdir():
        if entry.name.isdecimal():
            with suppress(OSError, ValueError):  # not ours to read
                if found := read_stat(int(entry.name), proc):
                    yield int(entry.name), found


def environment_of(pid: int, proc: Path = PROC) -> list[bytes]:
    """Read the ``NAME=VALUE`` that a process was started with.

    For a moment of execve(2) the kernel shows none: then it is asked again.

    Raises:
        OSError: It has ended, is a thread of the kernel, or is not ours to read.
    """
    entry = proc / str(pid)
    for _ in range(_ASKED_AGAIN):
        if found := (entry / "environ").read_bytes():
            return found.split(b"\0")
        (entry / "exe").readlink()  # of what has no program there is no environment to come
        time.sleep(0.001)
    return []
