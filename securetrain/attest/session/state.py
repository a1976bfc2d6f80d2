# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A verifier's memory across restarts: clocks of TPMs, revocations, versions that it has seen.

Leases, nonces and measured prefixes are not in it: a verifier that was restarted asks every node
for full evidence. What is in it only ever makes the verifier stricter. An SQLite file (private, one
writer) keeps it; when it cannot be read or written, nothing is accepted (ST-ATTS-015).
"""

import math
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from securetrain.core.errors import AttestationError
from securetrain.core.files import PRIVATE_FILE
from securetrain.evidence import Remembered

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS tpm (
    ek_name TEXT PRIMARY KEY, ak_name TEXT NOT NULL, node TEXT NOT NULL,
    clock INTEGER NOT NULL, reset_count INTEGER NOT NULL, restart_count INTEGER NOT NULL,
    firmware TEXT NOT NULL, seen TEXT NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS revoked (
    subject TEXT PRIMARY KEY, reason TEXT NOT NULL, since TEXT NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS floor (
    document TEXT PRIMARY KEY, version INTEGER NOT NULL
) STRICT;
"""
# Not INSERT OR REPLACE, which moves the row and writes the index too.
_REMEMBER: Final = """
INSERT INTO tpm VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (ek_name) DO UPDATE SET
    ak_name = excluded.ak_name, node = excluded.node, clock = excluded.clock,
    reset_count = excluded.reset_count, restart_count = excluded.restart_count,
    firmware = excluded.firmware, seen = excluded.seen
"""
_VERSION: Final = 1
_BUSY_SECONDS: Final = 5.0
HEARD_WITHIN: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Revocation:
    """Somebody who is not let in any more."""

    subject: str
    """``node:NAME``, ``ek:HEX``, ``chip:HEX`` or ``device:SERIAL``."""
    reason: str
    since: str
    """RFC 3339 UTC."""


class StateStore(Protocol):
    """The store of a verifier's memory."""

    def last(self, ek_name: str) -> Remembered | None:
        """The last accepted quote of a TPM."""

    def remember(self, entry: Remembered) -> None:
        """Keep an accepted quote."""

    def revoke(self, entry: Revocation) -> None:
        """Let `entry.subject` in no more."""

    def restore(self, subject: str) -> bool:
        """Forget a revocation; whether there was one."""

    def revocation(self, subject: str) -> Revocation | None:
        """The revocation of `subject`, if there is one."""

    def revocations(self) -> list[Revocation]:
        """All of them, by subject."""

    def floor(self, document: str) -> int:
        """The highest version of a signed document that was accepted; 0 before the first."""

    def raise_floor(self, document: str, version: int) -> None:
        """Accept no older version from now on."""


class MemoryState:
    """A verifier that lives as long as one run and remembers no longer."""

    def __init__(self) -> None:
        self._tpms: dict[str, Remembered] = {}
        self._revoked: dict[str, Revocation] = {}
        self._floors: dict[str, int] = {}

    def last(self, ek_name: str) -> Remembered | None:
        """See `StateStore`."""
        return self._tpms.get(ek_name)

    def remember(self, entry: Remembered) -> None:
        """See `StateStore`."""
        self._tpms[entry.ek_name] = entry

    def revoke(self, entry: Revocation) -> None:
        """See `StateStore`."""
        self._revoked.setdefault(entry.subject, entry)

    def restore(self, subject: str) -> bool:
        """See `StateStore`."""
        return self._revoked.pop(subject, None) is not None

    def revocation(self, subject: str) -> Revocation | None:
        """See `StateStore`."""
        return self._revoked.get(subject)

    def revocations(self) -> list[Revocation]:
        """See `StateStore`."""
        return sorted(self._revoked.values(), key=lambda entry: entry.subject)

    def floor(self, document: str) -> int:
        """See `StateStore`."""
        return self._floors.get(document, 0)

    def raise_floor(self, document: str, version: int) -> None:
        """See `StateStore`."""
        self._floors[document] = max(version, self.floor(document))


