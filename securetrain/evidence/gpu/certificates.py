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

Rules 1 to 4 are judged by `identity.paths`, which also remembers what no time changes; a status is
asked for every time.
"""

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final, TypeAlias

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtensionOID, NameOID

from securetrain.core.errors import AttestationError
from securetrain.evidence.gpu import dice
from securetrain.identity import paths

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
_RULES: Final = paths.Rules(
    name="NVIDIA",
    scheme=paths.Scheme.ECDSA_P384_SHA384,
    limit=CERTIFICATE_LIMIT,
    understood=frozenset(
        {
            ExtensionOID.BASIC_CONSTRAINTS,
            ExtensionOID.KEY_USAGE,
            ExtensionOID.SUBJECT_ALTERNATIVE_NAME,
        }
    ),
)


class CertificateStatus(StrEnum):
    """An issuer's word on a certificate (RFC 6960); a hold is a revocation that may end."""

    GOOD = "good"
    REVOKED = "revoked"
    HOLD = "hold"
    UNKNOWN = "unknown"


StatusLookup: TypeAlias = Callable[[x509.Certificate, x509.Certificate], CertificateStatus]
"""Status of a certificate, given also its issuer's. May refuse by itself."""


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
    cache: paths.Links | None = None,
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
    if len(certificates) != CHAIN_LENGTH:
        raise _malformed(f"{len(certificates)} certificates, not {CHAIN_LENGTH}", where)
    line = list(zip(_ROLES, certificates, strict=True))
    try:
        links = paths.verify_line(line, roots, now, _RULES, cache)
    except paths.BadPathError as bad:
        place = f"{where}: {_ROLES[bad.position]} certificate"
        raise _refusal(bad, place) from bad
    if status is not None:
        for position in range(_ROOT - 1, _LEAF, -1):
            found = status(links[position].certificate, links[position + 1].certificate)
            _check_status(found, f"{where}: {_ROLES[position]} certificate")
    try:
        return _identity(links, where)
    except paths.UNREADABLE as error:
        raise _anonymous(str(error), where) from error


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


def _identity(links: Sequence[paths.Link], where: str) -> Identity:
    """Read which device the certificates speak of; rules 6 and 7."""
    leaf, brom = links[_LEAF].certificate, links[_BROM].certificate
    chip = _attribute(brom, NameOID.COMMON_NAME, _BROM_NAME, where)
    pdi = _attribute(brom, NameOID.SERIAL_NUMBER, _BROM_SERIAL, where).lower()
    name = dice.device_name(leaf)
    match = _DEVICE_NAME.fullmatch(name)
    if match is None or match[1] != chip:
        raise _anonymous(f"the leaf names the device {name!r}, its issuer is a {chip}", where)
    firmware = dice.firmware_id(leaf, _spki(_public_key(brom)), where)
    return Identity(
        chip=chip,
        pdi=pdi,
        serial=match[2].lower(),
        ueid=str(leaf.serial_number),
        fwid=firmware.digest,
        dice_oid=firmware.oid,
        key=_public_key(leaf),
        certificate_serials=tuple(f"{link.certificate.serial_number:x}" for link in links),
        expires=min(link.not_after for link in links),
    )


def _public_key(certificate: x509.Certificate) -> ec.EllipticCurvePublicKey:
    key = certificate.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey), "the rules of the line say so"
    return key


def _spki(key: ec.EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


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


def _refusal(bad: paths.BadPathError, where: str) -> AttestationError:
    match bad.flaw:
        case paths.Flaw.MALFORMED:
            code = "ST-ATTS-605"
        case paths.Flaw.EXPIRED:
            code = "ST-ATTS-607"
        case paths.Flaw.NOT_YET:
            code = "ST-ATTS-608"
        case paths.Flaw.UNPINNED:
            code = "ST-ATTS-609"
        case _:
            code = "ST-ATTS-606"
    return AttestationError(code, bad.what, where)


def _malformed(what: str, where: str) -> AttestationError:
    return AttestationError("ST-ATTS-605", what, where)


def _anonymous(what: str, where: str) -> AttestationError:
    return AttestationError("ST-ATTS-614", what, where)
