# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The passport of an admitted node: its result, and a certificate that ends with the lease."""

from dataclasses import dataclass
from datetime import UTC, datetime

from cryptography import x509

from securetrain.core.errors import SecureTrainError
from securetrain.core.vocabulary import NodeTier
from securetrain.evidence import AttestationResult, refused, verify_result
from securetrain.identity import JobCA, Role, certificate_pem, check_leaf, load_certificate
from securetrain.identity.keys import PrivateKey, PublicKey


@dataclass(frozen=True, slots=True)
class Passport:
    """The proof that an admitted node can show to others until its lease ends."""

    result: AttestationResult
    ear: str
    """The signed result."""
    svid: x509.Certificate
    """The node's key under the job CA, for the time of the lease."""


def issue_passport(
    result: AttestationResult, *, key: PrivateKey, ca: JobCA, node_key: PublicKey
) -> Passport:
    """Sign a result and issue the SVID that goes with it.

    Args:
        result: of the verifier.
        key: the coordinator's key.
        ca: the job's CA.
        node_key: the node's identity key, the one that the result is about.
    """
    attested = result.tier > NodeTier.SELF_ASSERTED
    svid = ca.issue(
        Role.MEMBER if attested else Role.UNATTESTED,
        node_key,
        result.issued,
        node=result.node,
        lifetime=result.expires - result.issued,
    )
    return Passport(result, result.sign(key), svid)


def verify_passport(
    token: str, svid: bytes, *, key: PublicKey, ca: x509.Certificate, now: datetime
) -> Passport:
    """Read a passport: the result, and an SVID for the same node, key and time.

    Raises:
        AttestationError: ST-ATTS-014.
    """
    result = verify_result(token, key)
    attested = result.tier > NodeTier.SELF_ASSERTED
    try:
        certificate = load_certificate(svid, "SVID")
        role = Role.MEMBER if attested else Role.UNATTESTED
        spiffe = check_leaf(certificate, ca, role, now)
        holder = PublicKey.from_spki(_spki(certificate))
    except SecureTrainError as error:
        raise refused(f"the SVID: {error.code}: {error.what}") from error
    said = (spiffe.job, spiffe.node, holder.key_id)
    if said != (result.job, result.node, result.key_id):
        raise refused(f"the SVID is {spiffe}'s, the result is about {result.node}")
    if certificate.not_valid_after_utc > result.expires.astimezone(UTC):
        raise refused("the SVID lives longer than the result")
    return Passport(result, token, certificate)


def svid_pem(passport: Passport) -> str:
    """The SVID as text."""
    return certificate_pem(passport.svid).decode()


def _spki(certificate: x509.Certificate) -> bytes:
    from cryptography.hazmat.primitives.serialization import (  # noqa: PLC0415 - one use
        Encoding,
        PublicFormat,
    )

    return certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
