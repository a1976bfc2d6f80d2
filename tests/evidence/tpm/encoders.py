# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What a TPM writes and a verifier only reads: the way back from its parsers."""

from securetrain.evidence.tpm.constants import GENERATED, Tag
from securetrain.evidence.tpm.structures import (
    Attest,
    CertifyInfo,
    QuoteInfo,
    Signature,
    encode_selections,
    number,
    tpm2b,
)


def encode_attest(attest: Attest) -> bytes:
    """TPMS_ATTEST."""
    match attest.attested:
        case QuoteInfo(selections, digest):
            tag, body = Tag.ATTEST_QUOTE, encode_selections(selections) + tpm2b(digest)
        case CertifyInfo(name, qualified_name):
            tag, body = Tag.ATTEST_CERTIFY, tpm2b(name) + tpm2b(qualified_name)
    clock = attest.clock
    return b"".join(
        (
            number(GENERATED, 4) + number(tag, 2),
            tpm2b(attest.qualified_signer) + tpm2b(attest.extra_data),
            number(clock.clock, 8) + number(clock.reset_count, 4) + number(clock.restart_count, 4),
            number(clock.safe, 1) + number(attest.firmware, 8),
            body,
        )
    )


def encode_signature(signature: Signature) -> bytes:
    """TPMT_SIGNATURE."""
    assert signature.scheme.hash is not None
    head = number(signature.scheme.algorithm, 2) + number(signature.scheme.hash, 2)
    return head + b"".join(map(tpm2b, signature.parts))