class FileState:
    """An SQLite file. Safe to use from several threads; other processes may read it meanwhile.

    Who is revoked is asked several times for every exchange, and changes hardly ever: it is read
    into memory. What this object writes counts at once, what another process writes (a person who
    restores a node) within `HEARD_WITHIN` seconds.
    """

    def __init__(self, path: Path, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Open the file, or make it (mode 0600).

        Raises:
            AttestationError: ST-ATTS-015.
        """
        self._path = path
        self._monotonic = monotonic
        self._revoked: dict[str, Revocation] = {}
        self._heard_until = -math.inf
        self._lock = threading.RLock()
        try:
            os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, PRIVATE_FILE))
            self._db = sqlite3.connect(
                path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
            self._db.executescript(f"PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;{_SCHEMA}")
            (version,) = self._db.execute("PRAGMA user_version").fetchone()
            if version not in {0, _VERSION}:
                raise self._bad(f"version {version}, this is {_VERSION}")
            self._db.execute(f"PRAGMA user_version={_VERSION}")
        except (sqlite3.Error, OSError) as error:
            raise self._bad(str(error)) from error

    def close(self) -> None:
        """Let go of the file."""
        with self._lock:
            self._heard_until = -math.inf
            self._db.close()

    def last(self, ek_name: str) -> Remembered | None:
        """See `StateStore`."""
        rows = self._run("SELECT * FROM tpm WHERE ek_name = ?", (ek_name,))
        if not rows:
            return None
        ek, ak, node, clock, reset, restart, firmware, seen = rows[0]
        return Remembered(
            ek_name=ek,
            ak_name=ak,
            node=node,
            clock=clock,
            reset_count=reset,
            restart_count=restart,
            firmware=int(firmware, 16),
            seen=seen,
        )

    def remember(self, entry: Remembered) -> None:
        """See `StateStore`."""
        self._run(
            _REMEMBER,
            (
                entry.ek_name,
                entry.ak_name,
                entry.node,
                entry.clock,
                entry.reset_count,
                entry.restart_count,
                f"{entry.firmware:x}",  # 64 bits without a sign do not fit an SQLite integer
                entry.seen,
            ),
        )

    def revoke(self, entry: Revocation) -> None:
        """See `StateStore`; the first reason stays."""
        with self._lock:
            self._heard_until = -math.inf
            self._run(
                "INSERT OR IGNORE INTO revoked VALUES (?, ?, ?)",
                (entry.subject, entry.reason, entry.since),
            )
            self._run("PRAGMA wal_checkpoint(FULL)")  # a revocation survives a power cut

    def restore(self, subject: str) -> bool:
        """See `StateStore`."""
        with self._lock:
            self._heard_until = -math.inf
            return bool(self._run("DELETE FROM revoked WHERE subject = ? RETURNING 1", (subject,)))

    def revocation(self, subject: str) -> Revocation | None:
        """See `StateStore`."""
        with self._lock:
            now = self._monotonic()
            if now >= self._heard_until:
                self._revoked = {entry.subject: entry for entry in self.revocations()}
                self._heard_until = now + HEARD_WITHIN
            return self._revoked.get(subject)

    def revocations(self) -> list[Revocation]:
        """See `StateStore`."""
        return [_revocation(row) for row in self._run("SELECT * FROM revoked ORDER BY subject")]

    def floor(self, document: str) -> int:
        """See `StateStore`."""
        rows = self._run("SELECT version FROM floor WHERE document = ?", (document,))
        return int(rows[0][0]) if rows else 0

    def raise_floor(self, document: str, version: int) -> None:
        """See `StateStore`."""
        self._run(
            "INSERT INTO floor VALUES (?, ?) ON CONFLICT (document)"
            " DO UPDATE SET version = max(version, excluded.version)",
            (document, version),
        )

    def _run(self, statement: str, values: tuple[str | int, ...] = ()) -> list[Any]:
        try:
            with self._lock:
                return self._db.execute(statement, values).fetchall()
        except (sqlite3.Error, OverflowError) as error:
            raise self._bad(str(error)) from error

    def _bad(self, what: str) -> AttestationError:
        return AttestationError("ST-ATTS-015", what, str(self._path))


def _revocation(row: Any) -> Revocation:
    return Revocation(subject=row[0], reason=row[1], since=row[2])
