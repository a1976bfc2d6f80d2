# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The log entry of a DSSE envelope, in the form of Rekor's dsse 0.0.1.

https://github.com/sigstore/rekor/blob/main/pkg/types/dsse/v0.0.1/dsse_v0_0_1_schema.json: digests
of the envelope and its payload, and each signature with the key that verifies it, sorted by
signature, in canonical JSON. Content never gets into the log, only digests and keys.

An entry is made only of an envelope whose every signature verifies under a key that was given: what
is in the log was signed.
"""

import base64
import binascii
import hashlib
from collections.abc import Mapping
from typing import Any, Final

from securetrain.core import canonical
from securetrain.core.errors import IdentityError, UsageError
from securetrain.identity import dsse
from securetrain.identity.keys import PublicKey

LIMIT: Final = (1 << 16) - 1
"""Entry bundles give an entry's length in two bytes."""


def entry_of(envelope: bytes, verifiers: Mapping[str, PublicKey], where: str = "") -> bytes:
    """The entry's bytes.

    Args:
        envelope: in canonical form, as it is stored.
        verifiers: the keys of its signers, by key id; others may be among them.
        where: for the refusal.

    Raises:
        IdentityError: ST-IDEN-002 a signature does not verify, ST-IDEN-003 a signer's key was not
            given, ST-IDEN-004 malformed.
    """
    found = _parse(envelope, where)
    payload = _unbase64(found.payload, where)
    message = dsse.pae(found.payloadType, payload)
    signatures = []
    for signature in found.signatures:
        key = verifiers.get(signature.keyid)
        if key is None:
            raise IdentityError(
                "ST-IDEN-003",
                f"the key {signature.keyid[:16]} of a signature is not known",
                where,
                "log only what keys of the trust root have signed",
            )
        key.verify(_unbase64(signature.sig, where), message)
        signatures.append({"signature": signature.sig, "verifier": _base64(key.pem)})
    spec: dict[str, Any] = {
        "envelopeHash": {"algorithm": "sha256", "value": hashlib.sha256(envelope).hexdigest()},
        "payloadHash": {"algorithm": "sha256", "value": hashlib.sha256(payload).hexdigest()},
        "signatures": sorted(signatures, key=lambda item: item["signature"]),
    }
    entry = canonical.dumps({"apiVersion": "0.0.1", "kind": "dsse", "spec": spec})
    if len(entry) > LIMIT:
        raise IdentityError("ST-IDEN-004", f"an entry of {len(entry)} bytes", where)
    return entry


def _parse(envelope: bytes, where: str) -> dsse.Envelope:
    try:
        found = canonical.decode(
            envelope, dsse.Envelope, limit=dsse.ENVELOPE_LIMIT, where=where, canonical=True
        )
    except UsageError as error:
        raise IdentityError("ST-IDEN-004", f"not a DSSE envelope: {error.what}", where) from error
    if not 1 <= len(found.signatures) <= dsse.MAX_SIGNATURES:
        raise IdentityError("ST-IDEN-004", f"{len(found.signatures)} signatures", where)
    return found


def _unbase64(text: str, where: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise IdentityError("ST-IDEN-004", f"bad base64: {error}", where) from error


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
