# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The folder in which the people who hold the root keys make and publish a trust root.

``1.root.json``, ``2.root.json``, ... are every version there was, and ``root.json`` is the newest.
What is not signed often enough yet is ``draft.json``: each holder of a root key signs it, on a
machine of their own, and the signature that completes it publishes it. Rules:

1. a version is published only when it is a good root and follows from the one before
   (`identity.rotation`): the folder never holds a chain that a client would refuse;
2. a published version is never overwritten;
3. there is one draft at a time, and it is signed only while it still is the next version.

Nothing here is secret. Keys are elsewhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from securetrain.core.errors import IdentityError, UsageError, os_error
from securetrain.core.files import read_file, write_atomic
from securetrain.identity import dsse
from securetrain.identity.keys import Signer
from securetrain.identity.rotation import (
    MAX_STEPS,
    Change,
    amended,
    missing_signatures,
    next_root,
)
from securetrain.identity.trust import (
    LIMIT,
    PAYLOAD_TYPE,
    TrustDocument,
    TrustRoot,
    decode_unverified,
    sign_document,
)
from securetrain.identity.truststore import NEWEST, published_name

DRAFT: Final = "draft.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The fate of a draft."""

    document: TrustDocument
    missing: dict[str, int]
    """How many signatures of whom are missing; empty when it was published."""
    path: Path
    """The draft, or the published version."""


class TrustFolder:
    """The folder."""

    def __init__(self, folder: Path) -> None:
        """Name the folder."""
        self.folder = folder

    @property
    def newest_path(self) -> Path:
        """The file to hand out."""
        return self.folder / NEWEST

    def newest(self) -> TrustRoot | None:
        """The newest published version, by the whole chain; None before the first.

        Raises:
            IdentityError: Those of `rotation.next_root`.
        """
        trusted: TrustRoot | None = None
        for version in range(1, MAX_STEPS + 1):
            path = self.folder / published_name(version)
            if not path.exists():
                break
            data = read_file(path, LIMIT)
            where = str(path)
            trusted = (
                TrustRoot.parse_of_any_time(data, where)
                if trusted is None
                else next_root(trusted, data, where)
            )
        return trusted

    def begin(self, document: TrustDocument, signers: Sequence[Signer], now: datetime) -> Outcome:
        """Draft the first version.

        Raises:
            UsageError: ST-USAG-005 when there is a version or a draft, ST-USAG-002.
            IdentityError: ST-IDEN-008 when the document is not a good one.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise os_error(error, str(self.folder)) from error
        if self.newest() is not None:
            raise UsageError(
                "ST-USAG-005",
                "there is a trust root in it already",
                str(self.folder),
                "change it with 'securetrain trust rotate', or choose another folder",
            )
        return self._draft(document, signers, now)

    def propose(self, change: Change, signers: Sequence[Signer], now: datetime) -> Outcome:
        """Draft the next version.

        Raises:
            UsageError: ST-USAG-005 when there is another draft, ST-USAG-001 when nothing is there.
            IdentityError: ST-IDEN-016, ST-IDEN-008.
        """
        return self._draft(amended(self._trusted().document, change), signers, now)

    def sign(self, signers: Sequence[Signer], now: datetime) -> Outcome:
        """Sign the draft; the last signature that is needed publishes it.

        Raises:
            UsageError: ST-USAG-002 when there is no draft.
            IdentityError: ST-IDEN-004, ST-IDEN-008, ST-IDEN-016, ST-IDEN-017.
        """
        data = read_file(self.folder / DRAFT, LIMIT)
        return self._settle(dsse.add_signatures(data, PAYLOAD_TYPE, signers), now)

    def draft(self) -> TrustDocument | None:
        """The contents of the draft, not yet vouched for; None when there is none."""
        path = self.folder / DRAFT
        return decode_unverified(read_file(path, LIMIT), str(path)) if path.exists() else None

    def discard_draft(self) -> None:
        """Remove the draft."""
        (self.folder / DRAFT).unlink(missing_ok=True)

    def _trusted(self) -> TrustRoot:
        trusted = self.newest()
        if trusted is None:
            raise UsageError(
                "ST-USAG-001",
                "there is no trust root in it",
                str(self.folder),
                "make the first version: securetrain trust init",
            )
        return trusted

    def _draft(self, document: TrustDocument, signers: Sequence[Signer], now: datetime) -> Outcome:
        if (self.folder / DRAFT).exists():
            raise UsageError(
                "ST-USAG-005",
                "there is a draft that is not signed by all yet",
                str(self.folder / DRAFT),
                "sign it (securetrain trust sign), or remove the file",
            )
        return self._settle(sign_document(document, signers), now)

    def _settle(self, data: bytes, now: datetime) -> Outcome:
        """Publish a draft if nothing is missing, else keep it."""
        document = decode_unverified(data)
        trusted = self.newest()
        missing = missing_signatures(data, document, trusted)
        missing = {name: count for name, count in missing.items() if count}
        draft = self.folder / DRAFT
        if missing:
            write_atomic(draft, data)
            return Outcome(document=document, missing=missing, path=draft)
        if trusted is None:
            if document.version != 1:
                raise IdentityError(
                    "ST-IDEN-016",
                    f"version {document.version} as the first",
                    fix="begin with version 1",
                )
            TrustRoot.parse(data, now)
        else:
            next_root(trusted, data).check_time(now)
        path = self.folder / published_name(document.version)
        write_atomic(path, data, replace=False)
        write_atomic(self.newest_path, data)
        self.discard_draft()
        return Outcome(document=document, missing={}, path=path)
