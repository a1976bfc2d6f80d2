# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The state of a fleet, which outlives every job: one folder for all coordinators of a machine.

Several machines keep it in a database instead: `fleet_database`.

Rules:

1. a node that was barred in one job is barred in the next, and its TPM's clock goes on from there;
   an edition of the reference values or of the cache that is older than one that was accepted, or
   another one of the same version, is refused on every path that reads it (`floors`);
2. a name belongs to a trust domain, hardware to nobody: ``node:DOMAIN/NAME``, ``ek:HEX``;
3. revocations and accepted editions are sealed: each change has the next version, and is signed
   with the folder's own key in the transaction that makes it. Whoever edits the file by hand, or
   puts an older one back, is noticed (ST-ATTS-017), and nothing is accepted until a person has
   looked. What survives a kill at any instant is all of a change or nothing of it;
4. the clocks of TPMs change with every lease and are not sealed.

Whoever may write to the whole folder can put all of it back; the version is in the ledger of every
run (``fleet-state-opened``), where that shows. ::

    <state>/fleet/
      state.sqlite      revocations, accepted editions, clocks; the seal
      version           the last version, outside of the database: it may be behind, never ahead
      key.pem           the key of the seal
      lock
"""

import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final

from securetrain.attest.session.sealed_state import Head, SealedState
from securetrain.attest.session.state import FileState
from securetrain.core.errors import AttestationError, IdentityError, SecureTrainError, reason
from securetrain.core.files import (
    PRIVATE_FILE,
    locked,
    make_private_dir,
    read_file,
    write_atomic,
)
from securetrain.identity.keys import PrivateKey

_HEAD: Final = """
CREATE TABLE IF NOT EXISTS head (
    only INTEGER PRIMARY KEY CHECK (only = 0), version INTEGER NOT NULL, seal BLOB NOT NULL
) STRICT;
"""
_VERSION_LIMIT: Final = 32
DATABASE: Final = "database"
"""The folder in the machine's that says in which database the state is instead."""


class FleetState(SealedState, FileState):
    """A `FileState` that is sealed, and has a version that only rises."""

    def __init__(self, folder: Path, trust_domain: str = "") -> None:
        """Open the folder, or make it.

        Args:
            folder: private to this user.
            trust_domain: of the nodes whose names are asked for and revoked; empty for who names
                subjects in full.

        Raises:
            AttestationError: ST-ATTS-015 when it cannot be used, ST-ATTS-017 when it went back, is
                incomplete or was changed by hand.
        """
        self.folder = folder
        self._domain = trust_domain
        try:
            make_private_dir(folder)
            with locked(folder / "lock"):
                self._open()
        except AttestationError:
            raise
        except SecureTrainError as error:
            raise AttestationError(
                "ST-ATTS-015",
                reason(error),
                str(folder),
                "free the disk, repair the folder, or name another one in SECURETRAIN_STATE;"
                " nodes are refused until it can be written",
            ) from error

    def close(self) -> None:
        """Let go of the file."""
        FileState.close(self)

    def _open(self) -> None:
        key, database = self.folder / "key.pem", self.folder / "state.sqlite"
        told = self._told()
        is_new = not key.exists() and not database.exists() and told == 0
        if is_new:
            PrivateKey.create(key)
        if not key.exists() or (told and not database.exists()):
            raise self._wrong("a part of it is missing")
        try:
            self._key = PrivateKey.load(key)
        except IdentityError as error:
            raise self._wrong(reason(error)) from error
        FileState.__init__(self, database)
        self._newest = told
        try:
            self._db.executescript(_HEAD)
            with self._snapshot():
                self._checked()
        except sqlite3.Error as error:
            self.close()
            raise self._bad(str(error)) from error
        except BaseException:
            self.close()
            raise

    def _told(self) -> int:
        """The version that the file beside the database tells."""
        path = self.folder / "version"
        if not path.exists():
            return 0
        text = read_file(path, _VERSION_LIMIT).strip()
        if not text.isdigit():
            raise self._wrong(f"{path.name} is no number")
        return int(text)

    @contextmanager
    def _snapshot(self) -> Iterator[None]:
        """See `SealedState`."""
        with self._lock:
            self._run("BEGIN")
            try:
                yield
            finally:
                self._undo()

    def _exclusive(self) -> AbstractContextManager[None]:
        """See `SealedState`."""
        return locked(self.folder / "lock")

    def _head(self) -> Head | None:
        if (self.folder / DATABASE).exists():
            raise AttestationError(
                "ST-ATTS-017", "it was moved to a database", str(self.folder), "start again"
            )
        rows = self._run("SELECT version, seal FROM head")
        return Head(int(rows[0][0]), rows[0][1]) if rows else None

    def _put(self, head: Head) -> None:
        self._run("INSERT OR REPLACE INTO head VALUES (0, ?, ?)", (head.version, head.seal))

    def _note(self, head: Head) -> None:
        write_atomic(self.folder / "version", b"%d\n" % head.version, mode=PRIVATE_FILE)
