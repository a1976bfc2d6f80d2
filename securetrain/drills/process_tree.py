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
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from securetrain.core import all_stats

_LISTEN: Final = "0A"
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
    """Map ports to the addresses on which any of `pids` listens."""
    inodes = set()
    for pid in pids:
        with suppress(OSError):
            for link in (_PROC / str(pid) / "fd").iterdir():
                with suppress(OSError):
                    name = str(link.readlink())
                    if name.startswith("socket:["):
                        inodes.add(name[len("socket:[") : -1])
    found = set()
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in (_PROC / "net" / table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTEN and fields[9] in inodes:
                    address, _, port = fields[1].rpartition(":")
                    found.add(Listener(int(port, 16), _address(address).is_loopback))
    return sorted(found)


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """An address as /proc/net writes it: 32-bit words in the machine's byte order, in hex."""
    words = [int(text[i : i + 8], 16) for i in range(0, len(text), 8)]
    data = b"".join(word.to_bytes(4, sys.byteorder) for word in words)
    if len(data) == 4:
        return ipaddress.IPv4Address(data)
    address = ipaddress.IPv6Address(data)
    return address.ipv4_mapped or address


def wait_until(ready: Callable[[], bool], timeout: float, interval: float = 0.05) -> bool:
    """Poll `ready` until it says yes; whether it did within `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not ready():
        if time.monotonic() > deadline:
            return False
        time.sleep(interval)
    return True
