# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Facts as files: written all or none, and read one after the other, as far as somebody vouches.

Rules:

1. one document is a file; several are a folder that must be new, with a file for each, named in the
   order in which they were collected;
2. a folder appears whole: a part of it would be a set of fewer assets, and judge well;
3. what could not be read again is not written.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from cryptography import x509

from securetrain.audit.documents import (
    BODIES,
    Document,
    Facts,
    Refused,
    document_of,
)
from securetrain.audit.facts import FACTS_LIMIT, decode_body
from securetrain.audit.sources.inventory import (
    FILE_LIMIT,
    Inventory,
    is_envelope,
    open_envelope,
    refusal,
    sign_facts,
    unverified_payload,
)
from securetrain.audit.sources.nonces import GivenNonce, NonceStore
from securetrain.core.errors import AuditError, IdentityError, UsageError
from securetrain.core.files import (
    PRIVATE_DIR,
    PRIVATE_FILE,
    read_file,
    staged_dir,
    write_atomic,
)
from securetrain.identity.keys import Signer

MAX_DOCUMENTS: Final = 10_000
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9._-]+")
_NAME_LENGTH: Final = 80


class StoredFacts(Facts):
    """Facts in files, which are read one after the other and not kept.

    A single file that cannot be read as facts is an error. In a folder it is refused, so that one
    host cannot keep all others from being judged.
    """

    def __init__(
        self,
        path: Path,
        inventory: Inventory | None = None,
        *,
        nonce: str = "",
        store: NonceStore | None = None,
        unsigned: bool = False,
    ) -> None:
        """Take a facts document, or every ``*.json`` of a folder; nothing is read yet.

        Args:
            path: The file or folder.
            inventory: The assets that there are, and whose key speaks for each.
            nonce: What the signed answers must hold; empty: whatever they hold.
            store: The auditor's nonces instead, of which answers must hold one that is not spent.
            unsigned: Whether facts count that nobody signed.

        Raises:
            AuditError: ST-AUDT-002 when there is none; and, when they are read, where a single file
                is malformed or two documents are about one asset. ST-AUDT-006 for a damaged nonce.
            UsageError: ST-USAG-002 when a single file cannot be read, or a nonce cannot be taken.
        """
        self.nonces = store.open() if store is not None else GivenNonce(nonce)
        self.alone = not path.is_dir()
        self.files = [path] if self.alone else sorted(path.glob("*.json"))
        if not self.files or len(self.files) > MAX_DOCUMENTS:
            what = f"{len(self.files)} facts documents, expected 1 to {MAX_DOCUMENTS}"
            raise AuditError("ST-AUDT-002", what, str(path))
        self.inventory, self.unsigned = inventory, unsigned
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

    def _read(self) -> Iterator[Document | Refused]:
        for file in self.files:
            signed = False
            try:
                document, signed = self._one(file)
            except (AuditError, IdentityError, UsageError) as error:
                if self.alone and not isinstance(error, IdentityError):
                    raise
                document = Refused(file.name, error.what)
            if signed and isinstance(document, Document):  # only what counts takes a nonce
                collected = document.body.collected
                if why := self.nonces.refusal(collected.nonce, collected.at):
                    document = Refused(file.name, why)
            yield document

    def _one(self, file: Path) -> tuple[Document | Refused, bool]:
        """A file's document, and whether somebody of the inventory signed it."""
        data = read_file(file, FILE_LIMIT)
        is_signed = is_envelope(data)
        if is_signed and self.inventory is None and not self.unsigned:
            why = "signed, and no inventory says by whom (--inventory)"
            return Refused(file.name, why), False
        if not is_signed or self.inventory is None:
            data = unverified_payload(data, str(file)) if is_signed else data
            document = document_of(decode_body(data, BODIES, str(file)), data)
            if self.unsigned:
                return document, False
            return Refused(file.name, f"about {document.asset}, and not signed"), False
        signed = open_envelope(data, self.inventory, str(file))
        body = decode_body(signed.data, BODIES, str(file))
        why = refusal(body, signed, self.inventory)
        return Refused(file.name, why) if why else document_of(body, signed.data), True


def save_facts(
    facts: Facts,
    path: Path,
    *,
    keys: Sequence[Signer] = (),
    certificates: Sequence[x509.Certificate] = (),
    nonce: str = "",
) -> None:
    """Write documents that were collected, signed where there are keys.

    Raises:
        AuditError: ST-AUDT-002 for a document that is too large to be read again.
        UsageError: ST-USAG-005 when a folder is to be written and something is there; ST-USAG-002,
            ST-USAG-006.
    """
    documents = [one for one in facts if isinstance(one, Document)]
    files = [_bytes_of(one, keys, certificates, nonce) for one in documents]
    if len(files) == 1 and not path.is_dir():
        write_atomic(path, files[0], mode=PRIVATE_FILE)
        return
    if path.suffix == ".json" or len(files) > MAX_DOCUMENTS:
        what = f"{len(files)} documents are no single file"
        fix = f"name a new folder, for at most {MAX_DOCUMENTS} documents"
        raise UsageError("ST-USAG-002", what, str(path), fix)
    with staged_dir(path, mode=PRIVATE_DIR) as folder:
        for i, (document, data) in enumerate(zip(documents, files, strict=True)):
            name = _NOT_IN_NAMES.sub("-", document.asset)[:_NAME_LENGTH]
            file = folder / f"{i:05d}-{name}.json"
            file.touch(mode=PRIVATE_FILE)
            file.write_bytes(data)  # the folder is synced before it gets its name


def _bytes_of(
    document: Document,
    keys: Sequence[Signer],
    certificates: Sequence[x509.Certificate],
    nonce: str,
) -> bytes:
    plain = document.body.to_json()
    if len(plain) + len(nonce) > FACTS_LIMIT:
        what = f"{len(plain)} bytes of facts, the limit is {FACTS_LIMIT}"
        fix = "collect fewer files at once"
        raise AuditError("ST-AUDT-002", what, document.asset, fix)
    if not keys:
        return plain
    return sign_facts(document.body, keys, nonce, certificates)
