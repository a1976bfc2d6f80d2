# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""OCSP responses: whether the issuer of an NVIDIA certificate still stands by it.

Rules, in order (RFC 6960, 3.2 and 4.2.2):

1. at most `LIMIT` bytes of DER, with one SingleResponse, and no critical extension but the nonce;
2. the responder answered ("successful"; its refusals are not signed by anybody);
3. the response is signed by the certificate's issuer itself, or by a delegate whose certificate is
   in the response, is issued by that same issuer, has the extended key usage OCSPSigning and is
   valid now. A responder of another CA, however trusted, speaks for nobody here;
4. the signature is ECDSA with SHA-384, as NVIDIA's verifiers ask, and verifies;
5. the CertID is the certificate's: serial number and the hashes of its issuer's name and key, with
   SHA-384, SHA-256 or SHA-1 (NVIDIA's tools have used all three; the hash only names);
6. where a nonce was sent, it comes back;
7. thisUpdate and producedAt are not in the future and nextUpdate not in the past. A response
   without nextUpdate is good for `DEFAULT_LIFE`;
8. only then it counts whether the status is good, revoked or unknown; a certificate on hold is
   revoked for a reason that may end, and is told apart.

A delegate's own certificate is not asked about (RFC 6960, 4.2.2.2.1): it ends soon.
"""

import hmac
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.utils import CryptographyDeprecationWarning
from cryptography.x509 import ocsp
from cryptography.x509.oid import ExtendedKeyUsageOID, SignatureAlgorithmOID

from securetrain.core.errors import AttestationError
from securetrain.evidence.gpu.certificates import CertificateStatus

LIMIT: Final = 64 << 10
MAX_CERTIFICATES: Final = 4
DEFAULT_LIFE: Final = timedelta(days=1)
CLOCK_SKEW: Final = timedelta(minutes=5)

_MALFORMED: Final = "ST-ATTS-711"
_NO_ANSWER: Final = "ST-ATTS-712"
_RESPONDER: Final = "ST-ATTS-713"
_SIGNATURE: Final = "ST-ATTS-714"
_OTHER: Final = "ST-ATTS-715"
_EXPIRED: Final = "ST-ATTS-716"
_FUTURE: Final = "ST-ATTS-717"
_NONCE: Final = "ST-ATTS-718"

UNREADABLE: Final = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
    CryptographyDeprecationWarning,
)
"""What `cryptography` raises on structures that are not what they should be; the warning, of serial
numbers that are not positive, only where warnings are errors."""
_ID_HASHES: Final = (hashes.SHA384, hashes.SHA256, hashes.SHA1)
_CURVES: Final = (ec.SECP384R1, ec.SECP256R1)


@dataclass(frozen=True, slots=True)
class Answer:
    """The issuer's answer about a certificate."""

    status: CertificateStatus
    reason: str
    """Why it was revoked, when the issuer says."""
    from_: datetime
    """thisUpdate: when this was known to be so."""
    until: datetime
    """When the answer ends."""


def verify_response(
    data: bytes,
    certificate: x509.Certificate,
    issuer: x509.Certificate,
    *,
    now: datetime,
    nonce: bytes | None = None,
    where: str = "OCSP response",
) -> Answer:
    """Verify a response and read what it says of a certificate.

    Args:
        data: the OCSPResponse, DER.
        certificate: what was asked about.
        issuer: its issuer; the caller has verified that it issued `certificate`.
        now: the time of the check, timezone-aware.
        nonce: what was sent, for an answer that was asked for just now.
        where: names the response in errors.

    Raises:
        AttestationError: ST-ATTS-711 malformed, 712 no answer, 713 not the issuer's responder, 714
            bad signature, 715 about another certificate, 716 expired, 717 from the future, 718
            another nonce.
    """
    if len(data) > LIMIT:
        raise _bad(_MALFORMED, f"{len(data)} bytes, the limit is {LIMIT}", where)
    try:
        response = ocsp.load_der_ocsp_response(data)
        if response.response_status is not ocsp.OCSPResponseStatus.SUCCESSFUL:
            raise _bad(_NO_ANSWER, f"{response.response_status.name.lower()}", where)
        _check_form(response, where)
        _check_signature(response, _responder(response, issuer, now, where), where)
        _check_id(response, certificate, issuer, where)
        if nonce is not None:
            _check_nonce(response, nonce, where)
        return _answer(response, now, where)
    except UNREADABLE as error:
        raise _bad(_MALFORMED, f"not an OCSP response: {error}", where) from error


def build_request(
    certificate: x509.Certificate, issuer: x509.Certificate, nonce: bytes | None = None
) -> bytes:
    """The OCSPRequest (DER) for one certificate, with CertID hashes of SHA-384."""
    builder = ocsp.OCSPRequestBuilder().add_certificate(certificate, issuer, hashes.SHA384())
    if nonce is not None:
        builder = builder.add_extension(x509.OCSPNonce(nonce), critical=False)
    return builder.build().public_bytes(Encoding.DER)


def _check_form(response: ocsp.OCSPResponse, where: str) -> None:
    count = sum(1 for _ in response.responses)
    if count != 1:
        raise _bad(_MALFORMED, f"{count} answers, expected one", where)
    for extension in (*response.extensions, *response.single_extensions):
        if extension.critical and not isinstance(extension.value, x509.OCSPNonce):
            oid = extension.oid.dotted_string
            raise _bad(_MALFORMED, f"critical extension {oid} is not known", where)
    if len(response.certificates) > MAX_CERTIFICATES:
        raise _bad(_MALFORMED, f"{len(response.certificates)} certificates in it", where)


def _responder(
    response: ocsp.OCSPResponse, issuer: x509.Certificate, now: datetime, where: str
) -> x509.Certificate:
    """Find the signer: the issuer, or the delegate that the response names."""
    if _is_named(response, issuer):
        return issuer
    for delegate in response.certificates:
        if _is_named(response, delegate):
            _check_delegate(delegate, issuer, now, where)
            return delegate
    raise _bad(_RESPONDER, "its responder is not the issuer and not in it", where)


def _is_named(response: ocsp.OCSPResponse, certificate: x509.Certificate) -> bool:
    if response.responder_name is not None:
        return response.responder_name == certificate.subject
    identifier = x509.SubjectKeyIdentifier.from_public_key(certificate.public_key())
    return response.responder_key_hash == identifier.digest


def _check_delegate(
    delegate: x509.Certificate, issuer: x509.Certificate, now: datetime, where: str
) -> None:
    name = delegate.subject.rfc4514_string()
    try:
        delegate.verify_directly_issued_by(issuer)
        usages = delegate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except (InvalidSignature, ValueError, TypeError) as error:
        raise _bad(_RESPONDER, f"responder {name!r} has another issuer", where) from error
    except x509.ExtensionNotFound as error:
        raise _bad(_RESPONDER, f"responder {name!r} may not sign answers", where) from error
    if ExtendedKeyUsageOID.OCSP_SIGNING not in usages:
        raise _bad(_RESPONDER, f"responder {name!r} may not sign answers", where)
    start, until = delegate.not_valid_before_utc, delegate.not_valid_after_utc
    if now < start:
        raise _bad(_FUTURE, f"responder {name!r} is valid from {start.isoformat()}", where)
    if now > until:
        raise _bad(_EXPIRED, f"responder {name!r} was valid until {until.isoformat()}", where)


def _check_signature(response: ocsp.OCSPResponse, by: x509.Certificate, where: str) -> None:
    key = by.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, _CURVES):
        raise _bad(_SIGNATURE, "the responder's key is not on P-384 or P-256", where)
    if response.signature_algorithm_oid != SignatureAlgorithmOID.ECDSA_WITH_SHA384:
        found = response.signature_algorithm_oid.dotted_string
        raise _bad(_SIGNATURE, f"signed with {found}, not ecdsa-with-SHA384", where)
    try:
        key.verify(response.signature, response.tbs_response_bytes, ec.ECDSA(hashes.SHA384()))
    except InvalidSignature as error:
        name = by.subject.rfc4514_string()
        raise _bad(_SIGNATURE, f"it does not verify under the key of {name!r}", where) from error


