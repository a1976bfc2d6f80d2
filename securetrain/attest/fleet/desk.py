# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The record behind a fleet's tokens: who is invited, and what was proven and waits for a person.

Rules:

1. a token is spent in the transaction that keeps what its machine has proven: after a kill at any
   instant there is both or neither. A spent token is never good again;
2. the folder's key seals what was proven, and every change has the next version, which is told by a
   file beside the database and by the fleet's sealed state, which is elsewhere: a record that was
   edited, or is older than it was, is noticed (ST-ADMN-023), and no machine is admitted until a
   person has looked;
3. the latest time that was seen is kept. A clock that went back more than `SLACK` is refused
   (ST-ADMN-022): tokens that had ended would be good again;
4. every decision is in the folder's ledger before it is in force: what cannot be written there is
   not done, and a ledger that has lost what was written is no ledger (`decisions`). The fleet's
   state knows its last entry with each version: ledger and record put back together are noticed.
   Strangers without a token are not written down: they could fill the disk;
5. what waits is of one machine a name, and one name a machine (ST-ADMN-021).

::

    <state>/admission/
      desk.sqlite       tokens, what was proven, the latest time
      ledger.jsonl      every decision, signed by the desk's key
      version           the last version, outside of the database: it may be behind, never ahead,
                        and so may what the fleet's state knows
      key.pem           the listener's TLS key, which tokens pin; it seals what was proven too
"""

import hashlib
import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import msgspec

from securetrain.attest.fleet.decisions import Decisions
from securetrain.attest.fleet.enrollment import Roots
from securetrain.attest.fleet.entrants import Invited, Proven, invited_from
from securetrain.attest.session.state import Seen, StateStore
from securetrain.core import canonical
from securetrain.core.errors import (
    AdmissionError,
    AttestationError,
    SecureTrainError,
    UsageError,
    reason,
)
from securetrain.core.files import (
    PRIVATE_FILE,
    locked,
    make_private_dir,
    read_file,
    write_atomic,
)
from securetrain.identity.keys import KeyKind, PrivateKey
from securetrain.ledger import Entry, LastEntry, LedgerEvent, events

SLACK: Final = timedelta(minutes=5)
RECORD_LIMIT: Final = 16 << 20
LEDGER: Final = "ledger.jsonl"
_LABEL: Final = b"securetrain-fleet-proof-v1\0"
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS tokens (
    id TEXT PRIMARY KEY, key BLOB NOT NULL, node TEXT NOT NULL, image_group TEXT NOT NULL,
    ek TEXT NOT NULL, replace_node INTEGER NOT NULL, ends TEXT NOT NULL, tries INTEGER NOT NULL,
    used TEXT, used_by TEXT
) STRICT;
CREATE INDEX IF NOT EXISTS tokens_of_node ON tokens (node);
CREATE TABLE IF NOT EXISTS proven (
    token TEXT PRIMARY KEY, node TEXT NOT NULL UNIQUE, ek TEXT NOT NULL UNIQUE,
    record BLOB NOT NULL, seal BLOB NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS settings (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
"""
_BUSY_SECONDS: Final = 30.0
_VERSION_LIMIT: Final = 32


