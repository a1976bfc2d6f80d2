# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The state of a fleet in PostgreSQL, for the coordinators of several machines.

It is what `fleet_state` is, with the same rules and codes, and these:

1. each machine has a folder ``fleet/database`` with ``url``, ``key.pem`` (the key of the seal, one
   for the fleet, which its operator copies and the database never sees) and ``version`` (the newest
   seal that the machine has seen). Whoever runs the database can refuse service, and cannot
   change, strike off or bring back anything unnoticed;
2. all seals are kept, each with the hash of the one before it. A database that was restored from a
   backup is noticed also when others have gone on writing to it since (ST-ATTS-017);
3. the clock of a TPM is sealed in its own row: an edit is noticed. A row that is deleted, or
   replaced by an older one of the same TPM, is not: clocks change with every lease. A crash of the
   server may lose the clocks of its last second, as one of SQLite's may, and no bar;
4. `use_database` makes the tables. What finds none at any other time refuses.
"""

import hashlib
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final

from securetrain.attest.session.database import DURABLE, SCHEMA, URL_LIMIT, Database, settings_of
from securetrain.attest.session.fleet_state import DATABASE, FleetState
from securetrain.attest.session.sealed_state import Content, Head, SealedState
from securetrain.attest.session.state import COLUMNS, FileState, remembering
from securetrain.core import canonical
from securetrain.core.errors import (
    AttestationError,
    IdentityError,
    SecureTrainError,
    UsageError,
    reason,
)
from securetrain.core.files import (
    PRIVATE_DIR,
    PRIVATE_FILE,
    locked,
    make_private_dir,
    read_file,
    staged_dir,
    write_atomic,
)
from securetrain.evidence import Remembered
from securetrain.identity.keys import PrivateKey

_VERSION_LIMIT: Final = 128
_MOVED: Final = b"moved to a database\n"
_MAKING: Final = 0x7365637572657472
_CLOCK_LABEL: Final = b"securetrain-fleet-clock-v1\0"
_QUOTES: Final = f"""
CREATE TABLE {SCHEMA}.quotes (
    ek_name TEXT COLLATE "C", ak_name TEXT NOT NULL, node TEXT NOT NULL,
    clock BIGINT NOT NULL, reset_count BIGINT NOT NULL, restart_count BIGINT NOT NULL,
    firmware TEXT NOT NULL, seen TEXT NOT NULL, boot TEXT COLLATE "C", uptime BIGINT NOT NULL,
    entries BIGINT NOT NULL, pcr10 TEXT NOT NULL, seal BYTEA NOT NULL, PRIMARY KEY (ek_name, boot)
)
"""
# Collation "C": an order of text that no upgrade of the server's libraries changes.
_TABLES: Final = f"""
CREATE SCHEMA {SCHEMA};
{_QUOTES};
CREATE TABLE {SCHEMA}.revoked (
    subject TEXT COLLATE "C" PRIMARY KEY, reason TEXT NOT NULL, since TEXT NOT NULL
);
CREATE TABLE {SCHEMA}.floor (
    document TEXT COLLATE "C" PRIMARY KEY, version BIGINT NOT NULL, digest TEXT NOT NULL
);
CREATE TABLE {SCHEMA}.head (
    version BIGINT PRIMARY KEY, seal BYTEA NOT NULL, before BYTEA NOT NULL
);
"""
_SEALED: Final = (*COLUMNS, "seal")
_BEFORE: Final = COLUMNS[:8]
_UPGRADE: Final = f"""{_QUOTES};
INSERT INTO quotes ({", ".join(_SEALED)}) SELECT {", ".join(_BEFORE)}, '', 0, 0, '', seal FROM tpm;
DROP TABLE tpm"""  # noqa: S608 - of constants
"""From the earlier version, which kept one quote of each TPM."""


class DatabaseState(SealedState):
    """A state of a fleet that several machines share."""

    _columns = _SEALED
    _remember = remembering(_SEALED)

    def __init__(self, folder: Path, trust_domain: str = "") -> None:
        """Open what the folder's ``database/url`` names.

        Args:
            folder: the machine's, private to this user.
            trust_domain: of the nodes, as in `FleetState`.

        Raises:
            UsageError: ST-USAG-001 for the URL, ST-USAG-004 without psycopg.
            AttestationError: ST-ATTS-015 when it cannot be reached, ST-ATTS-017 when it went back,
                is incomplete or was changed by something else.
        """
        self.folder = folder
        self._domain = trust_domain
        self._prepare(time.monotonic)
        self._open(folder / DATABASE)
        try:
            _say_moved(folder)
        except BaseException:
            self.close()
            raise

    def _open(self, own: Path) -> None:
        self._own = own
        try:
            make_private_dir(own)
            url = read_file(own / "url", URL_LIMIT).decode().strip()
            self._newest, self._seal_seen = self._told()
            self._key = PrivateKey.load(own / "key.pem")
        except IdentityError as error:
            raise AttestationError("ST-ATTS-017", f"key.pem: {reason(error)}", str(own)) from error
        except AttestationError:
            raise
        except (SecureTrainError, UnicodeDecodeError) as error:
            raise AttestationError("ST-ATTS-015", reason(error), str(own)) from error
        self._database = Database(url)
        try:
            _upgrade(self._database)
            self._read()
        except BaseException:
            self.close()
            raise

    @property
    def place(self) -> str:
        """See `SealedState`."""
        return self._database.place

    def close(self) -> None:
        """Let go of the connection."""
        self._heard_until = 0.0
        self._database.close()

    def _row(self, row: tuple[str | int, ...]) -> tuple[str | int | bytes, ...]:
        return (*row, self._key.sign(_clock_bytes(row)))

    def _quote(self, row: Any) -> Remembered:
        """See base class; its own seal is checked."""
        *columns, seal = row
        try:
            self._key.public.verify(seal, _clock_bytes(tuple(columns)))
            return super()._quote(columns)
        except (IdentityError, ValueError) as error:
            raise self._wrong(
                f"the clock of {str(row[0])[:80]} was changed by something else than securetrain"
            ) from error

    def _told(self) -> tuple[int, str]:
        """The newest version that this machine has seen, and the hash of its seal."""
        path = self._own / "version"
        if not path.exists():
            return 0, ""
        number, _, digest = (
            read_file(path, _VERSION_LIMIT).decode("ascii", "replace").partition(" ")
        )
        if not number.strip().isdigit() or not digest.strip():
            raise AttestationError(
                "ST-ATTS-017", f"{path.name} holds no version of a database", str(self._own)
            )
        return int(number), digest.strip()

    @contextmanager
    def _snapshot(self) -> Iterator[None]:
        with (
            self._lock,
            self._database.transaction("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"),
        ):
            yield

    @contextmanager
    def _changing(self) -> Iterator[None]:
        with (
            self._lock,
            self._database.transaction(
                "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE",
                DURABLE,
                "LOCK TABLE head IN SHARE ROW EXCLUSIVE MODE",
            ),
        ):
            yield

    def _exclusive(self) -> AbstractContextManager[None]:
        return nullcontext()  # the table's lock is held by one coordinator of all

    def _run(self, statement: str, values: tuple[str | int | bytes, ...] = ()) -> list[Any]:
        return self._database.run(statement, values)

    def _head(self) -> Head:
        rows = self._run("SELECT version, seal, before FROM head ORDER BY version DESC LIMIT 1")
        if not rows:
            raise self._wrong("its seals are gone")
        return Head(int(rows[0][0]), bytes(rows[0][1]), bytes(rows[0][2]))

    def _put(self, head: Head) -> None:
        self._run(
            "INSERT INTO head (version, seal, before) VALUES (?, ?, ?)",
            (head.version, head.seal, head.before),
        )

    def _before(self, last: Head) -> bytes:
        return hashlib.sha256(last.seal).digest()

    def _follow(self, head: Head) -> None:
        """See base class; what came since is one chain of seals."""
        digest = hashlib.sha256(head.seal).hexdigest()
        if head.version == self._newest and digest != self._seal_seen and self._newest:
            raise self._wrong(f"this machine has seen another version {head.version}")
        if head.version > self._newest > 0:
            since = self._run(
                "SELECT version, seal, before FROM head WHERE version >= ? AND version <= ?"
                " ORDER BY version",
                (self._newest, head.version),
            )
            expected = self._seal_seen
            numbers = [row[0] for row in since]
            if numbers != list(range(self._newest, head.version + 1)):
                raise self._wrong("some of its seals are gone")
            for number, seal, before in since:
                if number > self._newest and before.hex() != expected:
                    raise self._wrong(
                        f"version {number} does not follow what this machine has seen: it was"
                        " restored from a backup"
                    )
                if number == self._newest and hashlib.sha256(seal).hexdigest() != expected:
                    raise self._wrong(f"this machine has seen another version {number}")
                expected = hashlib.sha256(seal).hexdigest()
        is_new = head.version > self._newest
        super()._follow(head)
        if is_new:
            self._note(head)

    def _note(self, head: Head) -> None:
        """Keep what was seen, for every process of this machine; it only rises."""
        try:
            with locked(self._own / "lock"):
                self._newest = head.version
                self._seal_seen = hashlib.sha256(head.seal).hexdigest()
                if self._told()[0] < head.version:
                    text = f"{head.version} {self._seal_seen}\n"
                    write_atomic(self._own / "version", text.encode(), mode=PRIVATE_FILE)
        except AttestationError:
            raise
        except SecureTrainError as error:
            raise AttestationError("ST-ATTS-015", reason(error), str(self._own)) from error


def open_fleet_state(folder: Path, trust_domain: str = "") -> SealedState:
    """Open the state of a machine's fleet: in its folder, or in the database that the folder names.

    Raises:
        AttestationError: ST-ATTS-015 and 017.
        UsageError: ST-USAG-001 and 004 about the database.
    """
    if (folder / DATABASE).exists():
        return DatabaseState(folder, trust_domain)
    return FleetState(folder, trust_domain)


def use_database(folder: Path, url: str, key: Path | None = None) -> SealedState:
    """Keep the fleet's state in a database from now on, with what the folder holds.

    The first machine makes the tables, with its own key. Each other one is given that key's file.
    A failure or a kill at any moment leaves the folder as it was, or done; it may be repeated.
    Coordinators of this machine that run meanwhile refuse from then on, until they are started
    again.

    Args:
        folder: the machine's, as of `FleetState`.
        url: see `database`.
        key: the fleet's key, from a machine that uses the database.

    Raises:
        AttestationError: ST-ATTS-015 and 017.
        UsageError: ST-USAG-001, 002, 004, and 005 when the machine uses a database already.
    """
    settings_of(url)
    make_private_dir(folder)
    if (folder / DATABASE).exists():
        raise UsageError(
            "ST-USAG-005",
            "this machine uses a database already",
            str(folder / DATABASE),
            f"a database that has moved: write its address into {folder / DATABASE / 'url'}",
        )
    with closing(FleetState(folder)) as old:
        fleet_key = PrivateKey.load(key or folder / "key.pem")
        with staged_dir(folder / DATABASE, mode=PRIVATE_DIR) as staged:
            write_atomic(staged / "url", f"{url}\n".encode(), mode=PRIVATE_FILE)
            fleet_key.save(staged / "key.pem")
            with closing(Database(url)) as database:
                _make_tables(database, fleet_key, is_first=key is None)
            with closing(_staged(staged, brought=key is not None)) as first:
                first.adopt(old)
    made = DatabaseState(folder)
    try:
        with closing(FileState(folder / "state.sqlite")) as late:
            made.adopt(late)  # what a coordinator wrote in between; it refuses from now on
    except BaseException:
        made.close()
        raise
    return made


class _Staged(DatabaseState):
    """A state whose own folder has no name yet."""

    def __init__(self, own: Path) -> None:
        self.folder, self._domain = own, ""
        self._prepare(time.monotonic)
        self._open(own)


def _staged(own: Path, *, brought: bool) -> _Staged:
    try:
        return _Staged(own)
    except AttestationError as error:
        if error.code != "ST-ATTS-017" or brought:
            raise
        fix = "it is in use: copy fleet/database/key.pem of a machine that uses it, and name it"
        raise AttestationError(error.code, error.what, error.where, f"{fix} with --key") from error


def _make_tables(database: Database, key: PrivateKey, *, is_first: bool) -> None:
    """Make the tables and seal that they are empty, if they are not there."""
    with database.transaction("BEGIN", DURABLE, f"SELECT pg_advisory_xact_lock({_MAKING})"):
        if database.run("SELECT 1 WHERE to_regnamespace(?) IS NOT NULL", (SCHEMA,)):
            return
        if not is_first:
            raise AttestationError(
                "ST-ATTS-017",
                "it holds no fleet's state, and you brought a fleet's key",
                database.place,
                "name the database that the other machines use; the first one brings no --key",
            )
        for statement in _TABLES.split(";")[:-1]:
            database.run(statement)
        seal = key.sign(Content({}, {}).to_sign(1, b""))
        database.run("INSERT INTO head (version, seal, before) VALUES (1, ?, ?)", (seal, b""))


def _upgrade(database: Database) -> None:
    told = "SELECT 1 WHERE to_regclass(?) IS NOT NULL"
    if not database.run(told, (f"{SCHEMA}.tpm",)):
        return
    with database.transaction("BEGIN", DURABLE, f"SELECT pg_advisory_xact_lock({_MAKING})"):
        if database.run(told, (f"{SCHEMA}.tpm",)):  # another machine may have done it
            for statement in _UPGRADE.split(";"):
                database.run(statement)


def _say_moved(folder: Path) -> None:
    """Leave nothing that would be opened in the database's place, were its folder lost."""
    path = folder / "version"
    try:
        if not path.exists() or read_file(path, _VERSION_LIMIT) != _MOVED:
            write_atomic(path, _MOVED, mode=PRIVATE_FILE)
    except SecureTrainError as error:
        raise AttestationError("ST-ATTS-015", reason(error), str(path)) from error


def _clock_bytes(row: tuple[Any, ...]) -> bytes:
    """The bytes under the seal of a quote; as text, which has no largest number."""
    told = row[: len(_BEFORE)] if row[len(_BEFORE) :] == ("", 0, 0, "") else row
    return _CLOCK_LABEL + canonical.encode(list(map(str, told)))
