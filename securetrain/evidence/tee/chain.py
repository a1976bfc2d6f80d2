# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Certificate paths and revocation lists of the makers of CPUs.

Rules:

1. the root is known by the SHA-256 of its SubjectPublicKeyInfo. Who delivers a certificate is never
   believed, so roots and intermediates may come from the node or from a cache alike;
2. the signature scheme is the maker's, never the one that a certificate names;
3. a path is checked from its root down: every CA is marked as one, may sign certificates and has
   room for what is below it; the leaf is no CA; nobody carries a critical extension that is not
   understood here;
4. signatures come first and dates last, so that "expired" is said only of what is otherwise
   genuine, and of one certificate, by its role;
5. a revocation list is signed by the CA whose certificates it lists, is in date and is complete
   (delta and indirect lists mark themselves by critical extensions, which are refused).

Checked signatures of certificates and of other documents of a maker are remembered: whether a
signature fits depends on bytes alone, so dates and revocation are still judged each time. Only what
hangs from a pinned root is remembered, hence nobody else can fill the memory.

Source: RFC 5280, sections 4.2, 5 and 6.1.
"""

import hashlib
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto
from typing import Final, TypeAlias, TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtensionOID, NameOID

from securetrain.core.errors import AttestationError
from securetrain.evidence.recent import Recent

CERTIFICATE_LIMIT: Final = 8 << 10
CRL_LIMIT: Final = 4 << 20
MAX_CERTIFICATES: Final = 16
REMEMBERED_SIGNATURES: Final = 1024
REMEMBERED_FILES: Final = 64
_PEM: Final = b"-----BEGIN "
_PEM_CHAIN: Final = re.compile(
    rb"(-----BEGIN CERTIFICATE-----\s[A-Za-z0-9+/=\s]*-----END CERTIFICATE-----\s*)+"
)
_UNDERSTOOD: Final = frozenset({ExtensionOID.BASIC_CONSTRAINTS, ExtensionOID.KEY_USAGE})
_MISFITS: Final = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.InvalidVersion,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)


E = TypeVar("E", bound=x509.ExtensionType)


class Scheme(Enum):
    """The scheme by which a maker signs certificates, lists and documents."""

    RSA_4096_PSS_SHA384 = auto()
    ECDSA_P256_SHA256 = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Maker:
    """One maker of CPUs: its signature scheme, and the codes of its refusals."""

    name: str
    scheme: Scheme
    malformed: str
    untrusted: str
    expired: str
    revoked: str
    bad_list: str

    def refusal(self, code: str, what: str, where: str) -> AttestationError:
        """A refusal of something that this maker signed."""
        return AttestationError(code, what, f"{self.name}, {where}")


class Memory:
    """Good answers that depend on nothing but their input, for an appraiser to keep.

    A refusal is never kept. Safe for threads.
    """

    def __init__(self) -> None:
        self.files: Recent[tuple[bytes, Maker, str], tuple[x509.Certificate, ...]] = Recent(
            REMEMBERED_FILES
        )
        self.issued: Recent[tuple[x509.Certificate, x509.Certificate], bool] = Recent(
            REMEMBERED_SIGNATURES
        )
        self.signed: Recent[tuple[x509.Certificate, Scheme, bytes, bytes], bool] = Recent(
            REMEMBERED_SIGNATURES
        )


Path: TypeAlias = Sequence[tuple[str, x509.Certificate]]
"""Roles (for people) and certificates, leaf first, root last."""


def load_certificate(data: bytes, maker: Maker, role: str) -> x509.Certificate:
    """One certificate in DER.

    Raises:
        AttestationError: `maker.malformed`.
    """
    if len(data) > CERTIFICATE_LIMIT:
        raise maker.refusal(
            maker.malformed, f"{len(data)} bytes, the limit is {CERTIFICATE_LIMIT}", role
        )
    try:
        with _no_warnings():
            certificate = x509.load_der_x509_certificate(data)
            # The rest is parsed when it is asked for; ask now, so that nothing can fail later.
            _ = certificate.extensions, certificate.subject, certificate.issuer
            certificate.public_key()
    except _MISFITS as error:
        raise maker.refusal(maker.malformed, f"not a certificate: {error}", role) from error
    return certificate


def load_certificates(
    data: bytes, maker: Maker, role: str, limit: int = MAX_CERTIFICATES
) -> list[x509.Certificate]:
    """The certificates of a file: one in DER, or PEM blocks with nothing between or after them.

    Raises:
        AttestationError: `maker.malformed`.
    """
    if not data.startswith(_PEM):
        return [load_certificate(data, maker, role)]
    if len(data) > 2 * limit * CERTIFICATE_LIMIT or not _PEM_CHAIN.fullmatch(data):
        raise maker.refusal(maker.malformed, "not a sequence of PEM certificates", role)
    if data.count(_PEM) > limit:
        raise maker.refusal(maker.malformed, f"more than {limit} certificates", role)
    try:
        with _no_warnings():
            parsed = x509.load_pem_x509_certificates(data)
    except _MISFITS as error:
        raise maker.refusal(maker.malformed, f"not PEM certificates: {error}", role) from error
    return [load_certificate(c.public_bytes(Encoding.DER), maker, role) for c in parsed]


def load_file(
    data: bytes, maker: Maker, role: str, memory: Memory | None = None
) -> tuple[x509.Certificate, ...]:
    """`load_certificates` of a file that the verifier's owner chose, remembered.

    Raises:
        AttestationError: `maker.malformed`.
    """
    memory = memory or Memory()
    key = (data, maker, role)
    known = memory.files.get(key)
    if known is None:
        known = memory.files.put(key, tuple(load_certificates(data, maker, role)))
    return known


def load_crl(data: bytes, maker: Maker, role: str) -> x509.CertificateRevocationList:
    """A revocation list in DER or PEM.

    Raises:
        AttestationError: `maker.bad_list`.
    """
    if len(data) > CRL_LIMIT:
        raise maker.refusal(maker.bad_list, f"{len(data)} bytes, the limit is {CRL_LIMIT}", role)
    load = x509.load_pem_x509_crl if data.startswith(_PEM) else x509.load_der_x509_crl
    try:
        with _no_warnings():
            crl = load(data)
            _ = crl.extensions, crl.issuer, crl.last_update_utc, crl.next_update_utc
    except _MISFITS as error:
        raise maker.refusal(maker.bad_list, f"not a revocation list: {error}", role) from error
    return crl


def common_name(name: x509.Name) -> str:
    """The only common name; empty when there is none or more than one."""
    values = name.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(values[0].value) if len(values) == 1 else ""


def spki_digest(certificate: x509.Certificate) -> str:
    """SHA-256 of the SubjectPublicKeyInfo, in hex: what roots are pinned by."""
    key = certificate.public_key()
    return hashlib.sha256(
        key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    ).hexdigest()


def verify_path(
    path: Path, pin: str, now: datetime, maker: Maker, memory: Memory | None = None
) -> None:
    """The path leads from its leaf to the pinned root, and all of it is in date.

    Raises:
        AttestationError: `maker.untrusted`, `maker.expired`.
    """
    memory = memory or Memory()
    role, root = path[-1]
    if spki_digest(root) != pin:
        raise maker.refusal(
            maker.untrusted,
            f"its key has the SHA-256 {spki_digest(root)}, the pinned root has {pin}",
            role,
        )
    issuers = [*path[1:], path[-1]]
    for (role, certificate), (issuer_role, issuer) in reversed([*zip(path, issuers, strict=True)]):
        if certificate.issuer != issuer.subject:
            raise maker.refusal(maker.untrusted, f"does not name the {issuer_role} as issuer", role)
        if not _is_issued(certificate, issuer, maker.scheme, memory):
            raise maker.refusal(maker.untrusted, f"is not signed by the {issuer_role}", role)
    for below, (role, certificate) in enumerate(path):
        _check_extensions(certificate, below, maker, role)
    for role, certificate in path:
        _check_dates(certificate, now, maker, role)


def verify_crl(
    crl: x509.CertificateRevocationList,
    issuer: x509.Certificate,
    now: datetime,
    maker: Maker,
    role: str,
    *,
    memory: Memory | None = None,
) -> None:
    """The list is complete, signed by `issuer` (whose own path was checked) and in date.

    Raises:
        AttestationError: `maker.bad_list`, `maker.expired`.
    """
    with _no_warnings():
        of_another = crl.issuer != issuer.subject
    if of_another:
        raise maker.refusal(maker.bad_list, "the list is of another CA", role)
    usage = _extension(issuer, x509.KeyUsage)
    if usage is None or not usage.crl_sign:
        raise maker.refusal(maker.bad_list, "the CA may not sign lists", role)
    if not is_signed(issuer, maker.scheme, crl.signature, crl.tbs_certlist_bytes, memory):
        raise maker.refusal(maker.bad_list, "the list is not signed by the CA", role)
    critical = [e.oid.dotted_string for e in crl.extensions if e.critical]
    if critical:
        raise maker.refusal(maker.bad_list, f"critical extensions {critical}: partial list", role)
    if crl.next_update_utc is None:
        raise maker.refusal(maker.bad_list, "the list does not say until when it is good", role)
    if not crl.last_update_utc <= now <= crl.next_update_utc:
        raise maker.refusal(
            maker.expired,
            f"the list is good from {crl.last_update_utc} to {crl.next_update_utc}, now {now}",
            role,
        )


def refuse_revoked(
    crl: x509.CertificateRevocationList, certificate: x509.Certificate, maker: Maker, role: str
) -> None:
    """The list does not have the certificate.

    Raises:
        AttestationError: `maker.revoked`.
    """
    entry = crl.get_revoked_certificate_by_serial_number(certificate.serial_number)
    if entry is not None:
        raise maker.refusal(maker.revoked, f"was revoked at {entry.revocation_date_utc}", role)


def is_signed(
    issuer: x509.Certificate,
    scheme: Scheme,
    signature: bytes,
    message: bytes,
    memory: Memory | None = None,
) -> bool:
    """Tell whether `issuer` signed a document; a good answer is remembered."""
    memory = memory or Memory()
    asked = (issuer, scheme, signature, message)
    if memory.signed.get(asked):
        return True
    try:
        _check_signature(issuer, scheme, signature, message)
    except InvalidSignature:
        return False
    return memory.signed.put(asked, value=True)


@contextmanager
def _no_warnings() -> Iterator[None]:
    """AMD numbers all VCEKs 0, which RFC 5280 forbids and the parser warns about; it also warns
    about lengths in names, which mean nothing here.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


