# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The register of a cluster CA: certificates, revocations, enrollment tokens.

One SQLite file (0600) that the commands and a running coordinator share.

Rules:

1. a certificate is in it before anybody gets it, so that every serial can be named later;
2. a revocation is never taken back;
3. a token's secret is not in it: only a public key that was derived from the secret, which proves
   nothing for a thief of this file; using a token is one atomic step;
4. when the file cannot be read or written, nothing is issued (ST-IDEN-013).
"""

import os
import sqlite3
import threading
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from cryptography import x509

from securetrain.core.errors import IdentityError
from securetrain.core.files import PRIVATE_FILE
from securetrain.identity.job_ca import public_key_of
from securetrain.identity.keys import PublicKey
from securetrain.identity.spiffe import SpiffeId

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS issued (
    serial TEXT PRIMARY KEY, spiffe TEXT NOT NULL, node TEXT NOT NULL, job TEXT NOT NULL,
    key_id TEXT NOT NULL, how TEXT NOT NULL, begins TEXT NOT NULL, ends TEXT NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS revoked (
    kind TEXT NOT NULL, name TEXT NOT NULL, reason TEXT NOT NULL, since TEXT NOT NULL,
    PRIMARY KEY (kind, name)
) STRICT;
CREATE TABLE IF NOT EXISTS tokens (
    id TEXT PRIMARY KEY, key BLOB NOT NULL, job TEXT NOT NULL, node TEXT NOT NULL,
    ends TEXT NOT NULL, tries INTEGER NOT NULL, used TEXT
) STRICT;
CREATE TABLE IF NOT EXISTS endpoints (job TEXT PRIMARY KEY, address TEXT NOT NULL) STRICT;
"""
_VERSION: Final = 1
_BUSY_SECONDS: Final = 5.0


class How(StrEnum):
    """The reason why a certificate was issued."""

    COMMAND = "command"
    ENROLLMENT = "enrolment"
    RENEWAL = "renewal"


class Kind(StrEnum):
    """The subject of a revocation."""

    NODE = "node"
    """Every certificate of a node, of every job, and any later one."""
    SERIAL = "serial"
    """One certificate."""
    JOB = "job"
    """A job with its CA: every certificate of it, coordinators' too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Issued:
    """A certificate that was given out."""

    serial: str
    """Hex, lower case."""
    spiffe: str
    node: str
    job: str
    key_id: str
    how: How
    begins: datetime
    ends: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Revoked:
    """A node or a certificate that is not let in any more."""

    kind: Kind
    name: str
    """The node's name, or the serial in hex."""
    reason: str
    since: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Invitation:
    """The register's record of an enrollment token."""

    id: str
    """The key id of `key`."""
    key: PublicKey
    job: str
    node: str
    ends: datetime
    tries: int = 0
    """How often a proof for it was wrong."""


def serial_text(certificate: x509.Certificate) -> str:
    """A serial number as it is written everywhere: hex, lower case."""
    return f"{certificate.serial_number:x}"


