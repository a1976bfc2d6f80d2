# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Files that a person names for an enrollment: certificates, and a runtime policy."""

import re
from pathlib import Path
from typing import Final

from OpenSSL import crypto

from securetrain.core import canonical
from securetrain.core.errors import AttestationError, UsageError, reason
from securetrain.core.files import read_file
from securetrain.evidence.tpm import Endorsements, ImaReference, RuntimePolicies, TpmReference

POLICY_LIMIT: Final = 32 << 20
"""Of a runtime policy that is put into the reference values; a larger one belongs in the cache."""
PEM_LIMIT: Final = 256 << 10
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


def ima_reference(path: Path | None, digest: str) -> ImaReference | None:
    """The runtime policy that a person named: in a file, to be put into the reference values, or in
    the cache.

    Args:
        path: a Keylime runtime policy; None for none.
        digest: SHA-256 of one in the cache, hex; empty for none.

    Raises:
        AttestationError: ST-ATTS-320, 322 or 323.
        UsageError: ST-USAG-001, 002 or 008.
    """
    if path is None:
        if digest and not _SHA256.fullmatch(digest):
            raise UsageError(
                "ST-USAG-001",
                f"{digest!r} is no SHA-256 in lower-case hex",
                "--ima-policy-sha256",
                "take it from what 'securetrain attest cache add --runtime-policy' prints",
            )
        return ImaReference(policy_sha256=digest) if digest else None
    if digest:
        raise UsageError(
            "ST-USAG-001", "two runtime policies", "--ima-policy-sha256", "name one of them"
        )
    document = canonical.loads(read_file(path, POLICY_LIMIT), limit=POLICY_LIMIT, where=str(path))
    if not isinstance(document, dict):
        raise UsageError("ST-USAG-008", "not a JSON object", str(path), "name a runtime policy")
    reference = ImaReference(policy=document)
    RuntimePolicies().get(reference, {})
    return reference


def read_pem(path: Path) -> str:
    """Certificates of a file, PEM or DER, as PEM.

    Raises:
        UsageError: ST-USAG-002 or 008.
    """
    data = read_file(path, PEM_LIMIT)
    try:
        if b"-----BEGIN CERTIFICATE-----" not in data:
            loaded = crypto.load_certificate(crypto.FILETYPE_ASN1, data)
            data = crypto.dump_certificate(crypto.FILETYPE_PEM, loaded)
        text = data.decode("ascii")
        Endorsements(TpmReference(intermediates=(text,)))
    except (crypto.Error, UnicodeDecodeError, AttestationError) as error:
        raise UsageError(
            "ST-USAG-008",
            f"not a certificate: {reason(error)}",
            str(path),
            "name a file with CA certificates, in PEM or DER",
        ) from error
    return text
