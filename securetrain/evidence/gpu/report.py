# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""One device's evidence, judged: who made this report, when, and what it says.

Rules, in this order:

1. the report has exactly the form of `spdm`;
2. it answers the nonce that was asked (compared in constant time);
3. its certificates lead to a pinned root (`certificates`);
4. the leaf's key signed request and response (ECDSA P-384, SHA-384, r and s of 48 bytes each);
5. the certificates' chip is of the kind that the evidence claims, and its family is known. A
   switch's report is never read as a GPU's;
6. the number of measurements, the form of the DICE extension and the chip id in the report are the
   family's own;
7. what the report says of itself (`opaque`) agrees with the certificates: the firmware (FWID), and
   for a switch the PDI. A GPU's own PDI stands only in the certificate. Old drivers and all
   switches report no FWID; the certificate's then stands alone.

The result is a fact about one device. Whether it is one of ours, in a mode that we accept, and runs
what it should is for `reference`; how the devices of a node belong together is for `topology`.
"""

import hmac
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from securetrain.core.errors import AttestationError
from securetrain.evidence.gpu import dice, opaque
from securetrain.evidence.gpu.certificates import (
    NVIDIA_DEVICE_ROOTS,
    Identity,
    StatusLookup,
    verify_chain,
)
from securetrain.evidence.gpu.opaque import Claims, Mode
from securetrain.evidence.gpu.spdm import COORDINATE_SIZE, Report, parse_report
from securetrain.evidence.node_evidence import DeviceEvidence, DeviceKind
from securetrain.identity import paths


class Architecture(StrEnum):
    """Families of devices."""

    HOPPER = "hopper"
    BLACKWELL = "blackwell"
    LS10 = "ls10"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Family:
    """The properties that all devices of a family share."""

    architecture: Architecture
    kind: DeviceKind
    prefix: str
    """Of the chip's name."""
    dice_oid: str
    measurements: int
    chip_ids: frozenset[int] = frozenset()
    """Architecture bits of the chip id in a GPU's report (Linux, nouveau: `nvkm_device_ctor`)."""


