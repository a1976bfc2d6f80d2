# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Certificate paths and revocation lists of the makers of CPUs.

Rules:

1. a path is a line of certificates (`identity.paths`) under the maker's rules, and what its flaws
   are called is the maker's, too;
2. the signature scheme of lists and documents is the maker's, never the one that they name;
3. a revocation list is signed by the CA whose certificates it lists, is in date and is complete
   (delta and indirect lists mark themselves by critical extensions, which are refused).

Report links, and signatures of other documents of a maker, are remembered: whether one holds
depends on bytes alone, so dates and revocation are still judged each time. Only what hangs from a
pinned root is remembered, hence nobody else can fill the memory.

Source: RFC 5280, sections 4.2, 5 and 6.1.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, TypeAlias, TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from securetrain.core.errors import AttestationError
from securetrain.evidence.recent import Recent
from securetrain.identity import paths

CERTIFICATE_LIMIT: Final = 8 << 10
CRL_LIMIT: Final = 4 << 20
MAX_CERTIFICATES: Final = 16
REMEMBERED_SIGNATURES: Final = 1024
REMEMBERED_FILES: Final = 64
_PEM: Final = b"-----BEGIN "
_PEM_CHAIN: Final = re.compile(
    rb"(-----BEGIN CERTIFICATE-----\s[A-Za-z0-9+/=\s]*-----END CERTIFICATE-----\s*)+"
)
E = TypeVar("E", bound=x509.ExtensionType)


@dataclass(frozen=True, slots=True, kw_only=True)
class Maker:
    """One maker of CPUs: the rules of its certificates, and the codes of its refusals."""

    rules: paths.Rules
    malformed: str
    untrusted: str
    expired: str
    revoked: str
    bad_list: str

    @property
    def scheme(self) -> paths.Scheme:
        """The scheme by which it signs certificates, lists and documents."""
        return self.rules.scheme

    def refusal(self, code: str, what: str, where: str) -> AttestationError:
        """A refusal of something that this maker signed."""
        return AttestationError(code, what, f"{self.rules.name}, {where}")

    def code(self, flaw: paths.Flaw) -> str:
        """The code of a path's flaw."""
        match flaw:
            case paths.Flaw.MALFORMED:
                return self.malformed
            case paths.Flaw.EXPIRED | paths.Flaw.NOT_YET:
                return self.expired
            case _:
                return self.untrusted


class Memory:
    """Good answers that depend on nothing but their input, for an appraiser to keep.

    A refusal is never kept. Safe for threads.
    """

    def __init__(self) -> None:
        self.files: Recent[tuple[bytes, Maker, str], tuple[x509.Certificate, ...]] = Recent(
            REMEMBERED_FILES
        )
        self.links = paths.Links()
        self.signed: Recent[tuple[x509.Certificate, paths.Scheme, bytes, bytes], bool] = Recent(
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
        with paths.no_warnings():
            certificate = x509.load_der_x509_certificate(data)
            # The rest is parsed when it is asked for; ask now, so that nothing can fail later.
            _ = certificate.extensions, certificate.subject, certificate.issuer
            certificate.public_key()
    except paths.UNREADABLE as error:
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
        with paths.no_warnings():
            parsed = x509.load_pem_x509_certificates(data)
    except paths.UNREADABLE as error:
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
        with paths.no_warnings():
            crl = load(data)
            _ = crl.extensions, crl.issuer, crl.last_update_utc, crl.next_update_utc
    except paths.UNREADABLE as error:
        raise maker.refusal(maker.bad_list, f"not a revocation list: {error}", role) from error
    return crl


def common_name(name: x509.Name) -> str:
    """The only common name; empty when there is none or more than one."""
    values = name.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(values[0].value) if len(values) == 1 else ""


def verify_path(
    path: Path, pin: str, now: datetime, maker: Maker, memory: Memory | None = None
) -> None:
    """The path leads from its leaf to the pinned root, and all of it is in date.

    Raises:
        AttestationError: `maker.malformed`, `maker.untrusted`, `maker.expired`.
    """
    try:
        paths.verify_line(path, {pin}, now, maker.rules, (memory or Memory()).links)
    except paths.BadPathError as bad:
        raise maker.refusal(maker.code(bad.flaw), bad.what, path[bad.position][0]) from bad


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
    with paths.no_warnings():
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
    scheme: paths.Scheme,
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
        scheme.check(issuer.public_key(), signature, message)
    except InvalidSignature:
        return False
    return memory.signed.put(asked, value=True)


def _extension(certificate: x509.Certificate, kind: type[E]) -> E | None:
    try:
        return certificate.extensions.get_extension_for_class(kind).value
    except x509.ExtensionNotFound:
        return None
