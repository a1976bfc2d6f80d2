# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Facts that were saved: read one after the other, and only those that somebody vouches for."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from securetrain.audit.documents.documents import (
    BODIES,
    Document,
    Facts,
    Refused,
    document_of,
    twice,
)
from securetrain.audit.facts import decode_body
from securetrain.audit.sources.inventory import (
    FILE_LIMIT,
    Inventory,
    is_envelope,
    open_envelope,
    refusal,
    unverified_payload,
)
from securetrain.audit.sources.nonces import GivenNonce, NonceStore
from securetrain.core.errors import AuditError, IdentityError, UsageError
from securetrain.core.files import read_file

MAX_DOCUMENTS: Final = 10_000


class StoredFacts(Facts):
    """Facts in files, which are read one after the other and not kept.

    A single file that cannot be read as facts is an error. In a folder it is refused, so that one
    host cannot keep all others from being judged.
    """

    def __init__(
        self,
        path: Path,
        inventory: Inventory | None,
        nonces: GivenNonce | NonceStore,
        *,
        unsigned: bool,
    ) -> None:
        """Take the files; see `read_facts`."""
        self.alone = not path.is_dir()
        self.files = [path] if self.alone else sorted(path.glob("*.json"))
        if not self.files or len(self.files) > MAX_DOCUMENTS:
            what = f"{len(self.files)} facts documents, expected 1 to {MAX_DOCUMENTS}"
            raise AuditError("ST-AUDT-002", what, str(path))
        self.inventory = inventory
        self.nonces = nonces
        self.unsigned = unsigned
        if inventory is not None:
            self.expected = frozenset(inventory.assets)
        self.notes = tuple(self._notes())

    def _notes(self) -> Iterator[str]:
        if self.unsigned:
            yield "unsigned facts were accepted: whoever could write the files could write anything"
        elif self.nonces == GivenNonce(""):
            yield "no nonce was asked for: how old the facts are is the nodes' own word"
        if self.inventory is not None:
            yield from self.inventory.notes()

    @property
    def count(self) -> int:
        """The number of files."""
        return len(self.files)

    def __iter__(self) -> Iterator[Document | Refused]:
        """Read one file after the other."""
        seen: set[str] = set()
        for file in self.files:
            signed = False
            try:
                document, signed = self._read(file)
            except (AuditError, IdentityError, UsageError) as error:
                if self.alone and not isinstance(error, IdentityError):
                    raise
                document = Refused(file.name, error.what)
            if signed and isinstance(document, Document):
                document = self._answered(file, document)
            if isinstance(document, Document):
                if document.asset in seen:
                    raise twice(document.asset)
                seen.add(document.asset)
            yield document

    def _answered(self, file: Path, document: Document) -> Document | Refused:
        """The document, if it answers this audit. Only what counts otherwise takes a nonce."""
        collected = document.body.collected
        why = self.nonces.refusal(collected.nonce, collected.at)
        return Refused(file.name, why) if why else document

    def _read(self, file: Path) -> tuple[Document | Refused, bool]:
        """A file's document, and whether somebody of the inventory signed it."""
        data = read_file(file, FILE_LIMIT)
        if not is_envelope(data):
            return self._unsigned(file, data), False
        if self.inventory is None:
            if self.unsigned:
                data = unverified_payload(data, str(file))
                return document_of(decode_body(data, BODIES, str(file)), data), False
            why = "signed, and no inventory says by whom (--inventory)"
            return Refused(file.name, why), False
        signed = open_envelope(data, self.inventory, str(file))
        body = decode_body(signed.data, BODIES, str(file))
        why = refusal(body, signed, self.inventory)
        return Refused(file.name, why) if why else document_of(body, signed.data), True

    def _unsigned(self, file: Path, data: bytes) -> Document | Refused:
        document = document_of(decode_body(data, BODIES, str(file)), data)
        if self.unsigned:
            return document
        return Refused(file.name, f"about {document.asset}, and not signed")


def read_facts(
    path: Path,
    inventory: Inventory | None = None,
    *,
    nonce: str = "",
    store: NonceStore | None = None,
    unsigned: bool = False,
) -> Facts:
    """Read a facts document, or every ``*.json`` of a folder, as they are needed.

    Args:
        path: the file or folder.
        inventory: the assets that there are, and whose key speaks for each.
        nonce: what the signed answers must hold; empty: whatever they hold.
        store: the auditor's nonces instead, of which the answers must hold one that is not spent.
        unsigned: whether facts count that nobody signed.

    Raises:
        AuditError: ST-AUDT-002 when there is none; and, when they are read, where a single file is
            malformed or two documents are about one asset. ST-AUDT-006 for a damaged nonce.
        UsageError: ST-USAG-002 when a single file cannot be read, or a nonce cannot be taken.
    """
    nonces = store.open() if store is not None else GivenNonce(nonce)
    return StoredFacts(path, inventory, nonces, unsigned=unsigned)