def _is_issued(
    certificate: x509.Certificate, issuer: x509.Certificate, scheme: Scheme, memory: Memory
) -> bool:
    if not memory.issued.get((certificate, issuer)):
        try:
            # The algorithm beside the signature is no part of what is signed; this compares it
            # with the one that is, for what it is worth: `is_signed` believes neither.
            certificate.verify_directly_issued_by(issuer)
        except (InvalidSignature, *_MISFITS):
            return False
        memory.issued.put((certificate, issuer), value=True)
    signed = certificate.tbs_certificate_bytes
    return is_signed(issuer, scheme, certificate.signature, signed, memory)


def _check_signature(
    issuer: x509.Certificate, scheme: Scheme, signature: bytes, message: bytes
) -> None:
    """Raise `InvalidSignature` unless `issuer` signed `message`."""
    key = issuer.public_key()
    match scheme:
        case Scheme.RSA_4096_PSS_SHA384:
            if not isinstance(key, rsa.RSAPublicKey) or key.key_size != 4096:
                raise InvalidSignature
            pss = padding.PSS(padding.MGF1(hashes.SHA384()), padding.PSS.DIGEST_LENGTH)
            key.verify(signature, message, pss, hashes.SHA384())
        case Scheme.ECDSA_P256_SHA256:
            if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name != "secp256r1":
                raise InvalidSignature
            key.verify(signature, message, ec.ECDSA(hashes.SHA256()))


