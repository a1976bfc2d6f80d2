# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The sealed part of a fleet's state: bars and accepted editions, whichever store keeps them.

Rules:

1. what is sealed has a version that only rises. Each change is signed with the fleet's own key in
   the transaction that makes it, over what was verified before it and the change alone: a store
   that answers with something else, then or later, is noticed (ST-ATTS-017);
2. what is used is what was verified: nothing is asked a second time;
3. a process that has seen a version accepts no smaller one.
"""

import math
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from securetrain.attest.session.state import FileState, Revocation, Seen, SqlState
from securetrain.core import canonical
from securetrain.core.errors import (
    AttestationError,
    IdentityError,
    SecureTrainError,
    UsageError,
    reason,
)
from securetrain.identity.keys import PrivateKey

_LABEL: Final = b"securetrain-fleet-state-v1\0"
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


class Head(NamedTuple):
    """The seal of a version."""

    version: int
    seal: bytes
    before: bytes = b""
    """SHA-256 of the seal before it, in stores that keep all of them."""


@dataclass(frozen=True, slots=True)
class Content:
    """The sealed part."""

    revoked: dict[str, Revocation]
    """By subject."""
    editions: dict[str, Seen]
    """By document."""

    def to_sign(self, version: int, before: bytes) -> bytes:
        """The bytes under the seal."""
        revoked = sorted((one.subject, one.reason, one.since) for one in self.revoked.values())
        editions = sorted((one.document, one.version, one.digest) for one in self.editions.values())
        content = {
            "version": version,
            "revoked": list(map(list, revoked)),
            "editions": list(map(list, editions)),
        }
        return _LABEL + canonical.encode(content | ({"before": before.hex()} if before else {}))


class SealedState(SqlState):
    """A state of a fleet. A store says how it is read, changed and kept."""

    folder: Path
    """The machine's own: the key of the seal, and the last version that was seen."""
    _domain: str
    _key: PrivateKey
    _newest: int = 0

    @property
    def place(self) -> str:
        """The place of the state, for people and ledgers; never a secret."""
        return str(self.folder)

    @property
    def version(self) -> int:
        """Of the sealed part; it rises with every change, and is 0 before the first."""
        with self._lock, self._snapshot():
            return self._checked()[0].version

    def close(self) -> None:
        """Let go of the store."""
        raise NotImplementedError

    def adopt(self, old: FileState) -> None:
        """Take over what a store of before holds: bars, clocks and accepted editions.

        Raises:
            AttestationError: ST-ATTS-015 and 017.
        """
        known = {entry.subject for entry in self.revocations()}
        for entry in old.revocations():
            if self._full(entry.subject) not in known:
                self.revoke(entry)
        for seen in old.editions():
            self.accept(seen)
        for last in old.clocks():
            self.remember(last)

    def revoke(self, entry: Revocation) -> None:
        """See `StateStore`; the first reason stays."""
        full = self._full(entry.subject)
        added = Revocation(subject=full, reason=entry.reason, since=entry.since)

        def change(old: Content) -> Content | None:
            if full in old.revoked:
                return None
            self._run("INSERT INTO revoked VALUES (?, ?, ?)", (full, entry.reason, entry.since))
            return Content({**old.revoked, full: added}, old.editions)

        self._edit(change)

    def restore(self, subject: str) -> bool:
        """See `StateStore`."""
        full = self._full(subject)
        found = False

        def change(old: Content) -> Content | None:
            nonlocal found
            clock = self._run("DELETE FROM quotes WHERE ek_name = ? RETURNING 1", (full,))
            found = full in old.revoked or bool(clock)
            self._run("DELETE FROM revoked WHERE subject = ?", (full,))
            left = {name: one for name, one in old.revoked.items() if name != full}
            return Content(left, old.editions) if found else None

        self._edit(change)
        return found

    def accept(self, given: Seen) -> Seen:
        """See `StateStore`."""
        before = self._read().editions.get(given.document)
        if before is not None and before.stands(given) == before:
            return before
        stands = given

        def change(old: Content) -> Content | None:
            # Another process may have accepted one in between.
            nonlocal stands
            stands = old.editions.get(given.document, given).stands(given)
            if old.editions.get(given.document) == stands:
                return None
            self._run(
                "INSERT INTO floor VALUES (?, ?, ?) ON CONFLICT (document)"
                " DO UPDATE SET version = excluded.version, digest = excluded.digest",
                (stands.document, stands.version, stands.digest),
            )
            return Content(old.revoked, {**old.editions, stands.document: stands})

        self._edit(change)
        return stands

    def revocation(self, subject: str) -> Revocation | None:
        """See `StateStore`."""
        return super().revocation(self._full(subject))

    def revocations(self) -> list[Revocation]:
        """See `StateStore`; the seal is checked."""
        return sorted(self._read().revoked.values(), key=lambda entry: entry.subject)

    def editions(self) -> list[Seen]:
        """The accepted editions; the seal is checked."""
        return sorted(self._read().editions.values(), key=lambda entry: entry.document)

    # What a store gives.

    def _snapshot(self) -> AbstractContextManager[None]:
        """Everything that is read inside is of one moment."""
        raise NotImplementedError

    def _exclusive(self) -> AbstractContextManager[None]:
        """One change at a time, its note beside the store included."""
        raise NotImplementedError

    def _head(self) -> Head | None:
        """The newest seal."""
        raise NotImplementedError

    def _put(self, head: Head) -> None:
        """Write a new seal."""
        raise NotImplementedError

    def _before(self, last: Head) -> bytes:  # noqa: ARG002 - for stores that keep all seals
        """The `Head.before` of the seal after `last`."""
        return b""

    def _note(self, head: Head) -> None:
        """Keep the version outside of the store."""
        raise NotImplementedError

    def _follow(self, head: Head) -> None:
        """Refuse a seal that is not the newest one that was seen, or a later one."""
        if head.version < self._newest:
            raise self._wrong(
                f"it has version {head.version}, and had version {self._newest} before"
            )
        self._newest = head.version

    def _bad(self, what: str) -> AttestationError:
        return AttestationError("ST-ATTS-015", what, self.place)

    # The seal.

    def _read(self) -> Content:
        with self._lock, self._snapshot():
            return self._checked()[1]

    def _checked(self) -> tuple[Head, Content]:
        """The content of this moment, if it is what was sealed."""
        head = self._head() or Head(0, b"")
        revoked = self._run("SELECT subject, reason, since FROM revoked")
        editions = self._run("SELECT document, version, digest FROM floor")
        content = Content(
            {row[0]: Revocation(subject=row[0], reason=row[1], since=row[2]) for row in revoked},
            {row[0]: Seen(document=row[0], version=row[1], digest=row[2]) for row in editions},
        )
        if head.seal:
            try:
                self._key.public.verify(head.seal, content.to_sign(head.version, head.before))
            except (IdentityError, UsageError) as error:
                raise self._wrong("it was changed by something else than securetrain") from error
        elif revoked or editions or head.version:
            raise self._wrong("it holds something and has no seal")
        self._follow(head)
        return head, content

    def _edit(self, change: Callable[[Content], Content | None]) -> None:
        """Make a change: checked before, sealed after. None: there is nothing to change."""
        try:
            with self._lock, self._exclusive():
                with self._changing():
                    head, old = self._checked()
                    new = change(old)
                    if new is None:
                        return
                    version, before = head.version + 1, self._before(head)
                    head = Head(version, self._key.sign(new.to_sign(version, before)), before)
                    self._put(head)
                self._newest = head.version
                self._note(head)
        except AttestationError:
            raise
        except SecureTrainError as error:
            raise self._bad(reason(error)) from error
        finally:
            self._heard_until = -math.inf

    def _full(self, subject: str) -> str:
        named = subject.startswith(_NODE) and "/" not in subject and self._domain
        return f"{_NODE}{self._domain}/{subject.removeprefix(_NODE)}" if named else subject

    def _wrong(self, what: str) -> AttestationError:
        return AttestationError("ST-ATTS-017", what, self.place)
