# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The certificates of an NVIDIA device: from the key behind a report to NVIDIA's root.

A device sends five, the leaf first::

    FMC     key of the running firmware: signs reports; made anew when the firmware changes
    BROM    key of the boot ROM: signs the FMC certificate inside the device
    ICA     of the factory that provisioned the device
    family  the chip family's identity CA
    root    "NVIDIA Device Identity CA"

Source: NVIDIA attestation-sdk, `nv_x509.cpp`; RFC 5280, section 6.1; TCG DICE Attestation
Architecture 1.1 (TcbInfo) and DICE Certificate Profiles (the composite device id that came before);
DSP0274 1.2, 10.7.2.1 (subject alternative name of a device).

Rules:

1. exactly five certificates, each issued by the next, all with P-384 keys and ecdsa-with-SHA384;
2. the last is its own issuer, and its SubjectPublicKeyInfo is one that the caller pinned. The
   device's copy of the root is trusted no further than that key has signed it;
3. every issuer is a CA (critical basicConstraints, path length kept, keyCertSign); the leaf is none
   and may sign data. No certificate has a critical extension that is not looked at here;
4. every certificate is valid at `now`; expired and not yet valid have codes of their own;
5. where a status lookup is given, BROM, ICA and family certificates must be good. The leaf's issuer
   is the device itself, which nobody can ask, and the root is pinned;
6. the BROM certificate, which NVIDIA signed, names the chip and the device (PDI); the leaf's
   alternative name must name the same chip;
7. the leaf's DICE extension tells the firmware (FWID, SHA-384). The composite device id must hold
   the BROM key; a TcbInfo must not say debug, recovery or not secure. DER is decoded, not sliced.

What does not depend on the time, the pinned roots or the status is remembered by `CertificateCache`
under the digests of certificate and issuer; the rest is checked every time.
"""

import hashlib
import re
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from threading import Lock
from typing import Final, TypeAlias

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtensionOID, NameOID, SignatureAlgorithmOID

from securetrain.core.errors import AttestationError
from securetrain.evidence.gpu import dice

NVIDIA_DEVICE_ROOTS: Final = frozenset(
    {"a90c4eb5acfd3e3d03a25db6a26b84f720ad0503196c627c21ddd48dd85b06a4"}
)
"""SHA-256 of the SubjectPublicKeyInfo of "NVIDIA Device Identity CA" (valid from 2021-11-05), as in
NVIDIA attestation-sdk, `src/internal/certs.h`, and nvtrust, `verifier_device_root.pem`."""

CHAIN_LENGTH: Final = 5
CERTIFICATE_LIMIT: Final = 4096
_ROLES: Final = ("FMC", "BROM", "ICA", "family", "root")
_LEAF: Final = 0
_BROM: Final = 1
_ROOT: Final = CHAIN_LENGTH - 1
_BROM_NAME: Final = re.compile(r"([0-9A-Z_]{4,8}) [A-Z][0-9]{2} [A-Z0-9]{1,8} BROM")
_BROM_SERIAL: Final = re.compile(r"[0-9A-F]{2}([0-9A-F]{16})")
"""A byte for the kind of device, then the PDI."""
_DEVICE_NAME: Final = re.compile(r"NVIDIA:([0-9A-Z_]{4,8}):([0-9A-F]{16})")
_LOOKED_AT: Final = frozenset(
    {
        ExtensionOID.BASIC_CONSTRAINTS,
        ExtensionOID.KEY_USAGE,
        ExtensionOID.SUBJECT_ALTERNATIVE_NAME,
        dice.COMPOSITE_DEVICE_ID,
        dice.TCB_INFO,
    }
)
_MALFORMED: Final = (
    ValueError,
    TypeError,
    Warning,  # on what it will refuse one day, where warnings are errors
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)
"""What `cryptography` raises on certificates that are not what they should be."""


class CertificateStatus(StrEnum):
    """An issuer's word on a certificate (RFC 6960); a hold is a revocation that may end."""

    GOOD = "good"
    REVOKED = "revoked"
    HOLD = "hold"
    UNKNOWN = "unknown"


