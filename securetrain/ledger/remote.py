# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A worker's ledger: the launcher's, through its signing socket.

The launcher checks that the event is one that this worker may write, fills in the writer, the time
and the place in the chain, and signs under the key of the event's role.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

from securetrain.core import RunDir, canonical
from securetrain.identity.keys import PrivateKey
from securetrain.identity.signing import SigningSocket, shared_socket
from securetrain.ledger.events import LedgerEvent, WriterRole, encode_event
from securetrain.ledger.log import Ledger


class Journal(Protocol):
    """Whatever takes typed events."""

    def write(self, said: LedgerEvent) -> None:
        """Record one event."""


@dataclass(frozen=True, slots=True)
class RemoteLedger:
    """Writes through the launcher."""

    socket: SigningSocket

    def write(self, said: LedgerEvent) -> None:
        """Have one event written.

        Raises:
            RuntimeRefusal: ST-RUNT-030 to 035 when the launcher refuses it.
        """
        self.socket.write(canonical.encode(encode_event(said)))


def open_worker_ledger(
    run: RunDir, signer: str, role: WriterRole, rank: int, clock: Callable[[], datetime]
) -> Journal:
    """The ledger for a worker.

    Args:
        run: The run directory.
        signer: The launcher's signing socket; empty outside of a launcher, where the worker is its
            own launcher and has the run's key files.
        role: As which the worker writes: the trainer's or the shim's.
        rank: The worker's rank.
        clock: The time of what it writes itself.

    Raises:
        SecureTrainError: There is no socket, and no key either.
    """
    if signer:
        return RemoteLedger(shared_socket(Path(signer)))
    key = PrivateKey.load(key_file(run, role))
    return Ledger(run.ledger, key, f"rank-{rank}", clock)


def key_file(run: RunDir, role: WriterRole) -> Path:
    """The key file of a role; directories of earlier versions have one for two roles."""
    own, shared = {
        WriterRole.COORDINATOR: ("coordinator", "agent"),
        WriterRole.LAUNCHER: ("agent", "agent"),
        WriterRole.RANK: ("trainer", "worker"),
        WriterRole.WORKER: ("worker", "worker"),
    }[role]
    path = run.key(own)
    return path if path.exists() else run.key(shared)