def _check_id(
    response: ocsp.OCSPResponse,
    certificate: x509.Certificate,
    issuer: x509.Certificate,
    where: str,
) -> None:
    for expected in _ids(response, certificate, issuer):
        if (
            response.serial_number == expected.serial_number
            and response.issuer_name_hash == expected.issuer_name_hash
            and response.issuer_key_hash == expected.issuer_key_hash
        ):
            return
    raise _bad(
        _OTHER,
        f"it speaks of serial number {response.serial_number:x} of some issuer, not of"
        f" {certificate.subject.rfc4514_string()!r} ({certificate.serial_number:x})",
        where,
    )


def _ids(
    response: ocsp.OCSPResponse, certificate: x509.Certificate, issuer: x509.Certificate
) -> Iterator[ocsp.OCSPRequest]:
    """The certificate's CertID under the response's hash; nothing for a hash not accepted."""
    for algorithm in _ID_HASHES:
        if isinstance(response.hash_algorithm, algorithm):
            builder = ocsp.OCSPRequestBuilder()
            yield builder.add_certificate(certificate, issuer, algorithm()).build()


def _check_nonce(response: ocsp.OCSPResponse, nonce: bytes, where: str) -> None:
    try:
        found = response.extensions.get_extension_for_class(x509.OCSPNonce).value.nonce
    except x509.ExtensionNotFound as error:
        raise _bad(_NONCE, "it carries no nonce", where) from error
    if not hmac.compare_digest(found, nonce):
        raise _bad(_NONCE, "it carries another nonce", where)


def _answer(response: ocsp.OCSPResponse, now: datetime, where: str) -> Answer:
    start, end = response.this_update_utc, response.next_update_utc
    if max(start, response.produced_at_utc) > now + CLOCK_SKEW:
        raise _bad(_FUTURE, f"it is from {start.isoformat()}, now {now.isoformat()}", where)
    until = start + DEFAULT_LIFE if end is None else end
    if now > until:
        raise _bad(_EXPIRED, f"it ended {until.isoformat()}, now {now.isoformat()}", where)
    reason = response.revocation_reason
    match response.certificate_status:
        case ocsp.OCSPCertStatus.GOOD:
            status = CertificateStatus.GOOD
        case ocsp.OCSPCertStatus.REVOKED if reason is x509.ReasonFlags.certificate_hold:
            status = CertificateStatus.HOLD
        case ocsp.OCSPCertStatus.REVOKED:
            status = CertificateStatus.REVOKED
        case _:
            status = CertificateStatus.UNKNOWN
    return Answer(status, "" if reason is None else reason.value, start, until)


def _bad(code: str, what: str, where: str) -> AttestationError:
    return AttestationError(code, what, where)
