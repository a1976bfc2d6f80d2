# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The peers of the signing socket: which worker of this launcher stands behind a connection.

Rules:

1. the kernel says which process connected (SO_PEERCRED), by its id in this launcher's namespace;
2. it is a worker's when it is a process that torch's agent started for this round, or a descendant
   of one: data loaders and compilers count as their rank;
3. the ranks are those that the agent gave, not what a process or its environment says;
4. the process must still be there after its ancestors were read (SO_PEERPIDFD, Linux 6.5), so that
   nobody takes the id of one that has ended; an older kernel leaves this race of microseconds;
5. a worker that has ended says nothing any more, nor do those that it left behind;
6. in a sandbox the agent's process only stands for the worker, which the sandbox's first process
   has started: it holds a descriptor of the worker, and the kernel says of which process that is
   (``Pid`` in fdinfo). Code of ours holds it, outside of the sandbox, so that no worker chooses.

Each rank has a share of its launcher's time, memory and disk. A save takes one or two questions of
each rank, a busy shim a few events a minute; the shares are a thousand times that, and end a flood
before it costs the launcher anything.
"""

import os
import select
import socket
import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from securetrain.core import read_stat
from securetrain.core.errors import RuntimeRefusal

_CREDENTIALS: Final = struct.Struct("iII")
_SO_PEERPIDFD: Final = 77
_MAX_DEPTH: Final = 64
"""Ancestors that are looked at; nobody nests so many processes below a worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """A process that torch's agent started."""

    pid: int
    rank: int
    local_rank: int
    world_size: int
    round: int
    """Which start of the workers, counted from 1."""
    handle: int
    """A descriptor of the process (pidfd_open(2))."""

    @property
    def runs(self) -> bool:
        """Tell whether it has not ended."""
        return _runs(self.handle)


def workers_of(
    pids: Mapping[int, int], environments: Mapping[int, Mapping[str, str]], number: int
) -> list[Worker]:
    """The workers that an agent has started.

    Args:
        pids: Their processes, by local rank.
        environments: The variables that the agent made for each, by local rank.
        number: The round's.
    """
    found = []
    for local_rank, pid in pids.items():
        with suppress(ProcessLookupError):  # it has ended already, and says nothing
            found.append(
                Worker(
                    pid=pid,
                    rank=int(environments[local_rank]["RANK"]),
                    local_rank=local_rank,
                    world_size=int(environments[local_rank]["WORLD_SIZE"]),
                    round=number,
                    handle=os.pidfd_open(pid),
                )
            )
    return found


def stood_for(workers: Mapping[int, Worker], proc: Path = Path("/proc")) -> dict[int, Worker]:
    """The workers by their own processes, where the agent's only stand for them (rule 6)."""
    found = {}
    for worker in workers.values():
        with suppress(OSError):
            for file in (proc / str(worker.pid) / "fdinfo").iterdir():
                for line in file.read_text().splitlines():
                    name, _, pid = line.partition(":")
                    if name == "Pid" and int(pid) > 1:
                        found[int(pid)] = worker
    return found


def identify(
    peer: socket.socket, workers: Mapping[int, Worker], proc: Path = Path("/proc")
) -> Worker:
    """The worker behind a connection.

    Args:
        peer: The connection.
        workers: Those of this round, by process.
        proc: Where processes are listed.

    Raises:
        RuntimeRefusal: ST-RUNT-030.
    """
    pid, uid, _ = _CREDENTIALS.unpack(
        peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )
    for ancestor in _ancestors(pid, proc):
        worker = workers.get(ancestor)
        if worker is not None and worker.runs and _is_there(peer):
            return worker
    raise RuntimeRefusal(
        "ST-RUNT-030", f"process {pid} of user {uid} is no worker of this launch", "SO_PEERCRED"
    )


def _ancestors(pid: int, proc: Path) -> Iterator[int]:
    """A process and those above it, up to this one."""
    for _ in range(_MAX_DEPTH):
        if pid <= 1 or pid == os.getpid():
            return
        yield pid
        try:
            found = read_stat(pid, proc)
        except (OSError, ValueError):
            return
        if found is None:
            return
        pid = found.parent


def _is_there(peer: socket.socket) -> bool:
    """Tell whether the process that connected has not ended; True where the kernel cannot say."""
    try:
        handle = peer.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError as error:
        # ESRCH and EINVAL: it has ended, and was waited for. ENOPROTOOPT: an older kernel.
        return error.errno == _NO_SUCH_OPTION
    try:
        return _runs(handle)
    finally:
        os.close(handle)


_NO_SUCH_OPTION: Final = 92
"""ENOPROTOOPT."""


def _runs(handle: int) -> bool:
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return not poll.poll(0)


CODE = "ST-RUNT-034"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """The share of a rank. Questions and bytes come back with time, the ledger's do not."""

    questions: int = 2_000
    questions_a_second: float = 20.0
    bytes: int = 256 << 20
    bytes_a_second: float = 8 << 20
    ledger_bytes: int = 8 << 20
    """In one launch."""


@dataclass(slots=True)
class Share:
    """The use that one rank has made of its quota."""

    quota: Quota
    since: float
    questions: float = 0.0
    bytes: float = 0.0
    ledger_bytes: int = 0
    left_out: int = 0
    """Events that were not written."""
    bytes_left_out: int = 0

    def question(self, size: int, now: float) -> None:
        """Count a question.

        Raises:
            RuntimeRefusal: ST-RUNT-034.
        """
        passed, self.since = max(0.0, now - self.since), now
        quota = self.quota
        self.questions = max(0.0, self.questions - passed * quota.questions_a_second)
        self.bytes = max(0.0, self.bytes - passed * quota.bytes_a_second)
        if self.questions + 1 > quota.questions:
            raise RuntimeRefusal(
                CODE,
                f"more than {quota.questions} questions, and {quota.questions_a_second:.0f} a"
                " second after that",
            )
        if self.bytes + size > quota.bytes:
            raise RuntimeRefusal(CODE, f"more than {quota.bytes >> 20} MiB of questions")
        self.questions += 1
        self.bytes += size

    def entry(self, size: int) -> bool:
        """Count an entry of the ledger; False for one above the share, which is left out."""
        if self.ledger_bytes + size > self.quota.ledger_bytes:
            self.left_out += 1
            self.bytes_left_out += size
            return False
        self.ledger_bytes += size
        return True