_FAMILIES: Final = (
    _Family(
        architecture=Architecture.HOPPER,
        kind=DeviceKind.GPU,
        prefix="GH1",
        dice_oid=dice.COMPOSITE_DEVICE_ID.dotted_string,
        measurements=64,
        chip_ids=frozenset({0x18}),
    ),
    _Family(
        architecture=Architecture.BLACKWELL,
        kind=DeviceKind.GPU,
        prefix="GB",
        dice_oid=dice.TCB_INFO.dotted_string,
        measurements=64,
        chip_ids=frozenset({0x1A, 0x1B}),
    ),
    _Family(
        architecture=Architecture.LS10,
        kind=DeviceKind.SWITCH,
        prefix="LS_10",
        dice_oid=dice.COMPOSITE_DEVICE_ID.dotted_string,
        measurements=31,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceState:
    """The state of one device whose report has been verified."""

    kind: DeviceKind
    architecture: Architecture
    chip: str
    pdi: str
    """The device, 16 hex digits; the same for ever."""
    serial: str
    """The device in the leaf certificate's name, 16 hex digits."""
    ueid: str
    """Serial number of the leaf certificate in decimal; changes with the firmware."""
    certificate_serials: tuple[str, ...]
    """In hex, leaf first."""
    status_checked: bool
    """Whether somebody was asked about revoked certificates."""
    expires: datetime
    """When the first of the certificates expires."""
    nonce: bytes
    fwid: bytes
    measurements: Mapping[int, bytes]
    """SHA-384 digests by the index that RIMs use (from 0)."""
    claims: Claims
    """What else the device said, signed."""

    @property
    def driver(self) -> str:
        """Version of the driver; empty for a switch."""
        return self.claims.driver

    @property
    def vbios(self) -> str:
        """Version of the VBIOS, ``96.00.A5.00.01``."""
        return self.claims.vbios

    @property
    def mode(self) -> Mode | None:
        """The sharing mode of a GPU; None for a switch."""
        return self.claims.mode

    @property
    def peers(self) -> frozenset[str]:
        """PDIs of the devices behind the links."""
        return self.claims.peers

    def __str__(self) -> str:
        return f"{self.kind} {self.chip} {self.pdi}"


def verify_device(
    evidence: DeviceEvidence,
    *,
    nonce: bytes,
    now: datetime,
    roots: Collection[str] = NVIDIA_DEVICE_ROOTS,
    status: StatusLookup | None = None,
    cache: paths.Links | None = None,
    where: str = "",
) -> DeviceState:
    """Judge the report of one device by itself.

    Args:
        evidence: report and certificates. What it says of the driver is not read.
        nonce: what the device was asked with (`evidence.device_nonce`).
        now: the time of the check, timezone-aware.
        roots: SHA-256 of the SubjectPublicKeyInfo of every accepted root, lower-case hex.
        status: tells revoked certificates; None leaves that unchecked, and the result says so.
        cache: of checked certificates, shared between calls.
        where: names the device in errors; its kind by default.

    Raises:
        AttestationError: ST-ATTS-601 to 619.
    """
    where = where or str(evidence.kind)
    report = parse_report(evidence.report, f"{where}: SPDM report")
    if not hmac.compare_digest(report.nonce, nonce):
        raise AttestationError(
            "ST-ATTS-604",
            f"answers nonce {report.nonce.hex()[:16]}..., {nonce.hex()[:16]}... was asked",
            f"{where}: SPDM report",
        )
    identity = verify_chain(
        evidence.certificates, roots=roots, now=now, status=status, cache=cache, where=where
    )
    _check_signature(report, identity.key, where)
    family = _family(identity, evidence.kind, where)
    claims = _claims(report, family, where)
    _check_same(claims, identity, family, where)
    return DeviceState(
        kind=family.kind,
        architecture=family.architecture,
        chip=identity.chip,
        pdi=identity.pdi,
        serial=identity.serial,
        ueid=identity.ueid,
        certificate_serials=identity.certificate_serials,
        status_checked=status is not None,
        expires=identity.expires,
        nonce=report.nonce,
        fwid=identity.fwid,
        measurements=report.measurements,
        claims=claims,
    )


def _check_signature(report: Report, key: ec.EllipticCurvePublicKey, where: str) -> None:
    r, s = report.signature[:COORDINATE_SIZE], report.signature[COORDINATE_SIZE:]
    signature = encode_dss_signature(int.from_bytes(r, "big"), int.from_bytes(s, "big"))
    try:
        key.verify(signature, report.signed, ec.ECDSA(hashes.SHA384()))
    except InvalidSignature as error:
        raise AttestationError(
            "ST-ATTS-603",
            "the leaf certificate's key did not sign this report",
            f"{where}: SPDM report",
        ) from error


def _family(identity: Identity, kind: DeviceKind, where: str) -> _Family:
    for family in _FAMILIES:
        if identity.chip.startswith(family.prefix):
            break
    else:
        raise _unknown(f"chip {identity.chip} is of no known family", where)
    if family.kind is not kind:
        raise AttestationError(
            "ST-ATTS-615",
            f"sent as evidence of a {kind}, {identity.chip} is a {family.kind}",
            where,
        )
    if identity.dice_oid != family.dice_oid:
        raise _unknown(
            f"DICE extension {identity.dice_oid}, {family.architecture} has {family.dice_oid}",
            where,
        )
    return family


def _claims(report: Report, family: _Family, where: str) -> Claims:
    if sorted(report.measurements) != list(range(family.measurements)):
        raise AttestationError(
            "ST-ATTS-624",
            f"{len(report.measurements)} measurements, {family.architecture} has"
            f" {family.measurements} that are numbered without a gap",
            f"{where}: measurements",
        )
    if family.kind is DeviceKind.SWITCH:
        return opaque.read_switch(report.opaque, where)
    return opaque.read_gpu(report.opaque, where)


def _check_same(claims: Claims, identity: Identity, family: _Family, where: str) -> None:
    """Report and certificates speak of one device and one firmware."""
    if claims.chip_id is not None and claims.chip_id >> 4 not in family.chip_ids:
        raise _unknown(f"chip id {claims.chip_id:#x} is none of {family.architecture}", where)
    if claims.fwid is not None and not hmac.compare_digest(claims.fwid, identity.fwid):
        raise AttestationError(
            "ST-ATTS-613",
            f"FWID {claims.fwid.hex()[:16]}... in the report, {identity.fwid.hex()[:16]}... in the"
            " certificate",
            where,
        )
    if claims.pdi is not None and claims.pdi != identity.pdi:
        raise AttestationError(
            "ST-ATTS-619",
            f"PDI {claims.pdi} in the report, {identity.pdi} in the certificate",
            where,
        )


def _unknown(what: str, where: str) -> AttestationError:
    return AttestationError("ST-ATTS-616", what, where)