class Register:
    """The file. Safe to use from several threads and processes."""

    def __init__(self, path: Path) -> None:
        """Open the file, or make it.

        Raises:
            IdentityError: ST-IDEN-013.
        """
        self._path = path
        self._lock = threading.Lock()
        try:
            os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, PRIVATE_FILE))
            self._db = sqlite3.connect(
                path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
            self._db.executescript(f"PRAGMA synchronous=FULL;{_SCHEMA}")
            (version,) = self._db.execute("PRAGMA user_version").fetchone()
            if version not in {0, _VERSION}:
                raise self._bad(f"version {version}, this is {_VERSION}")
            self._db.execute(f"PRAGMA user_version={_VERSION}")
        except (sqlite3.Error, OSError) as error:
            raise self._bad(str(error)) from error

    def close(self) -> None:
        """Let go of the file."""
        with self._lock:
            self._db.close()

    # Certificates.

    def record(self, certificate: x509.Certificate, how: How) -> Issued:
        """Note a certificate, before it is given out."""
        spiffe = SpiffeId.of_certificate(certificate)
        entry = Issued(
            serial=serial_text(certificate),
            spiffe=str(spiffe),
            node=spiffe.node,
            job=spiffe.job,
            key_id=public_key_of(certificate).key_id,
            how=how,
            begins=certificate.not_valid_before_utc,
            ends=certificate.not_valid_after_utc,
        )
        self._run(
            "INSERT INTO issued VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                *(entry.serial, entry.spiffe, entry.node, entry.job, entry.key_id),
                *(entry.how.value, entry.begins.isoformat(), entry.ends.isoformat()),
            ),
        )
        return entry

    def issued(self) -> list[Issued]:
        """Every certificate, oldest first."""
        return [
            Issued(
                serial=serial,
                spiffe=spiffe,
                node=node,
                job=job,
                key_id=key_id,
                how=How(how),
                begins=datetime.fromisoformat(begins),
                ends=datetime.fromisoformat(ends),
            )
            for serial, spiffe, node, job, key_id, how, begins, ends in self._run(
                "SELECT * FROM issued ORDER BY begins, rowid"
            )
        ]

    # Revocations.

    def revoke(self, entry: Revoked) -> None:
        """Keep a revocation; the first reason stays."""
        self._run(
            "INSERT OR IGNORE INTO revoked VALUES (?, ?, ?, ?)",
            (entry.kind.value, entry.name, entry.reason, entry.since.isoformat()),
        )

    def revoked(self) -> list[Revoked]:
        """Every revocation, in the order in which they were made."""
        return [
            Revoked(kind=Kind(kind), name=name, reason=reason, since=datetime.fromisoformat(since))
            for kind, name, reason, since in self._run("SELECT * FROM revoked ORDER BY rowid")
        ]

    # Enrollment tokens.

    def invite(self, entry: Invitation) -> None:
        """Keep a new token."""
        self._run(
            "INSERT INTO tokens VALUES (?, ?, ?, ?, ?, 0, NULL)",
            (entry.id, entry.key.spki, entry.job, entry.node, entry.ends.isoformat()),
        )

    def invitations(self) -> list[Invitation]:
        """Every token that nobody has used, the first to end first."""
        rows = self._run("SELECT id FROM tokens WHERE used IS NULL ORDER BY ends, id")
        return [found for (name,) in rows if (found := self.invitation(name)) is not None]

    def invitation(self, token_id: str) -> Invitation | None:
        """The token with this id."""
        rows = self._run("SELECT * FROM tokens WHERE id = ?", (token_id,))
        if not rows:
            return None
        found, key, job, node, ends, tries, _ = rows[0]
        return Invitation(
            id=found,
            key=PublicKey.from_spki(key),
            job=job,
            node=node,
            ends=datetime.fromisoformat(ends),
            tries=tries,
        )

    def tried(self, token_id: str) -> None:
        """Count a wrong proof."""
        self._run("UPDATE tokens SET tries = tries + 1 WHERE id = ?", (token_id,))

    def use(self, token_id: str, now: datetime) -> bool:
        """Use a token up; False when somebody else was first."""
        statement = "UPDATE tokens SET used = ? WHERE id = ? AND used IS NULL RETURNING 1"
        return bool(self._run(statement, (now.isoformat(), token_id)))

    def set_endpoint(self, job: str, address: str) -> None:
        """Note where a job's coordinator takes enrollments; empty when it does no longer."""
        self._run("INSERT OR REPLACE INTO endpoints VALUES (?, ?)", (job, address))

    def endpoint(self, job: str) -> str:
        """The address at which a job's coordinator takes enrollments, or empty."""
        rows = self._run("SELECT address FROM endpoints WHERE job = ?", (job,))
        return str(rows[0][0]) if rows else ""

    def _run(self, statement: str, values: tuple[str | bytes, ...] = ()) -> list[Any]:
        try:
            with self._lock:
                return self._db.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise self._bad(str(error)) from error

    def _bad(self, what: str) -> IdentityError:
        return IdentityError(
            "ST-IDEN-013",
            f"the register cannot be used: {what}",
            str(self._path),
            "check the disk and the file's owner; it must not be edited or removed",
        )
