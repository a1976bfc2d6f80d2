# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A verifier's memory across restarts: clocks of TPMs, revocations, versions that it has seen.

Leases, nonces and measured prefixes are not in it: a verifier that was restarted asks every node
for full evidence. What is in it only ever makes the verifier stricter. An SQLite file (private,
shared by the verifiers of a machine) keeps it; when it cannot be read or written, nothing is
accepted (ST-ATTS-015). `fleet_state` is the file that outlives jobs.
"""

import math
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol

import msgspec

from securetrain.core.errors import AttestationError
from securetrain.core.files import PRIVATE_FILE
from securetrain.evidence import Remembered

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS quotes (
    ek_name TEXT NOT NULL, ak_name TEXT NOT NULL, node TEXT NOT NULL,
    clock INTEGER NOT NULL, reset_count INTEGER NOT NULL, restart_count INTEGER NOT NULL,
    firmware TEXT NOT NULL, seen TEXT NOT NULL, boot TEXT NOT NULL, uptime INTEGER NOT NULL,
    entries INTEGER NOT NULL, pcr10 TEXT NOT NULL, PRIMARY KEY (ek_name, boot)
) STRICT;
CREATE TABLE IF NOT EXISTS revoked (
    subject TEXT PRIMARY KEY, reason TEXT NOT NULL, since TEXT NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS floor (
    document TEXT PRIMARY KEY, version INTEGER NOT NULL, digest TEXT NOT NULL DEFAULT ''
) STRICT;
"""
_FROM_1: Final = "ALTER TABLE floor ADD COLUMN digest TEXT NOT NULL DEFAULT ''"
_FROM_2: Final = """
INSERT OR IGNORE INTO quotes SELECT *, '', 0, 0, '' FROM tpm;
DROP TABLE tpm;
"""
COLUMNS: Final = Remembered.__struct_fields__
KEPT: Final = 8
"""Quotes of a TPM that are kept at most: those furthest on in its time."""
_TRIM: Final = f"""
DELETE FROM quotes WHERE ek_name = ? AND boot NOT IN (SELECT boot FROM quotes WHERE ek_name = ?
    ORDER BY reset_count DESC, restart_count DESC, clock DESC LIMIT {KEPT})
"""  # noqa: S608 - of constants
_VERSION: Final = 3
_BUSY_SECONDS: Final = 5.0
HEARD_WITHIN: Final = 0.5


