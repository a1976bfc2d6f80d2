# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The profile of an endorsement key's certificate, and of those above it.

Source: TCG EK Credential Profile for TPM Family 2.0, version 2.6, section 3; RFC 5280.

Rules:

1. an endorsement key certificate is no CA's, is marked for this use (EKU 2.23.133.8.1), and its key
   may be used for what such a key does: key encipherment (RSA) or key agreement (ECC);
2. it names the TPM's manufacturer, model and version in the subject alternative name, once each;
3. a critical extension that the profile does not know is a refusal, and so is one that comes twice;
4. what issues certificates says so twice: CA, and keyCertSign.

Only extensions are read here. Names of issuers and subjects are not: makers write some of them in
ways that are not DER (sets that are not sorted), which OpenSSL accepts when it builds the path.
"""

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final

from cryptography.hazmat import asn1
from cryptography.x509 import ObjectIdentifier

from securetrain.core.errors import AttestationError

BASIC_CONSTRAINTS: Final = "2.5.29.19"
KEY_USAGE: Final = "2.5.29.15"
EXTENDED_KEY_USAGE: Final = "2.5.29.37"
ALTERNATIVE_NAME: Final = "2.5.29.17"
CERTIFICATE_POLICIES: Final = "2.5.29.32"
EK_CERTIFICATE: Final = "2.23.133.8.1"
"""tcg-kp-EKCertificate."""
MANUFACTURER: Final = "2.23.133.2.1"
MODEL: Final = "2.23.133.2.2"
VERSION: Final = "2.23.133.2.3"

_CRITICAL: Final = frozenset(
    {
        *(BASIC_CONSTRAINTS, KEY_USAGE, EXTENDED_KEY_USAGE),
        *(ALTERNATIVE_NAME, CERTIFICATE_POLICIES),
    }
)
_KEY_ENCIPHERMENT: Final = 0x20
_KEY_AGREEMENT: Final = 0x08
_CERT_SIGN: Final = 0x04
_DIRECTORY_NAME: Final = b"\xa4"
_SET: Final = b"\x31"
_STRINGS: Final = frozenset({b"\x0c", b"\x13", b"\x16"})
"""UTF8String, PrintableString, IA5String."""
_MAX_TEXT: Final = 64
_VENDOR_ID: Final = re.compile(r"id:([0-9A-Fa-f]{8})")
_TEXT: Final = re.compile(rf"[ -~]{{1,{_MAX_TEXT}}}")


@dataclass(frozen=True, slots=True)
class Identity:
    """A TPM's maker, model and version, in the maker's words."""

    manufacturer: str
    """``id:`` and the TCG vendor id, eight upper-case hex digits."""
    model: str
    version: str


@asn1.sequence
class _Extension:
    oid: ObjectIdentifier
    critical: Annotated[bool, asn1.Default(False)]
    value: bytes


@asn1.sequence
class _Content:
    version: Annotated[int, asn1.Explicit(0)]
    serial: asn1.TLV
    signature: asn1.TLV
    issuer: asn1.TLV
    validity: asn1.TLV
    subject: asn1.TLV
    key: asn1.TLV
    extensions: Annotated[list[_Extension], asn1.Explicit(3)]


@asn1.sequence
class _Certificate:
    """Version 3, without the unique identifiers that RFC 5280 forbids."""

    content: _Content
    algorithm: asn1.TLV
    signature: asn1.BitString


@asn1.sequence
class _BasicConstraints:
    ca: Annotated[bool, asn1.Default(False)]
    path_length: int | None


@asn1.sequence
class _Usages:
    members: list[ObjectIdentifier]


@asn1.sequence
class _Members:
    members: list[asn1.TLV]


@asn1.sequence
class _Attribute:
    kind: ObjectIdentifier
    value: asn1.TLV


def check_endorsement_profile(certificate: bytes, where: str, *, rsa: bool) -> Identity:
    """Judge an endorsement key certificate by its extensions.

    Args:
        certificate: DER.
        where: names it in errors.
        rsa: whether it is for an RSA key.

    Raises:
        AttestationError: ST-ATTS-105 when it is malformed or misses the profile.
    """
    extensions = _extensions(certificate, where)
    for oid, extension in extensions.items():
        if extension.critical and oid not in _CRITICAL:
            raise _bad(f"the critical extension {oid} is not known", where)
    try:
        if _is_authority(extensions):
            raise _bad("is a CA's", where)
        usage = _key_usage(extensions)
        if not usage & (_KEY_ENCIPHERMENT if rsa else _KEY_AGREEMENT) or usage & _CERT_SIGN:
            raise _bad(f"key usage {usage:#04x} is not an endorsement key's", where)
        if EK_CERTIFICATE not in _extended_key_usage(extensions):
            raise _bad(f"no extended key usage {EK_CERTIFICATE}", where)
        return _identity(extensions, where)
    except ValueError as error:
        raise _bad(f"an extension is malformed: {error}", where) from error


def check_authority(certificate: bytes, where: str) -> None:
    """Judge an intermediate certificate by its extensions.

    Raises:
        AttestationError: ST-ATTS-105 when it is malformed, ST-ATTS-107 when it may not issue
            certificates.
    """
    extensions = _extensions(certificate, where)
    try:
        authority, usage = _is_authority(extensions), _key_usage(extensions)
    except ValueError as error:
        raise _bad(f"an extension is malformed: {error}", where) from error
    if not authority or not usage & _CERT_SIGN:
        raise AttestationError(
            "ST-ATTS-107", "issues certificates without being a CA with keyCertSign", where
        )


def _extensions(certificate: bytes, where: str) -> Mapping[str, _Extension]:
    try:
        found = asn1.decode_der(_Certificate, certificate).content.extensions
    except ValueError as error:
        raise _bad(f"not a certificate: {error}", where) from error
    extensions = {one.oid.dotted_string: one for one in found}
    if len(extensions) < len(found):
        raise _bad("an extension comes twice", where)
    return extensions


def _is_authority(extensions: Mapping[str, _Extension]) -> bool:
    extension = extensions.get(BASIC_CONSTRAINTS)
    return extension is not None and asn1.decode_der(_BasicConstraints, extension.value).ca


def _key_usage(extensions: Mapping[str, _Extension]) -> int:
    """The first eight bits; the ninth (decipherOnly) is nobody's here."""
    extension = extensions.get(KEY_USAGE)
    if extension is None:
        return 0
    return int.from_bytes(asn1.decode_der(asn1.BitString, extension.value).as_bytes()[:1], "big")