def _check_extensions(certificate: x509.Certificate, below: int, maker: Maker, role: str) -> None:
    """`below` is the number of certificates under this one; 0 makes it the leaf."""
    unknown = [
        extension.oid.dotted_string
        for extension in certificate.extensions
        if extension.critical and extension.oid not in _UNDERSTOOD
    ]
    if unknown:
        raise maker.refusal(maker.untrusted, f"unknown critical extensions {unknown}", role)
    constraints = _extension(certificate, x509.BasicConstraints)
    usage = _extension(certificate, x509.KeyUsage)
    if below == 0:
        if constraints is not None and constraints.ca:
            raise maker.refusal(maker.untrusted, "is a CA, a leaf was expected", role)
        if usage is not None and not usage.digital_signature:
            raise maker.refusal(maker.untrusted, "its key may not sign", role)
        return
    if constraints is None or not constraints.ca or usage is None or not usage.key_cert_sign:
        raise maker.refusal(maker.untrusted, "may not sign certificates", role)
    if constraints.path_length is not None and constraints.path_length < below - 1:
        raise maker.refusal(
            maker.untrusted,
            f"allows {constraints.path_length} CAs below itself, there are {below - 1}",
            role,
        )


def _check_dates(certificate: x509.Certificate, now: datetime, maker: Maker, role: str) -> None:
    first, last = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if not first <= now <= last:
        raise maker.refusal(maker.expired, f"is good from {first} to {last}, now {now}", role)


def _extension(certificate: x509.Certificate, kind: type[E]) -> E | None:
    try:
        return certificate.extensions.get_extension_for_class(kind).value
    except x509.ExtensionNotFound:
        return None