def remembering(columns: Sequence[str]) -> str:
    """The statement that keeps a quote of these columns.

    Not INSERT OR REPLACE, which moves the row and writes the index too. Two verifiers may hear two
    quotes of one TPM in the other order: the later one stays.
    """
    moment = "reset_count", "restart_count", "clock"
    changed = ", ".join(f"{name} = excluded.{name}" for name in columns)
    given, kept = (
        ", ".join(f"{table}.{name}" for name in moment) for table in ("excluded", "quotes")
    )
    names, places = ", ".join(columns), ", ".join("?" * len(columns))
    return (
        f"INSERT INTO quotes ({names}) VALUES ({places})"  # noqa: S608 - of constants
        f" ON CONFLICT (ek_name, boot) DO UPDATE SET {changed} WHERE ({given}) >= ({kept})"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Revocation:
    """Somebody who is not let in any more."""

    subject: str
    """``node:NAME``, ``ek:HEX``, ``chip:HEX`` or ``device:SERIAL``."""
    reason: str
    since: str
    """RFC 3339 UTC."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """An edition of a signed document that was accepted."""

    document: str
    version: int
    digest: str
    """SHA-256 (hex) of its content; empty where an earlier version of this program kept none."""

    def stands(self, given: "Seen") -> "Seen":
        """The newer one of two editions; this one where they are two of one version."""
        if given.version < self.version:
            return self
        other = given.version == self.version and self.digest not in {"", given.digest}
        return self if other else given


class StateStore(Protocol):
    """The store of a verifier's memory."""

    def past(self, ek_name: str) -> list[Remembered]:
        """The last accepted quote of a TPM for each boot of a verifier's machine."""

    def remember(self, entry: Remembered) -> None:
        """Keep an accepted quote, and `KEPT` of its TPM at most."""

    def revoke(self, entry: Revocation) -> None:
        """Let `entry.subject` in no more."""

    def restore(self, subject: str) -> bool:
        """Forget a revocation, and the clock of a TPM; whether there was one."""

    def revocation(self, subject: str) -> Revocation | None:
        """The revocation of `subject`, if there is one."""

    def revocations(self) -> list[Revocation]:
        """All of them, by subject."""

    def accept(self, given: Seen) -> Seen:
        """Accept an edition, if none that is newer, and no other one of its version, was before.

        Returns:
            The edition that stands: what was given, or the one that it would have to replace.
        """


class MemoryState:
    """A verifier that lives as long as one run and remembers no longer."""

    def __init__(self) -> None:
        self._tpms: dict[str, dict[str, Remembered]] = {}
        self._revoked: dict[str, Revocation] = {}
        self._seen: dict[str, Seen] = {}

    def past(self, ek_name: str) -> list[Remembered]:
        """See `StateStore`."""
        return list(self._tpms.get(ek_name, {}).values())

    def remember(self, entry: Remembered) -> None:
        """See `StateStore`."""
        kept = self._tpms.setdefault(entry.ek_name, {})
        kept[entry.boot] = max(kept.get(entry.boot, entry), entry, key=_moment)
        if len(kept) > KEPT:
            del kept[min(kept, key=lambda boot: _moment(kept[boot]))]

    def revoke(self, entry: Revocation) -> None:
        """See `StateStore`."""
        self._revoked.setdefault(entry.subject, entry)

    def restore(self, subject: str) -> bool:
        """See `StateStore`."""
        forgotten = self._tpms.pop(subject, None) is not None
        return self._revoked.pop(subject, None) is not None or forgotten

    def revocation(self, subject: str) -> Revocation | None:
        """See `StateStore`."""
        return self._revoked.get(subject)

    def revocations(self) -> list[Revocation]:
        """See `StateStore`."""
        return sorted(self._revoked.values(), key=lambda entry: entry.subject)

    def accept(self, given: Seen) -> Seen:
        """See `StateStore`."""
        self._seen[given.document] = self._seen.get(given.document, given).stands(given)
        return self._seen[given.document]


class SqlState:
    """A `StateStore` of tables, by statements that SQLite and PostgreSQL both take.

    Who is revoked is asked several times for every exchange, and changes hardly ever: it is read
    into memory. What this object writes counts at once, what another process writes (a person who
    restores a node) within `HEARD_WITHIN` seconds. Safe to use from several threads.
    """

    _columns: ClassVar[Sequence[str]] = COLUMNS
    _remember: ClassVar[str] = remembering(COLUMNS)
    _lock: threading.RLock
    _monotonic: Callable[[], float]
    _revoked: dict[str, Revocation]
    _heard_until: float

    def _prepare(self, monotonic: Callable[[], float]) -> None:
        """Begin with nothing heard."""
        self._monotonic = monotonic
        self._revoked = {}
        self._heard_until = -math.inf
        self._lock = threading.RLock()

    def past(self, ek_name: str) -> list[Remembered]:
        """See `StateStore`."""
        return self._quotes("WHERE ek_name = ?", ek_name)

    def clocks(self) -> list[Remembered]:
        """The accepted quotes of all TPMs that are kept, by TPM and then in its own time."""
        return self._quotes("ORDER BY ek_name, reset_count, restart_count, clock")

    def remember(self, entry: Remembered) -> None:
        """See `StateStore`."""
        fields = msgspec.structs.asdict(entry)
        # 64 bits without a sign do not fit an SQL integer.
        row = tuple((fields | {"firmware": f"{entry.firmware:x}"}).values())
        self._run(self._remember, self._row(row))
        self._run(_TRIM, (entry.ek_name, entry.ek_name))

    def _quotes(self, which: str, *values: str) -> list[Remembered]:
        names = ", ".join(self._columns)
        rows = self._run(f"SELECT {names} FROM quotes {which}", values)  # noqa: S608 - of constants
        return list(map(self._quote, rows))

    def _row(self, row: tuple[str | int, ...]) -> tuple[str | int | bytes, ...]:
        """A quote's columns, as the store keeps them."""
        return row

    def _quote(self, row: Any) -> Remembered:
        given = dict(zip(COLUMNS, row, strict=True))
        return Remembered(**given | {"firmware": int(given["firmware"], 16)})

    def revoke(self, entry: Revocation) -> None:
        """See `StateStore`; the first reason stays."""
        with self._changing():
            self._run(
                "INSERT INTO revoked VALUES (?, ?, ?) ON CONFLICT (subject) DO NOTHING",
                (entry.subject, entry.reason, entry.since),
            )

    def restore(self, subject: str) -> bool:
        """See `StateStore`."""
        with self._changing():
            found = self._run("DELETE FROM revoked WHERE subject = ? RETURNING 1", (subject,))
            return bool(
                found + self._run("DELETE FROM quotes WHERE ek_name = ? RETURNING 1", (subject,))
            )

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

    def accept(self, given: Seen) -> Seen:
        """See `StateStore`."""
        before = self._seen(given.document)
        if before is not None and before.stands(given) == before:
            return before
        with self._changing():
            # Another process may have accepted one in between.
            found = (self._seen(given.document) or given).stands(given)
            self._run(
                "INSERT INTO floor VALUES (?, ?, ?) ON CONFLICT (document)"
                " DO UPDATE SET version = excluded.version, digest = excluded.digest",
                (found.document, found.version, found.digest),
            )
        return found

    def editions(self) -> list[Seen]:
        """The accepted editions, by document."""
        return list(map(_edition, self._run("SELECT * FROM floor ORDER BY document")))

    def _seen(self, document: str) -> Seen | None:
        rows = self._run("SELECT * FROM floor WHERE document = ?", (document,))
        return _edition(rows[0]) if rows else None

    def _changing(self) -> AbstractContextManager[None]:
        """Change all of it or nothing; what was changed survives a power cut."""
        raise NotImplementedError

    def _run(self, statement: str, values: tuple[str | int | bytes, ...] = ()) -> list[Any]:
        raise NotImplementedError


class FileState(SqlState):
    """An SQLite file; other processes may read it meanwhile."""

    def __init__(self, path: Path, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Open the file, or make it (mode 0600).

        Raises:
            AttestationError: ST-ATTS-015.
        """
        self._path = path
        self._prepare(monotonic)
        try:
            os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, PRIVATE_FILE))
            self._db = sqlite3.connect(
                path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
            self._db.executescript(f"PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;{_SCHEMA}")
            (version,) = self._db.execute("PRAGMA user_version").fetchone()
            if version not in range(_VERSION + 1):
                raise self._bad(f"version {version}, this is {_VERSION}")
            if version == 1:
                self._db.execute(_FROM_1)
            if self._run("SELECT 1 FROM sqlite_master WHERE name = 'tpm'"):
                self._db.executescript(f"BEGIN IMMEDIATE;{_FROM_2}COMMIT")
            self._db.execute(f"PRAGMA user_version={_VERSION}")
        except (sqlite3.Error, OSError) as error:
            raise self._bad(str(error)) from error

    def close(self) -> None:
        """Let go of the file."""
        with self._lock:
            self._heard_until = -math.inf
            self._db.close()

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """See `SqlState`."""
        with self._lock:
            self._heard_until = -math.inf
            self._run("PRAGMA synchronous=FULL")
            self._run("BEGIN IMMEDIATE")
            try:
                yield
                self._run("COMMIT")
            except BaseException:
                self._undo()
                raise
            finally:
                self._run("PRAGMA synchronous=NORMAL")

    def _undo(self) -> None:
        with suppress(sqlite3.Error):  # the reason of the failure is what is told
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")

    def _run(self, statement: str, values: tuple[str | int | bytes, ...] = ()) -> list[Any]:
        try:
            with self._lock:
                return self._db.execute(statement, values).fetchall()
        except (sqlite3.Error, OverflowError) as error:
            raise self._bad(str(error)) from error

    def _bad(self, what: str) -> AttestationError:
        return AttestationError("ST-ATTS-015", what, str(self._path))


def _moment(entry: Remembered) -> tuple[int, int, int]:
    """A TPM's time, as quotes are ordered by (`evidence.tpm.quote`)."""
    return entry.reset_count, entry.restart_count, entry.clock


def _revocation(row: Any) -> Revocation:
    return Revocation(subject=row[0], reason=row[1], since=row[2])


def _edition(row: Any) -> Seen:
    return Seen(document=row[0], version=row[1], digest=row[2])
