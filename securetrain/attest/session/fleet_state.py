# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The state of a fleet, which outlives every job: one folder for all coordinators of a machine.

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

import math
import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from securetrain.attest.session.state import FileState, Revocation
from securetrain.core import canonical
from securetrain.core.errors import (
    AttestationError,
    IdentityError,
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
from securetrain.identity.keys import PrivateKey

_LABEL: Final = b"securetrain-fleet-state-v1\0"
_HEAD: Final = """
CREATE TABLE IF NOT EXISTS head (
    only INTEGER PRIMARY KEY CHECK (only = 0), version INTEGER NOT NULL, seal BLOB NOT NULL
) STRICT;
"""
_VERSION_LIMIT: Final = 32
_NODE: Final = "node:"
_SUBJECT: Final = re.compile(r"node:[^/\s]+/[^/\s]+|(ek|chip):[0-9a-f]{16,}|device:\S+")


def check_subject(subject: str) -> None:
    """Refuse a subject that would never be asked for, as a person may misspell one.

    Raises:
        UsageError: ST-USAG-001.
    """
    if not _SUBJECT.fullmatch(subject):
        raise UsageError(
            "ST-USAG-001",
            f"{subject!r} names nobody",
            "SUBJECT",
            "write node:DOMAIN/NAME, ek:HEX, chip:HEX or device:SERIAL",
        )


class FleetState(FileState):
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

    @property
    def version(self) -> int:
        """Of the sealed part; it rises with every change, and is 0 before the first."""
        rows = self._run("SELECT version FROM head")
        return int(rows[0][0]) if rows else 0

    def adopt(self, old: FileState) -> None:
        """Take over what a run of an earlier version of this program kept in its directory."""
        known = {entry.subject for entry in self.revocations()}
        for entry in old.revocations():
            if self._full(entry.subject) not in known:
                self.revoke(entry)
        for last in old.clocks():
            self.remember(last)

    def revoke(self, entry: Revocation) -> None:
        """See `StateStore`."""
        full = self._full(entry.subject)
        super().revoke(Revocation(subject=full, reason=entry.reason, since=entry.since))

    def restore(self, subject: str) -> bool:
        """See `StateStore`."""
        return super().restore(self._full(subject))

    def revocation(self, subject: str) -> Revocation | None:
        """See `StateStore`."""
        return super().revocation(self._full(subject))

    def revocations(self) -> list[Revocation]:
        """See `StateStore`; the seal is checked."""
        with self._lock:
            self._run("BEGIN")
            try:
                self._check_seal()
                return super().revocations()
            finally:
                self._undo()

    def _full(self, subject: str) -> str:
        named = subject.startswith(_NODE) and "/" not in subject and self._domain
        return f"{_NODE}{self._domain}/{subject.removeprefix(_NODE)}" if named else subject

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
        try:
            self._db.executescript(_HEAD)
            version = self._check_seal()
            if version < told:
                raise self._wrong(f"it has version {version}, and had version {told} before")
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
    def _changing(self) -> Iterator[None]:
        """One change of all processes at a time: checked before, sealed after."""
        with self._lock:
            try:
                with locked(self.folder / "lock"):
                    with super()._changing():
                        version = self._check_seal() + 1
                        yield
                        self._run(
                            "INSERT OR REPLACE INTO head VALUES (0, ?, ?)",
                            (version, self._key.sign(self._content(version))),
                        )
                    write_atomic(self.folder / "version", b"%d\n" % version, mode=PRIVATE_FILE)
            except AttestationError:
                raise
            except SecureTrainError as error:
                raise self._bad(reason(error)) from error
            finally:
                self._heard_until = -math.inf

    def _check_seal(self) -> int:
        """The version, if what is there is what was sealed."""
        rows = self._run("SELECT version, seal FROM head")
        if not rows:
            if self._run("SELECT 1 FROM revoked UNION SELECT 1 FROM floor"):
                raise self._wrong("it holds something and has no seal")
            return 0
        version, seal = rows[0]
        try:
            self._key.public.verify(seal, self._content(version))
        except IdentityError as error:
            raise self._wrong("it was changed by something else than securetrain") from error
        return int(version)

    def _content(self, version: int) -> bytes:
        return _LABEL + canonical.encode(
            {
                "version": version,
                "revoked": [list(row) for row in self._run("SELECT * FROM revoked ORDER BY 1")],
                "editions": [list(row) for row in self._run("SELECT * FROM floor ORDER BY 1")],
            }
        )

    def _wrong(self, what: str) -> AttestationError:
        return AttestationError("ST-ATTS-017", what, str(self.folder))
