# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Certificate revocation lists of NVIDIA's CAs, where there is no OCSP response for a certificate.

Rules, in order (RFC 5280, 5 and 6.3):

1. at most `LIMIT` bytes of DER; a complete list: no delta, and no critical extension at all, which
   leaves out lists that only cover some certificates, some reasons or other issuers' certificates;
2. it is the issuer's: same name, and the issuer's certificate may sign lists (cRLSign);
3. the signature is ECDSA with SHA-384 under the issuer's key on P-384;
4. thisUpdate is not in the future; nextUpdate is there and not in the past;
5. a certificate of this issuer that is not in it is good; one that is in it is revoked, or on hold.
"""

from datetime import datetime
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import SignatureAlgorithmOID

from securetrain.core.errors import AttestationError
from securetrain.evidence.gpu.certificates import CertificateStatus
from securetrain.evidence.gpu.ocsp import CLOCK_SKEW, UNREADABLE, Answer

LIMIT: Final = 4 << 20

_MALFORMED: Final = "ST-ATTS-711"
_ISSUER: Final = "ST-ATTS-713"
_SIGNATURE: Final = "ST-ATTS-714"
_OTHER: Final = "ST-ATTS-715"
_EXPIRED: Final = "ST-ATTS-716"
_FUTURE: Final = "ST-ATTS-717"


def verify_crl(
    data: bytes,
    certificate: x509.Certificate,
    issuer: x509.Certificate,
    *,
    now: datetime,
    where: str = "CRL",
) -> Answer:
    """Verify a list and read what it says of a certificate.

    Args:
        data: the CertificateList, DER.
        certificate: what is asked about.
        issuer: its issuer; the caller has verified that it issued `certificate`.
        now: the time of the check, timezone-aware.
        where: names the list in errors.

    Raises:
        AttestationError: ST-ATTS-711 malformed, 713 not the issuer's, 714 bad signature, 715 the
            certificate has another issuer, 716 expired, 717 from the future.
    """
    if len(data) > LIMIT:
        raise _bad(_MALFORMED, f"{len(data)} bytes, the limit is {LIMIT}", where)
    try:
        crl = x509.load_der_x509_crl(data)
        _check_complete(crl.extensions, where)
        _check_issuer(crl, issuer, where)
        if certificate.issuer != issuer.subject:
            name = certificate.issuer.rfc4514_string()
            raise _bad(_OTHER, f"the certificate is issued by {name!r}", where)
        until = _check_time(crl, now, where)
        status, reason = _status(crl, certificate, where)
        return Answer(status, reason, crl.last_update_utc, until)
    except UNREADABLE as error:
        raise _bad(_MALFORMED, f"not a CRL: {error}", where) from error


def _check_complete(extensions: x509.Extensions, where: str) -> None:
    for extension in extensions:
        if extension.critical or isinstance(extension.value, x509.DeltaCRLIndicator):
            oid = extension.oid.dotted_string
            raise _bad(_MALFORMED, f"extension {oid}: it is not a complete list", where)


def _check_issuer(
    crl: x509.CertificateRevocationList, issuer: x509.Certificate, where: str
) -> None:
    name = issuer.subject.rfc4514_string()
    if crl.issuer != issuer.subject:
        raise _bad(_ISSUER, f"it is by {crl.issuer.rfc4514_string()!r}, not {name!r}", where)
    try:
        usage = issuer.extensions.get_extension_for_class(x509.KeyUsage).value
    except x509.ExtensionNotFound as error:
        raise _bad(_ISSUER, f"{name!r} may not sign lists", where) from error
    if not usage.crl_sign:
        raise _bad(_ISSUER, f"{name!r} may not sign lists", where)
    key = issuer.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP384R1):
        raise _bad(_SIGNATURE, "its issuer's key is not on P-384", where)
    if crl.signature_algorithm_oid != SignatureAlgorithmOID.ECDSA_WITH_SHA384:
        found = crl.signature_algorithm_oid.dotted_string
        raise _bad(_SIGNATURE, f"signed with {found}, not ecdsa-with-SHA384", where)
    if not crl.is_signature_valid(key):
        raise _bad(_SIGNATURE, f"it does not verify under the key of {name!r}", where)


def _check_time(crl: x509.CertificateRevocationList, now: datetime, where: str) -> datetime:
    """Check the list's dates; the moment when it ends."""
    start, until = crl.last_update_utc, crl.next_update_utc
    if until is None:
        raise _bad(_MALFORMED, "it does not say when the next one comes", where)
    if start > now + CLOCK_SKEW:
        raise _bad(_FUTURE, f"it is from {start.isoformat()}, now {now.isoformat()}", where)
    if now > until:
        raise _bad(_EXPIRED, f"it ended {until.isoformat()}, now {now.isoformat()}", where)
    return until


def _status(
    crl: x509.CertificateRevocationList, certificate: x509.Certificate, where: str
) -> tuple[CertificateStatus, str]:
    entry = crl.get_revoked_certificate_by_serial_number(certificate.serial_number)
    if entry is None:
        return CertificateStatus.GOOD, ""
    _check_complete(entry.extensions, where)
    try:
        reason = entry.extensions.get_extension_for_class(x509.CRLReason).value.reason
    except x509.ExtensionNotFound:
        return CertificateStatus.REVOKED, ""
    on_hold = reason is x509.ReasonFlags.certificate_hold
    return CertificateStatus.HOLD if on_hold else CertificateStatus.REVOKED, reason.value


def _bad(code: str, what: str, where: str) -> AttestationError:
    return AttestationError(code, what, where)
