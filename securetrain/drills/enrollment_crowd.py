# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""D-ENR-CROWD.

200 addresses hold the port at which machines enroll, and come back as soon as they are pushed out.
Plain: whoever has a place keeps it until its deadline of 20 seconds, as in any server with so many
threads; machines do not get their turn. Hardened: an address that has one place keeps it for a
second, so that every machine enrolls; who is pushed out is recorded with ST-ADMN-010.
"""

import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Final
from unittest.mock import patch

from securetrain.core.errors import SecureTrainError
from securetrain.drills.crowd import held_by_a_crowd
from securetrain.drills.loopback_job import PATIENCE, Job, now
from securetrain.drills.registry import DRILLS, Outcome
from securetrain.identity import ClusterCA
from securetrain.rendezvous.coordinator import (
    MAX_CONNECTIONS,
    EnrollmentServer,
    Journal,
    make_token,
)
from securetrain.rendezvous.member import enroll

CODE: Final = DRILLS["D-ENR-CROWD"].expected_code
SOURCES: Final = 200
_MACHINES: Final = 8
_DEADLINE: Final = 20
"""Seconds for each step of whoever has a place."""
_HURRY: Final = 8.0
"""Seconds that a machine tries where it has no turn."""


def from_own_addresses(nodes: int, enrolls: Callable[[str], bool]) -> list[bool]:
    """Enroll so many machines at once, each from an address of its own.

    Args:
        nodes: So many.
        enrolls: Given its name, enrolls one; whether it could.
    """
    connect = socket.create_connection
    sources = {f"node-{n}": f"127.2.0.{n + 1}" for n in range(nodes)}

    def from_its_own(address: tuple[str, int], timeout: float) -> socket.socket:
        return connect(address, timeout, (sources[threading.current_thread().name], 0))

    def begin(node: str) -> bool:
        threading.current_thread().name = node
        return enrolls(node)

    with (
        patch.object(socket, "create_connection", from_its_own),
        ThreadPoolExecutor(nodes) as pool,
    ):
        return list(pool.map(begin, sources))


class Desk:
    """An enrollment server on loopback, and machines that want to be in."""

    def __init__(self, workdir: Path) -> None:
        """Open it."""
        self.workdir = workdir
        self.job = Job(workdir)
        self.cluster = ClusterCA.create(workdir / "ca", "securetrain.local", now())
        self.ca = self.cluster.job(self.job.name, now(), self.cluster.key)
        self.server = EnrollmentServer(
            self.cluster,
            self.ca,
            Journal(self.job.ledger),
            lifetime=timedelta(hours=1),
            timeout=_DEADLINE,
            clock=now,
        )
        self.address = self.server.start("127.0.0.1", 0)

    def enroll_all(self, patience: float, *, pushes: bool = True) -> int:
        """Have the machines enroll beside the crowd; so many do within `patience` seconds.

        Args:
            patience: Seconds that a machine tries.
            pushes: Whether the crowd is there once half of it has been pushed out; else at once.
        """

        def enrolls(node: str) -> bool:
            ends = now() + timedelta(minutes=15)
            token = make_token(self.cluster, self.ca, node, self.address, ends)
            try:
                enroll(token, self.workdir / node, clock=now, timeout=patience)
            except SecureTrainError:
                return False
            return True

        with held_by_a_crowd(self.address, SOURCES, pushes=pushes):
            return sum(from_own_addresses(_MACHINES, enrolls))

    def pushed_out(self) -> int:
        """Entries of the ledger about connections that had to go."""
        return sum(event.code == CODE for event in self.job.events())

    def close(self) -> None:
        """Take no more enrollments."""
        self.server.stop()
        self.cluster.close()


def plain(workdir: Path) -> Outcome:
    """Hold a port at which nobody is pushed out before its deadline."""
    with closing(Desk(workdir)) as desk:
        desk.server._listener._stay = float(_DEADLINE)
        enrolled = desk.enroll_all(_HURRY, pushes=False)
    return Outcome.of_plain(
        enrolled < _MACHINES,
        f"{SOURCES} addresses held a port with {MAX_CONNECTIONS} places of {_DEADLINE} s each:"
        f" {enrolled} of {_MACHINES} machines enrolled in {_HURRY:g} s.",
    )


def hardened(workdir: Path) -> Outcome:
    """Hold ours."""
    with closing(Desk(workdir)) as desk:
        enrolled = desk.enroll_all(PATIENCE)
        pushed = desk.pushed_out()
    return Outcome.of_hardened(
        enrolled < _MACHINES,
        enrolled == _MACHINES and pushed > 0,
        CODE if pushed else "",
        f"The same {SOURCES} addresses: {enrolled} of {_MACHINES} machines enrolled; the ledger"
        f" has {pushed} entries of connections that were pushed out ({CODE}).",
    )
