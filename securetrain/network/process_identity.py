# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Processes by more than their number: a pid alone may belong to somebody else by now.

An owner is a pid and the time since boot at which that process started (field 22 of
proc_pid_stat(5)), in one boot and one pid namespace; what it made without a name of its own is in
its network namespace. A process is killed through a descriptor of it
(pidfd_open(2)), after which it is looked at again, so that a reused number hits nobody.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from securetrain.core import read_stat

PROC: Final = Path("/proc")
NAMED: Final = Path("/run/netns")
_PATIENCE_SECONDS: Final = 5.0
_COMMAND_LIMIT: Final = 1 << 16
_EXEC_SECONDS: Final = 0.2


class Owner(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True
):
    """A process that stands for a job network."""

    pid: int
    started: int
    """Clock ticks after boot."""
    boot: str
    pid_namespace: str
    net_namespace: str = ""
    """Empty in what earlier versions wrote."""

    @classmethod
    def current(cls, proc: Path = PROC) -> "Owner":
        """This process."""
        return cls(
            pid=os.getpid(),
            started=start_time(os.getpid(), proc) or 0,
            boot=boot_id(proc),
            pid_namespace=pid_namespace(proc),
            net_namespace=net_namespace(proc),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The machine that an owner is compared with."""

    boot: str
    pid_namespace: str
    start_time: Callable[[int], int | None]
    net_namespace: str = ""
    find_net_namespace: Callable[[str], Path | None] = field(default=lambda _: None)
    """The way into a network namespace by the kernel's name of it; None when there is none."""

    @classmethod
    def current(cls, proc: Path = PROC) -> "Machine":
        """This machine, now, seen from this process's network namespace."""
        return cls(
            boot=boot_id(proc),
            pid_namespace=pid_namespace(proc),
            start_time=lambda pid: start_time(pid, proc),
            net_namespace=net_namespace(proc),
            find_net_namespace=lambda name: find_net_namespace(name, proc),
        )

    def can_judge(self, owner: Owner) -> bool:
        """Return whether an owner's pid means something here: the same boot and another pid
        namespace is somebody's container.
        """
        return owner.boot != self.boot or owner.pid_namespace == self.pid_namespace

    def is_alive(self, owner: Owner) -> bool:
        """Return whether the owner still runs; only for one that can be judged."""
        return owner.boot == self.boot and self.start_time(owner.pid) == owner.started


def boot_id(proc: Path = PROC) -> str:
    """The kernel's id of this boot."""
    return (proc / "sys" / "kernel" / "random" / "boot_id").read_text().strip()


def pid_namespace(proc: Path = PROC) -> str:
    """The kernel's name of this process's pid namespace."""
    return os.readlink(proc / "self" / "ns" / "pid")  # noqa: PTH115 - the target is no path


def net_namespace(proc: Path = PROC) -> str:
    """The kernel's name of this process's network namespace."""
    return os.readlink(proc / "self" / "ns" / "net")  # noqa: PTH115 - the target is no path


def find_net_namespace(name: str, proc: Path = PROC, named: Path = NAMED) -> Path | None:
    """The way into a network namespace that has a name below ``/run/netns``, or a process."""
    for path in named.iterdir() if named.is_dir() else ():
        with suppress(OSError):
            if f"net:[{path.stat().st_ino}]" == name:
                return path
    for entry in proc.iterdir():
        with suppress(OSError):
            if entry.name.isdecimal() and os.readlink(entry / "ns" / "net") == name:  # noqa: PTH115
                return entry / "ns" / "net"
    return None


def start_time(pid: int, proc: Path = PROC) -> int | None:
    """The start time of a process, in clock ticks after boot; None when it has ended.

    The first thread of one that was killed may have ended while another still holds its sockets.
    """
    found = read_stat(pid, proc)
    if found is None or (found.has_ended and found.num_threads <= 1):
        return None
    return found.started


def running(program: str, last: str, proc: Path = PROC) -> list[int]:
    """Processes whose command line has a word that is a path of `program`, and ends with `last`."""
    return [
        pid
        for pid, words in _commands(proc)
        if words[-1] == last and any(Path(word).name == program for word in words)
    ]


def kill(pids: list[int], proc: Path = PROC) -> list[int]:
    """Kill processes and wait until they have ended; returns those that have not.

    This process is never killed, and children are left for their parent to wait for.
    """
    targets = {pid: start_time(pid, proc) for pid in pids if pid != os.getpid()}
    for pid, started in targets.items():
        if started is not None:
            _kill(pid, started, proc)
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while left := [pid for pid, start in targets.items() if start and _is(pid, start, proc)]:
        if time.monotonic() > deadline:
            return left
        time.sleep(0.005)
    return []


def _is(pid: int, started: int, proc: Path) -> bool:
    return start_time(pid, proc) == started


def _kill(pid: int, started: int, proc: Path) -> None:
    with suppress(ProcessLookupError), closing(_Descriptor(os.pidfd_open(pid))) as process:
        # Now the descriptor is of one process; is it the one that was meant?
        if _is(pid, started, proc):
            signal.pidfd_send_signal(process.number, signal.SIGKILL)


@dataclass(slots=True)
class _Descriptor:
    number: int

    def close(self) -> None:
        os.close(self.number)


def _commands(proc: Path) -> Iterator[tuple[int, list[str]]]:
    for entry in proc.iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                words = _command_line(entry).rstrip(b"\0").decode("utf-8", "replace").split("\0")
                yield int(entry.name), words


def _command_line(entry: Path) -> bytes:
    """A process's command line; one that is just becoming another program has none for a moment.

    Kernel threads never have one, and no program either: reading that link fails for them.
    """
    deadline = time.monotonic() + _EXEC_SECONDS
    while True:
        with (entry / "cmdline").open("rb") as file:
            line = file.read(_COMMAND_LIMIT)
        if line or time.monotonic() > deadline:
            return line
        os.readlink(entry / "exe")  # noqa: PTH115 - only whether there is one
        time.sleep(0.001)
