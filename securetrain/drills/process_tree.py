# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Process trees and the TCP ports that they listen on, from /proc (Linux only).

torchelastic starts every worker in a session of its own, so killing a process group does not end a
job: the tree is read first, then everything in it is killed.
"""

import ipaddress
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from securetrain.core import all_stats
from securetrain.network import LISTEN, read_sockets

_PROC: Final = Path("/proc")


def descendants(pid: int) -> list[int]:
    """`pid` and every process below it, parents first."""
    children: dict[int, list[int]] = {}
    for child, found in all_stats(_PROC):
        children.setdefault(found.parent, []).append(child)
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


@contextmanager
def started(command: Sequence[str], **settings: Any) -> "Iterator[subprocess.Popen[bytes]]":
    """A child in a session of its own, without input; killed with all that it started."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.STDOUT if "stdout" in settings else None,
        start_new_session=True,
        **settings,
    )
    try:
        yield process
    finally:
        kill_tree(process)


def end_of(process: "subprocess.Popen[bytes]", patience: float) -> int | None:
    """Wait for the end of a child; None when it has not come in so many seconds."""
    try:
        return process.wait(patience)
    except subprocess.TimeoutExpired:
        return None


@dataclass(frozen=True, slots=True, order=True)
class Listener:
    """A TCP port that somebody listens on."""

    port: int
    loopback: bool
    """Whether it is bound to this machine's loopback address and nothing else."""


def listeners(pids: Iterable[int]) -> list[Listener]:
    """The ports on which any of `pids` listens.

    Raises:
        NetworkError: ST-NETW-002 when the kernel's tables cannot be read.
    """
    inodes = set()
    for pid in pids:
        with suppress(OSError):
            for link in (_PROC / str(pid) / "fd").iterdir():
                with suppress(OSError):
                    name = str(link.readlink())
                    if name.startswith("socket:["):
                        inodes.add(name[len("socket:[") : -1])
    found = {one.local for one in read_sockets() if one.state == LISTEN and one.inode in inodes}
    return sorted(Listener(one.port, is_loopback(one.address)) for one in found)


def is_loopback(address: str) -> bool:
    """True for an address of this machine alone, also of IPv4 in the words of IPv6."""
    found = ipaddress.ip_address(address)
    return (getattr(found, "ipv4_mapped", None) or found).is_loopback


def wait_until(ready: Callable[[], object], timeout: float, interval: float = 0.05) -> bool:
    """Poll `ready` until it says yes; whether it did within `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not ready():
        if time.monotonic() > deadline:
            return False
        time.sleep(interval)
    return True