def _extended_key_usage(extensions: Mapping[str, _Extension]) -> frozenset[str]:
    extension = extensions.get(EXTENDED_KEY_USAGE)
    if extension is None:
        return frozenset()
    usages = asn1.decode_der(_Usages, _sequence(extension.value)).members
    return frozenset(one.dotted_string for one in usages)


def _identity(extensions: Mapping[str, _Extension], where: str) -> Identity:
    """The TPM's attributes in the subject alternative name's directory name."""
    attributes: dict[str, str] = {}
    for kind, text in _directory_attributes(extensions.get(ALTERNATIVE_NAME)):
        if kind in attributes:
            raise _bad(f"{kind} comes twice in the alternative name", where)
        attributes[kind] = text
    missing = [kind for kind in (MANUFACTURER, MODEL, VERSION) if kind not in attributes]
    if missing:
        raise _bad(f"the alternative name lacks {', '.join(missing)}", where)
    vendor = _VENDOR_ID.fullmatch(attributes[MANUFACTURER])
    if vendor is None:
        raise _bad(f"the manufacturer {attributes[MANUFACTURER]!r} is no vendor id", where)
    # A fleet has a few models of TPM: their texts are kept once.
    texts = f"id:{vendor[1].upper()}", attributes[MODEL], attributes[VERSION]
    return Identity(*map(sys.intern, texts))


def _directory_attributes(extension: _Extension | None) -> list[tuple[str, str]]:
    if extension is None:
        return []
    (names,) = _members(extension.value)
    found = []
    for name in _members(bytes(names.data)):
        if name.tag_bytes != _DIRECTORY_NAME:
            continue
        (directory,) = _members(bytes(name.data))
        for relative in _members(bytes(directory.data)):
            if relative.tag_bytes != _SET:
                raise ValueError("a relative distinguished name that is no set")
            found += [_attribute(one) for one in _members(bytes(relative.data))]
    return found


def _attribute(element: asn1.TLV) -> tuple[str, str]:
    attribute = element.parse(_Attribute)
    text = bytes(attribute.value.data).decode("ascii", "replace")
    if attribute.value.tag_bytes not in _STRINGS or not _TEXT.fullmatch(text):
        raise ValueError(f"{attribute.kind.dotted_string} is not 1 to {_MAX_TEXT} characters")
    return attribute.kind.dotted_string, text


def _members(content: bytes) -> list[asn1.TLV]:
    """The elements that follow one another in `content`.

    Sets are read like sequences, because makers do not sort them.
    """
    return asn1.decode_der(_Members, _sequence(_sequence(content))).members


def _sequence(content: bytes) -> bytes:
    """`content` as a SEQUENCE: an OCTET STRING with the other tag."""
    return b"\x30" + asn1.encode_der(content)[1:]


def _bad(what: str, where: str) -> AttestationError:
    return AttestationError("ST-ATTS-105", what, where)
