# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""An auditor's nonces, each the question of one audit: issued, spent once, and over after a day.

Rules:

1. a nonce is a file of its own in a folder that only the auditor may change; it has its content
   before it has its name, so that no kill leaves half of one;
2. an audit takes a nonce by renaming that file, before it judges what answers it. A name can be
   renamed once: of two audits one gets it. The folder is synced first, so that no later audit can
   take it again, whenever this one was killed. One that was taken and not used is lost: ask anew;
3. every answer of one audit may hold the same nonce. None counts that says of itself to be older
   than its question;
4. what was never issued here, was taken before or is over is refused, and so is a folder that
   cannot be read or written: nothing is judged then.
"""

import errno
import re
import secrets
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from securetrain.core import canonical
from securetrain.core.errors import AuditError, UsageError, os_error
from securetrain.core.files import (
    PRIVATE_FILE,
    make_private_dir,
    read_file,
    sync_dir,
    write_atomic,
)

LIFETIME: Final = timedelta(hours=24)
"""As old as facts may be at most."""
SKEW: Final = timedelta(minutes=5)
_ISSUED: Final = ".json"
_TAKEN: Final = ".taken"
_LIMIT: Final = 4 << 10
_NONCE: Final = re.compile(r"[A-Za-z0-9_-]{16,128}")
_UNKNOWN: Final = "it answers a nonce that was not issued here, or is long over"
_REPLAYED: Final = "an earlier audit, or one beside this, has taken its nonce: it is a replay"
_MAX_FILES: Final = 100_000


class _Issued(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The content of a nonce's file."""

    schema: Literal["securetrain.nonce/v1"] = "securetrain.nonce/v1"
    nonce: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{16,128}\Z")]
    issued: Annotated[datetime, Meta(tz=True)]
    expires: Annotated[datetime, Meta(tz=True)]


@dataclass(frozen=True, slots=True)
class GivenNonce:
    """The one nonce that an auditor keeps by hand; an empty one asks for none."""

    nonce: str

    def refusal(self, answered: str, _at: datetime) -> str:
        """Explain why an answer is none to this audit; empty when it is one."""
        if not self.nonce or answered == self.nonce:
            return ""
        said = "another nonce" if answered else "no nonce"
        return f"it answers {said} than the one asked for: an older answer, or somebody else's"


@dataclass(frozen=True, slots=True)
class NonceStore:
    """A folder of nonces, seen by one audit."""

    folder: Path
    now: datetime
    _taken: dict[str, _Issued | str] = field(default_factory=dict)
    """What this audit has taken, or why it did not get it."""

    def issue(self) -> tuple[str, datetime]:
        """A new nonce, and when it is over; those that are long over are removed.

        Raises:
            UsageError: ST-USAG-018 when others may write to the folder; ST-USAG-002, ST-USAG-006.
        """
        make_private_dir(self.folder)
        self._clean()
        nonce = secrets.token_hex(16)
        expires = self.now + LIFETIME
        record = _Issued(nonce=nonce, issued=self.now, expires=expires)
        place = self.folder / f"{nonce}{_ISSUED}"
        write_atomic(place, canonical.encode(record), mode=PRIVATE_FILE, replace=False)
        return nonce, expires

    def open(self) -> "NonceStore":
        """Refuse a folder that is not there, or that others may change.

        Raises:
            UsageError: ST-USAG-002, ST-USAG-018.
        """
        if not self.folder.is_dir():
            fix = "issue a nonce first: securetrain audit nonce --nonce-store DIR"
            raise UsageError("ST-USAG-002", "no store of nonces", str(self.folder), fix)
        make_private_dir(self.folder)
        return self

    def refusal(self, answered: str, at: datetime) -> str:
        """Explain why an answer is none to this audit; empty when it is one.

        Raises:
            UsageError: ST-USAG-002 or ST-USAG-006 when the nonce cannot be taken.
            AuditError: ST-AUDT-006 when its file is damaged.
        """
        if not answered:
            return "it answers no nonce: how old it is is its own word"
        if not _NONCE.fullmatch(answered):  # it becomes a file's name
            return _UNKNOWN
        if answered not in self._taken:
            self._taken[answered] = self._take(answered)
        got = self._taken[answered]
        if isinstance(got, str):
            return got
        if at < got.issued - SKEW:
            said = f"from {at:%Y-%m-%dT%H:%M:%SZ}, and its nonce was issued"
            return f"it says to be {said} {got.issued:%Y-%m-%dT%H:%M:%SZ}"
        return ""

    def _take(self, nonce: str) -> "_Issued | str":
        """The nonce, for this audit alone, or why it is not to be had (rule 2)."""
        place, taken = (self.folder / f"{nonce}{end}" for end in (_ISSUED, _TAKEN))
        try:
            record = self._read(place)
        except FileNotFoundError:
            return _REPLAYED if taken.exists() else _UNKNOWN
        if not record.issued - SKEW <= self.now < record.expires:
            return f"its nonce was good until {record.expires:%Y-%m-%dT%H:%M:%SZ}"
        try:
            place.rename(taken)
            sync_dir(self.folder)
        except FileNotFoundError:
            return _REPLAYED
        except OSError as error:
            raise os_error(error, str(place)) from error
        return record

    def _read(self, place: Path) -> _Issued:
        try:
            data = read_file(place, _LIMIT)
            record = canonical.decode(data, _Issued, limit=_LIMIT, where=str(place))
        except UsageError as error:
            cause = error.__cause__
            if isinstance(cause, OSError) and cause.errno == errno.ENOENT:
                raise FileNotFoundError(str(place)) from error
            if isinstance(cause, OSError):
                raise
            raise _damaged(error.what, place) from error
        if record.nonce != place.stem:
            raise _damaged("it is another nonce's", place)
        return record

    def _clean(self) -> None:
        """Forget what is over for so long that its absence refuses it as well."""
        for place in self._files():
            with suppress(FileNotFoundError):  # another auditor was faster
                try:
                    old = self._read(place).expires < self.now - LIFETIME
                except AuditError:
                    continue  # what is damaged is said when somebody answers it
                if old:
                    place.unlink()

    def _files(self) -> Iterator[Path]:
        try:
            found = [p for p in self.folder.iterdir() if p.suffix in {_ISSUED, _TAKEN}]
        except OSError as error:
            raise os_error(error, str(self.folder)) from error
        if len(found) > _MAX_FILES:
            what = f"more than {_MAX_FILES} nonces"
            raise UsageError("ST-USAG-002", what, str(self.folder), "use another folder")
        return iter(found)


def _damaged(what: str, place: Path) -> AuditError:
    return AuditError("ST-AUDT-006", what, str(place))
