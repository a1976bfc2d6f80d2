# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Process trees and the TCP ports that they listen on, from /proc (Linux only, no packages).

torchelastic starts every worker in a session of its own, so killing a process group does not end a
job: the tree is read first, then everything in it is killed.
"""

import os
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import subprocess

_LISTEN: Final = "0A"
_PROC: Final = Path("/proc")


def descendants(pid: int) -> list[int]:
    """`pid` and every process below it, parents first."""
    children: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            with suppress(OSError, ValueError, IndexError):
                # pid (comm) state ppid ...: comm may hold spaces and brackets, hence rpartition
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                children.setdefault(int(fields[1]), []).append(int(entry.name))
    tree = [pid]
    for member in tree:
        tree.extend(children.get(member, []))
    return tree


def kill_tree(process: "subprocess.Popen[bytes]") -> None:
    """Kill a child and everything below it, and reap the child."""
    for pid in descendants(process.pid):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def listening_ports(pids: Iterable[int]) -> set[int]:
    """The TCP ports on which any of `pids` listens, whatever the address."""
    inodes = set()
    for pid in pids:
        with suppress(OSError):
            for link in (_PROC / str(pid) / "fd").iterdir():
                with suppress(OSError):
                    name = str(link.readlink())
                    if name.startswith("socket:["):
                        inodes.add(name[len("socket:[") : -1])
    ports = set()
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in (_PROC / "net" / table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTEN and fields[9] in inodes:
                    ports.add(int(fields[1].rpartition(":")[2], 16))
    return ports


def wait_until(ready: Callable[[], bool], timeout: float, interval: float = 0.05) -> bool:
    """Poll `ready` until it says yes; whether it did within `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not ready():
        if time.monotonic() > deadline:
            return False
        time.sleep(interval)
    return True