class Desk:
    """The folder. Safe to use from several threads and processes."""

    def __init__(self, folder: Path, state: StateStore) -> None:
        """Open the folder, or make it (mode 0700).

        Args:
            folder: private to this user.
            state: of the fleet; knows the last version.

        Raises:
            AdmissionError: ST-ADMN-023 when it cannot be used, is incomplete or went back.
            AttestationError: ST-ATTS-015 or 017 about the state.
        """
        self.folder = folder
        self._state = state
        self._lock = threading.RLock()
        try:
            make_private_dir(folder)
            with locked(folder / "lock"):
                self._open()
        except (AdmissionError, AttestationError):
            raise
        except (SecureTrainError, sqlite3.Error, OSError) as error:
            raise self._bad(reason(error)) from error

    def _open(self) -> None:
        key, database = self.folder / "key.pem", self.folder / "desk.sqlite"
        told = self._told()
        if not key.exists() and not database.exists() and not told:
            PrivateKey.create(key, KeyKind.P256)
        # A key alone may be what a kill left behind; a version or a database says more.
        elif not (key.exists() and database.exists()) and (database.exists() or told):
            raise self._bad("a part of it is missing")
        self.key = PrivateKey.load(key)
        os.close(os.open(database, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, PRIVATE_FILE))
        self._db = sqlite3.connect(
            database, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        self._db.executescript(f"PRAGMA synchronous=FULL;{_SCHEMA}")
        self._ledger = Decisions(self.folder / LEDGER, self.key)
        try:
            if (version := self.version) < told:
                raise self._went_back(version, told)
            with self._whole():
                self._require_newest()
        except BaseException:
            self._db.close()
            raise

    def close(self) -> None:
        """Let go of the file."""
        with self._lock:
            self._db.close()

    @property
    def version(self) -> int:
        """A number that rises with every change; 0 before the first."""
        return int(self._setting("version") or 0)

    # The listener.

    @property
    def address(self) -> str:
        """The address that stands in tokens, HOST:PORT; empty before one was given."""
        return self._setting("address")

    @property
    def roots(self) -> Roots:
        """Certificates to pin beside those of the reference values."""
        text = self._setting("roots")
        return msgspec.json.decode(text, type=Roots) if text else Roots()

    def configure(self, now: datetime, *, address: str = "", roots: Roots | None = None) -> None:
        """Keep where the listener is, and add certificates to pin.

        Raises:
            AdmissionError: ST-ADMN-022 and 023.
        """
        with self._changing(now):
            if address:
                self._set("address", address)
            if roots is not None:
                kept = msgspec.to_builtins(self.roots)
                for name, pems in msgspec.to_builtins(roots).items():
                    kept[name] = list(dict.fromkeys((*kept[name], *pems)))
                self._set("roots", msgspec.json.encode(kept).decode())

    # Tokens.

    def invite(self, invited: Sequence[Invited], now: datetime) -> None:
        """Keep new tokens, all or none; an unused one of the same node is good no more.

        Raises:
            AdmissionError: ST-ADMN-022 and 023.
        """
        with self._changing(now):
            for one in invited:
                self.record(
                    events.FleetTokenMade(
                        subject=one.node,
                        token=one.id,
                        group=one.group,
                        ends=one.ends.isoformat(),
                        replaces="yes" if one.replace else "no",
                    ),
                    now,
                )
                self._run("DELETE FROM tokens WHERE node = ? AND used IS NULL", (one.node,))
                self._run(
                    "INSERT INTO tokens VALUES (?, ?, ?, ?, ?, ?, ?, 0, NULL, NULL)",
                    (
                        *(one.id, one.key.spki, one.node, one.group, one.ek),
                        *(int(one.replace), one.ends.isoformat()),
                    ),
                )

    def invited(self, token: str) -> Invited | None:
        """The token with this id."""
        rows = self._run("SELECT * FROM tokens WHERE id = ?", (token,))
        return invited_from(rows[0]) if rows else None

    def tokens(self) -> list[Invited]:
        """Every token, in the order in which they were made."""
        return [invited_from(row) for row in self._run("SELECT * FROM tokens ORDER BY rowid")]

    def tried(self, token: str, now: datetime) -> None:
        """Count a wrong proof of a token."""
        with self._changing(now):
            self._run("UPDATE tokens SET tries = tries + 1 WHERE id = ?", (token,))

    # What was proven.

    def keep(self, proven: Proven, now: datetime) -> None:
        """Spend a token, and keep what its machine has proven: both or neither.

        Raises:
            AdmissionError: ST-ADMN-016 when the token was used meanwhile, ST-ADMN-021 when the
                machine waits under another name, or another machine under this one; ST-ADMN-022
                and 023.
        """
        record = canonical.encode(proven)
        with self._changing(now):
            spent = self._run(
                "UPDATE tokens SET used = ?, used_by = ? WHERE id = ? AND used IS NULL RETURNING 1",
                (now.isoformat(), proven.ek, proven.token),
            )
            if not spent:
                raise AdmissionError("ST-ADMN-016", "it was used meanwhile", f"node {proven.node}")
            self._check_waiting(proven.node, proven.ek)
            self._run("DELETE FROM proven WHERE node = ?", (proven.node,))
            self._run(
                "INSERT INTO proven VALUES (?, ?, ?, ?, ?)",
                (proven.token, proven.node, proven.ek, record, self.key.sign(_LABEL + record)),
            )
            self.record(
                events.MachineProven(
                    subject=proven.node,
                    token=proven.token,
                    group=proven.group,
                    ek=proven.ek,
                    evidence=proven.bundle.evidence.digest.hex(),
                    address=proven.remote,
                ),
                now,
            )

    def check_waiting(self, node: str, ek: str) -> None:
        """Refuse a machine that waits under another name, and a second one under one name.

        Raises:
            AdmissionError: ST-ADMN-021.
        """
        with self._lock:
            self._check_waiting(node, ek)

    def waiting(self, nodes: Sequence[str] = ()) -> list[Proven]:
        """Proofs that wait, of some nodes or of all, in the order in which they came.

        Raises:
            AdmissionError: ST-ADMN-023 when one was changed by something else than securetrain.
        """
        wanted = set(nodes)
        return [
            self._read(record, seal)
            for node, record, seal in self._run(
                "SELECT node, record, seal FROM proven ORDER BY rowid"
            )
            if not wanted or node in wanted
        ]

    def waiting_nodes(self) -> list[str]:
        """Names of the nodes that wait, in the order in which they came."""
        return [node for (node,) in self._run("SELECT node FROM proven ORDER BY rowid")]

    def settle(self, signed: Sequence[Proven], now: datetime, *, version: int, by: str) -> None:
        """Take out what was signed.

        Args:
            signed: the proofs.
            now: the time, timezone-aware.
            version: of the edition.
            by: ``person``, or the rule.

        Raises:
            AdmissionError: ST-ADMN-022 and 023.
        """
        with self._changing(now):
            for one in signed:
                self._run("DELETE FROM proven WHERE token = ?", (one.token,))
                self.record(
                    events.MachineEnrolled(
                        subject=one.node,
                        token=one.token,
                        group=one.group,
                        ek=one.ek,
                        version=version,
                        by=by,
                    ),
                    now,
                )

    def cancel(self, nodes: Sequence[str], now: datetime) -> int:
        """Forget unused tokens and waiting proofs of nodes; the number of nodes that had any."""
        found = 0
        with self._changing(now):
            for node in nodes:
                gone = self._run(
                    "DELETE FROM tokens WHERE node = ? AND used IS NULL RETURNING 1", (node,)
                )
                gone += self._run("DELETE FROM proven WHERE node = ? RETURNING 1", (node,))
                found += bool(gone)
                if gone:
                    self.record(events.MachineRejected(subject=node), now)
        return found

    # The ledger.

    def record(self, said: LedgerEvent, now: datetime) -> None:
        """Write a decision down (rule 4).

        Raises:
            AdmissionError: ST-ADMN-023 when it cannot be written, or the ledger is damaged.
            AttestationError: ST-ATTS-015 or 017 about the state.
        """
        with self._lock:
            if not self._db.in_transaction:
                # What is refused for a clock that went back is written down, too.
                with self._changing(now, timed=False):
                    self.record(said, now)
                return
            try:
                last = self._ledger.write(said, now, self._last)
            except SecureTrainError as error:
                raise self._bad(f"{LEDGER}: {reason(error)}") from error
            self._set("ledger", msgspec.json.encode(last).decode())

    def decisions(self) -> Sequence[Entry]:
        """Every decision, in order.

        Raises:
            AdmissionError: ST-ADMN-023 when it cannot be read.
            IntegrityError: ST-LEDG-001 to 004 when it was changed by something else.
        """
        try:
            return self._ledger.read(self._last)
        except UsageError as error:
            raise self._bad(reason(error)) from error

    @property
    def _last(self) -> LastEntry:
        """The last entry of the ledger."""
        text = self._setting("ledger")
        try:
            return msgspec.json.decode(text, type=LastEntry) if text else LastEntry()
        except (msgspec.DecodeError, ValueError) as error:
            raise self._bad("its last entry was changed by something else") from error

    def check_time(self, now: datetime) -> None:
        """Refuse a clock that went back.

        Raises:
            AdmissionError: ST-ADMN-022.
        """
        latest = self._setting("clock")
        if latest and now < datetime.fromisoformat(latest) - SLACK:
            raise AdmissionError(
                "ST-ADMN-022", f"it is {now}, and it was {latest} before", str(self.folder)
            )

    # Inside.

    def _check_waiting(self, node: str, ek: str) -> None:
        rows = self._run("SELECT node, ek FROM proven WHERE node = ? OR ek = ?", (node, ek))
        for other, its in rows:
            if (other, its) != (node, ek):
                raise AdmissionError(
                    "ST-ADMN-021",
                    f"the TPM {its[:20]}... waits as {other}",
                    f"node {node}: the TPM {ek[:20]}...",
                )

    def _read(self, record: bytes, seal: bytes) -> Proven:
        try:
            self.key.public.verify(seal, _LABEL + record)
            return canonical.decode(record, Proven, limit=RECORD_LIMIT, canonical=True)
        except SecureTrainError as error:
            raise self._bad("a proof was changed by something else than securetrain") from error

    def _told(self) -> int:
        path = self.folder / "version"
        if not path.exists():
            return 0
        text = read_file(path, _VERSION_LIMIT).strip()
        if not text.isdigit():
            raise self._bad(f"{path.name} is no number")
        return int(text)

    def _setting(self, name: str) -> str:
        rows = self._run("SELECT value FROM settings WHERE name = ?", (name,))
        return str(rows[0][0]) if rows else ""

    def _set(self, name: str, value: str) -> None:
        self._run("INSERT OR REPLACE INTO settings VALUES (?, ?)", (name, value))

    @contextmanager
    def _changing(self, now: datetime, *, timed: bool = True) -> Iterator[None]:
        """Change all of it or nothing; it survives a power cut."""
        with self._lock:
            with self._whole():
                if timed:
                    self.check_time(now)
                self._require_newest()
                last = self._last
                yield
                latest, version = self._setting("clock"), self.version + 1
                if not latest or now > datetime.fromisoformat(latest):
                    self._set("clock", now.isoformat())
                self._set("version", str(version))
                if self._last != last:
                    self._ledger.sync()
                newest = self._edition()
                self._run("COMMIT")
            with suppress(SecureTrainError):  # it may be behind
                write_atomic(self.folder / "version", b"%d\n" % version, mode=PRIVATE_FILE)
            with suppress(SecureTrainError):  # and so may this: the next change needs both
                self._state.accept(newest)

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """One transaction, of one process at a time; undone unless the body has committed it."""
        with self._lock:
            self._run("BEGIN IMMEDIATE")
            try:
                yield
            finally:
                with suppress(sqlite3.Error):  # the reason of the failure is what is told
                    if self._db.in_transaction:
                        self._db.execute("ROLLBACK")

    def _require_newest(self) -> None:
        """Refuse a ledger that was cut off, and a folder that went back as a whole."""
        try:
            self._ledger.check(self._last)
        except SecureTrainError as error:
            raise self._bad(f"{LEDGER}: {reason(error)}") from error
        mine = self._edition()
        stands = self._state.accept(mine)
        if stands.version > mine.version:
            raise self._went_back(mine.version, stands.version)
        if stands != mine:
            raise self._bad(f"another version {mine.version} of it was in force before")

    def _edition(self) -> Seen:
        """The record and its ledger, as the fleet's state knows them."""
        version, last = self.version, self._last
        digest = hashlib.sha256(f"{version} {last.end} {last.digest}".encode()).hexdigest()
        return Seen(document=f"admission:{self.key.key_id}", version=version, digest=digest)

    def _went_back(self, version: int, before: int) -> AdmissionError:
        return self._bad(f"it has version {version}, and had version {before} before")

    def _run(self, statement: str, values: tuple[str | int | bytes, ...] = ()) -> list[Any]:
        try:
            with self._lock:
                return self._db.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise self._bad(str(error)) from error

    def _bad(self, what: str) -> AdmissionError:
        return AdmissionError("ST-ADMN-023", what, str(self.folder))
