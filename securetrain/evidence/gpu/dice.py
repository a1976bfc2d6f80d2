# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Read the certificate of a device's firmware: device and firmware (DICE, SPDM).

Sources: TCG DICE Attestation Architecture 1.1, section 6.1 (DiceTcbInfo); TCG Implicit Identity
Based Device Attestation 1.0, appendix (CompositeDeviceID, before DICE defined TcbInfo); DMTF
DSP0274 1.2, 10.7.2.1 (DMTFOtherName).

Hopper GPUs and LS10 switches carry the composite device id, Blackwell GPUs the TcbInfo. Its first
FWID is the firmware that holds the key; NVIDIA leaves the others zero.
"""

from dataclasses import dataclass
from typing import Annotated, Final

from cryptography import x509
from cryptography.hazmat import asn1
from cryptography.x509.oid import ObjectIdentifier

from securetrain.core.errors import AttestationError

COMPOSITE_DEVICE_ID: Final = ObjectIdentifier("2.23.133.5.4.1")
TCB_INFO: Final = ObjectIdentifier("2.23.133.5.4.1.1")
_DEVICE_INFO: Final = ObjectIdentifier("1.3.6.1.4.1.412.274.1")
_SHA384: Final = ObjectIdentifier("2.16.840.1.101.3.4.2.2")
_FWID_SIZE: Final = 48
_VERSION: Final = 1
_INSECURE: Final = {0x40: "not secure", 0x20: "recovery", 0x10: "debug"}
"""OperationalFlags, bits 1 to 3 of the first octet. Bit 0, not configured, is set on genuine GPUs;
the later bits tell what a TCB is for."""


@asn1.sequence
class _Fwid:
    algorithm: ObjectIdentifier
    digest: bytes


@asn1.sequence
class _CompositeDeviceId:
    version: int
    device: asn1.TLV
    """SubjectPublicKeyInfo."""
    fwid: _Fwid


@asn1.sequence
class _TcbInfo:
    vendor: Annotated[str | None, asn1.Implicit(0)]
    model: Annotated[str | None, asn1.Implicit(1)]
    version: Annotated[str | None, asn1.Implicit(2)]
    svn: Annotated[int | None, asn1.Implicit(3)]
    layer: Annotated[int | None, asn1.Implicit(4)]
    index: Annotated[int | None, asn1.Implicit(5)]
    fwids: Annotated[list[_Fwid] | None, asn1.Implicit(6)]
    flags: Annotated[asn1.BitString | None, asn1.Implicit(7)]
    vendor_info: Annotated[bytes | None, asn1.Implicit(8)]
    type: Annotated[bytes | None, asn1.Implicit(9)]


@dataclass(frozen=True, slots=True)
class FirmwareId:
    """Digest of the firmware that holds a certificate's key."""

    oid: str
    """Of the extension that told it."""
    digest: bytes


def device_name(leaf: x509.Certificate) -> str:
    """``vendor:product:serial`` of the leaf's alternative name.

    Raises:
        ValueError: when there is not exactly one.
    """
    names = [
        name.value
        for extension in leaf.extensions
        if isinstance(extension.value, x509.SubjectAlternativeName)
        for name in extension.value
        if isinstance(name, x509.OtherName) and name.type_id == _DEVICE_INFO
    ]
    if len(names) != 1:
        raise ValueError(f"{len(names)} DMTF device names, not one")
    return asn1.decode_der(str, names[0])


def firmware_id(leaf: x509.Certificate, issuer_spki: bytes, where: str) -> FirmwareId:
    """The FWID of a leaf.

    Args:
        leaf: the certificate of the firmware's key.
        issuer_spki: SubjectPublicKeyInfo of the boot ROM's key.
        where: names the device in errors.

    Raises:
        AttestationError: ST-ATTS-614 when the leaf has none, both forms, or a wrong one;
            ST-ATTS-618 when it says that the firmware is not to be trusted.
        ValueError: when the extension is not DER of its form.
    """
    found = {
        extension.oid: extension.value.value
        for extension in leaf.extensions
        if isinstance(extension.value, x509.UnrecognizedExtension)
    }
    old, new = found.get(COMPOSITE_DEVICE_ID), found.get(TCB_INFO)
    if (old is None) == (new is None):
        raise _bad("a leaf must have one DICE extension", where)
    if old is not None:
        return FirmwareId(COMPOSITE_DEVICE_ID.dotted_string, _composite(old, issuer_spki, where))
    assert new is not None
    return FirmwareId(TCB_INFO.dotted_string, _tcb(new, where))


def _composite(der: bytes, issuer_spki: bytes, where: str) -> bytes:
    composite = asn1.decode_der(_CompositeDeviceId, der)
    if composite.version != _VERSION:
        raise _bad(f"composite device id of version {composite.version}", where)
    issuer = asn1.decode_der(asn1.TLV, issuer_spki)
    if (composite.device.tag_bytes, composite.device.data) != (issuer.tag_bytes, issuer.data):
        raise _bad("the composite device id holds another key than the issuer's", where)
    return _digest(composite.fwid, where)


def _tcb(der: bytes, where: str) -> bytes:
    tcb = asn1.decode_der(_TcbInfo, der)
    if not tcb.fwids:
        raise _bad("the TcbInfo has no FWID", where)
    flags = tcb.flags.as_bytes() if tcb.flags is not None else b""
    set_ = [name for bit, name in _INSECURE.items() if flags[:1] and flags[0] & bit]
    if set_:
        raise AttestationError("ST-ATTS-618", f"the device's TcbInfo says {', '.join(set_)}", where)
    return _digest(tcb.fwids[0], where)


def _digest(fwid: _Fwid, where: str) -> bytes:
    if fwid.algorithm != _SHA384 or len(fwid.digest) != _FWID_SIZE:
        raise _bad(
            f"FWID of {fwid.algorithm.dotted_string} with {len(fwid.digest)} bytes, not SHA-384",
            where,
        )
    return fwid.digest


def _bad(what: str, where: str) -> AttestationError:
    return AttestationError("ST-ATTS-614", what, where)