StatusLookup: TypeAlias = Callable[[x509.Certificate, x509.Certificate], CertificateStatus]
"""Status of a certificate, given also its issuer's. May refuse by itself."""


@dataclass(frozen=True, slots=True)
class Link:
    """A certificate that has been checked against its issuer; facts that no time changes."""

    certificate: x509.Certificate
    spki: str
    """SHA-256 of the SubjectPublicKeyInfo."""
    not_before: datetime
    not_after: datetime


class CertificateCache:
    """Checked certificates of many devices; bounded, the longest unused leave first.

    The devices of one family share their upper three certificates, and a device keeps its own
    until its firmware changes: a node that attests again costs one signature per device.
    """

    def __init__(self, capacity: int = 4096) -> None:
        """Start empty.

        Args:
            capacity: number of certificates, about 4 KiB each.
        """
        self._capacity = capacity
        self._links: OrderedDict[bytes, Link] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._links)

    def get(self, key: bytes) -> Link | None:
        """The link that was remembered under `key`."""
        with self._lock:
            link = self._links.get(key)
            if link is not None:
                self._links.move_to_end(key)
            return link

    def put(self, key: bytes, link: Link) -> None:
        """Remember a link whose checks have passed."""
        with self._lock:
            self._links[key] = link
            self._links.move_to_end(key)
            while len(self._links) > self._capacity:
                self._links.popitem(last=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The device and the firmware that hold the key behind a report."""

    chip: str
    """``GH100``, ``GB100``, ``LS_10``."""
    pdi: str
    """Identity of the device, 16 hex digits; stays when firmware changes."""
    serial: str
    """Serial number in the leaf's alternative name, 16 hex digits."""
    ueid: str
    """Serial number of the leaf certificate in decimal, as attestation tokens write it."""
    fwid: bytes
    dice_oid: str
    """Which of the two DICE extensions told the FWID."""
    key: ec.EllipticCurvePublicKey
    certificate_serials: tuple[str, ...]
    """In hex, leaf first."""
    expires: datetime
    """When the first of the certificates expires."""


def verify_chain(
    certificates: Sequence[bytes],
    *,
    roots: Collection[str],
    now: datetime,
    status: StatusLookup | None = None,
    cache: CertificateCache | None = None,
    where: str = "device",
) -> Identity:
    """Lead a device's certificates to a pinned root.

    Args:
        certificates: DER, leaf first.
        roots: SHA-256 of the SubjectPublicKeyInfo of every accepted root, lower-case hex.
        now: the time of the check, timezone-aware.
        status: tells revoked certificates; None leaves that unchecked.
        cache: remembers what does not depend on the arguments above.
        where: names the device in errors.

    Raises:
        AttestationError: ST-ATTS-605 to 612, and 614 for the identity in the leaf.
    """
    if cache is None:
        cache = CertificateCache(CHAIN_LENGTH)
    links = _links(certificates, roots, cache, where)
    for role, link in zip(_ROLES, links, strict=True):
        _check_time(link, now, f"{where}: {role} certificate")
    if status is not None:
        for position in range(_ROOT - 1, _LEAF, -1):
            found = status(links[position].certificate, links[position + 1].certificate)
            _check_status(found, f"{where}: {_ROLES[position]} certificate")
    try:
        return _identity(links, where)
    except _MALFORMED as error:
        raise _anonymous(str(error), where) from error


def _links(
    certificates: Sequence[bytes], roots: Collection[str], cache: CertificateCache, where: str
) -> list[Link]:
    """The certificates, leaf first, checked from the root down."""
    if len(certificates) != CHAIN_LENGTH:
        raise _malformed(f"{len(certificates)} certificates, not {CHAIN_LENGTH}", where)
    digests = [hashlib.sha256(der).digest() for der in certificates]
    links: list[Link] = []
    for position in range(_ROOT, -1, -1):
        place = f"{where}: {_ROLES[position]} certificate"
        issuer = min(position + 1, _ROOT)
        key = bytes([position]) + digests[position] + digests[issuer]
        link = cache.get(key)
        if link is None:
            link = _link(certificates[position], position, links, place)
            cache.put(key, link)
        if position == _ROOT and link.spki not in roots:
            raise AttestationError(
                "ST-ATTS-609", f"the root's key {link.spki} is not pinned", place
            )
        links.insert(0, link)
    return links


def _link(der: bytes, position: int, above: Sequence[Link], where: str) -> Link:
    """Check one certificate against its issuer, the first of those above, or itself at the root."""
    if len(der) > CERTIFICATE_LIMIT:
        raise _malformed(f"{len(der)} bytes, the limit is {CERTIFICATE_LIMIT}", where)
    try:
        certificate = x509.load_der_x509_certificate(der)
        # A signature is whole bytes; `cryptography` does not look at the count of unused bits.
        if not der.endswith(b"\0" + certificate.signature):
            raise _malformed("its signature is not a string of whole bytes", where)
        key = _public_key(certificate, where)
        _check_issued(certificate, above[0].certificate if above else certificate, where)
        if position == _LEAF:
            _check_leaf(certificate, where)
        else:
            _check_authority(certificate, position, where)
        return Link(
            certificate=certificate,
            spki=hashlib.sha256(_spki(key)).hexdigest(),
            not_before=certificate.not_valid_before_utc,
            not_after=certificate.not_valid_after_utc,
        )
    except _MALFORMED as error:
        raise _malformed(str(error), where) from error


def _public_key(certificate: x509.Certificate, where: str) -> ec.EllipticCurvePublicKey:
    key = certificate.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP384R1):
        raise _broken("its key is not one of P-384", where)
    return key


