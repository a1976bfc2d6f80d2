# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Facts as files that can be judged later or elsewhere: a document each, all of them or none.

Rules:

1. one document is a file; several are a folder that must be new, with a file for each, named in the
   order in which they were collected;
2. a folder appears whole: a part of it would be a set of fewer assets, and judge well;
3. what could not be read again is not written.
"""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from securetrain.audit.documents.documents import Document, Facts
from securetrain.audit.facts import FACTS_LIMIT
from securetrain.audit.sources.stored import MAX_DOCUMENTS
from securetrain.core.errors import AuditError, UsageError
from securetrain.core.files import PRIVATE_DIR, PRIVATE_FILE, staged_dir, write_atomic

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cryptography import x509

    from securetrain.identity.keys import Signer

_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9._-]+")
_NAME_LENGTH: Final = 80


def save_facts(
    facts: Facts,
    path: Path,
    *,
    keys: "Sequence[Signer]" = (),
    certificates: "Sequence[x509.Certificate]" = (),
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
    keys: "Sequence[Signer]",
    certificates: "Sequence[x509.Certificate]",
    nonce: str,
) -> bytes:
    plain = document.body.to_json()
    if len(plain) + len(nonce) > FACTS_LIMIT:
        what = f"{len(plain)} bytes of facts, the limit is {FACTS_LIMIT}"
        fix = "collect fewer files at once"
        raise AuditError("ST-AUDT-002", what, document.asset, fix)
    if not keys:
        return plain
    from securetrain.audit.sources.inventory import sign_facts  # noqa: PLC0415 - most are not signed

    return sign_facts(document.body, keys, nonce, certificates)