def _spki(key: ec.EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _check_issued(certificate: x509.Certificate, issuer: x509.Certificate, where: str) -> None:
    if certificate.signature_algorithm_oid != SignatureAlgorithmOID.ECDSA_WITH_SHA384:
        found = certificate.signature_algorithm_oid.dotted_string
        raise _broken(f"signed with {found}, not ecdsa-with-SHA384", where)
    if certificate.issuer != issuer.subject:
        raise _broken(
            f"issued by {certificate.issuer.rfc4514_string()!r},"
            f" the next one is {issuer.subject.rfc4514_string()!r}",
            where,
        )
    try:
        certificate.verify_directly_issued_by(issuer)
    except InvalidSignature as error:
        raise _broken("its issuer's key did not sign it", where) from error


def _check_authority(certificate: x509.Certificate, position: int, where: str) -> None:
    found = _extensions(certificate, where)
    constraints = found.get(ExtensionOID.BASIC_CONSTRAINTS)
    if constraints is None or not constraints.critical:
        raise _broken("it has no critical basicConstraints", where)
    assert isinstance(constraints.value, x509.BasicConstraints)
    if not constraints.value.ca:
        raise _broken("it is not a CA", where)
    below = position - 1  # CAs between this one and the leaf
    if constraints.value.path_length is not None and constraints.value.path_length < below:
        raise _broken(
            f"its path length is {constraints.value.path_length}, {below} CAs are below it", where
        )
    usage = _usage(found, where)
    if not usage.key_cert_sign:
        raise _broken("it may not sign certificates (keyCertSign)", where)


def _check_leaf(certificate: x509.Certificate, where: str) -> None:
    found = _extensions(certificate, where)
    constraints = found.get(ExtensionOID.BASIC_CONSTRAINTS)
    if constraints is not None:
        assert isinstance(constraints.value, x509.BasicConstraints)
        if constraints.value.ca:
            raise _broken("it is a CA", where)
    usage = _usage(found, where)
    if usage.key_cert_sign or not usage.digital_signature:
        raise _broken("its key usage is not digitalSignature alone", where)


_Extensions: TypeAlias = dict[x509.ObjectIdentifier, x509.Extension[x509.ExtensionType]]


def _extensions(certificate: x509.Certificate, where: str) -> _Extensions:
    found = {extension.oid: extension for extension in certificate.extensions}
    for oid, extension in found.items():
        if extension.critical and oid not in _LOOKED_AT:
            raise _broken(f"critical extension {oid.dotted_string} is not known", where)
    return found


def _usage(found: _Extensions, where: str) -> x509.KeyUsage:
    usage = found.get(ExtensionOID.KEY_USAGE)
    if usage is None:
        raise _broken("it has no keyUsage", where)
    assert isinstance(usage.value, x509.KeyUsage)
    return usage.value


def _check_time(link: Link, now: datetime, where: str) -> None:
    if now > link.not_after:
        raise AttestationError(
            "ST-ATTS-607", f"expired {link.not_after.isoformat()}, now is {now.isoformat()}", where
        )
    if now < link.not_before:
        raise AttestationError(
            "ST-ATTS-608",
            f"valid from {link.not_before.isoformat()}, now is {now.isoformat()}",
            where,
        )


def _check_status(found: CertificateStatus, where: str) -> None:
    what = f"its status is {found}"
    match found:
        case CertificateStatus.GOOD:
            return
        case CertificateStatus.REVOKED:
            raise AttestationError("ST-ATTS-610", what, where)
        case CertificateStatus.HOLD:
            raise AttestationError("ST-ATTS-611", what, where)
        case CertificateStatus.UNKNOWN:
            raise AttestationError("ST-ATTS-612", what, where)
        case _:
            raise ValueError(f"unknown status {found!r}")


def _identity(links: Sequence[Link], where: str) -> Identity:
    """Read which device the certificates speak of; rules 6 and 7."""
    leaf, brom = links[_LEAF].certificate, links[_BROM].certificate
    chip = _attribute(brom, NameOID.COMMON_NAME, _BROM_NAME, where)
    pdi = _attribute(brom, NameOID.SERIAL_NUMBER, _BROM_SERIAL, where).lower()
    name = dice.device_name(leaf)
    match = _DEVICE_NAME.fullmatch(name)
    if match is None or match[1] != chip:
        raise _anonymous(f"the leaf names the device {name!r}, its issuer is a {chip}", where)
    firmware = dice.firmware_id(leaf, _spki(_public_key(brom, where)), where)
    return Identity(
        chip=chip,
        pdi=pdi,
        serial=match[2].lower(),
        ueid=str(leaf.serial_number),
        fwid=firmware.digest,
        dice_oid=firmware.oid,
        key=_public_key(leaf, where),
        certificate_serials=tuple(f"{link.certificate.serial_number:x}" for link in links),
        expires=min(link.not_after for link in links),
    )


def _attribute(
    certificate: x509.Certificate, oid: x509.ObjectIdentifier, form: re.Pattern[str], where: str
) -> str:
    """The first group of `form` in the one subject attribute of a kind."""
    values = [attribute.value for attribute in certificate.subject.get_attributes_for_oid(oid)]
    match values:
        case [str() as value] if (found := form.fullmatch(value)) is not None:
            return found[1]
        case _:
            what = f"the BROM certificate's subject has {oid.dotted_string} {values}"
            raise _anonymous(what, where)


def _malformed(what: str, where: str) -> AttestationError:
    return AttestationError("ST-ATTS-605", what, where)


def _broken(what: str, where: str) -> AttestationError:
    return AttestationError("ST-ATTS-606", what, where)


def _anonymous(what: str, where: str) -> AttestationError:
    return AttestationError("ST-ATTS-614", what, where)
