# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Synthetic devices with certificates and reports of NVIDIA's form; every field can be forged.

Nothing here uses the parsers under test: DER and SPDM are written out by hand.
"""

import dataclasses
import functools
import hashlib
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import NameOID, ObjectIdentifier

from securetrain.evidence.gpu.report import DeviceState, verify_device
from securetrain.evidence.node_evidence import DeviceEvidence, DeviceKind
from tests.identity.worlds import certificate, usage

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)
START = datetime(2021, 1, 1, tzinfo=UTC)
END = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
NONCE = hashlib.sha256(b"nonce").digest()
FWID = hashlib.sha384(b"firmware").digest()
COMPOSITE = ObjectIdentifier("2.23.133.5.4.1")
TCB_INFO = ObjectIdentifier("2.23.133.5.4.1.1")
DEVICE_INFO = ObjectIdentifier("1.3.6.1.4.1.412.274.1")
SHA256_OID = bytes.fromhex("0609608648016503040201")
SHA384_OID = bytes.fromhex("0609608648016503040202")
ROLES = ("leaf", "brom", "ica", "family", "root")


@functools.cache
def key(name: str) -> ec.EllipticCurvePrivateKey:
    """A key of this run, the same for the same name."""
    return ec.generate_private_key(ec.SECP384R1())


def spki(private: ec.EllipticCurvePrivateKey) -> bytes:
    return private.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def roots() -> frozenset[str]:
    return frozenset({hashlib.sha256(spki(key("root"))).hexdigest()})


# DER.


def der(tag: int, *content: bytes) -> bytes:
    body = b"".join(content)
    if len(body) < 0x80:
        return bytes([tag, len(body)]) + body
    size = (len(body).bit_length() + 7) // 8
    return bytes([tag, 0x80 | size]) + len(body).to_bytes(size, "big") + body


def fwid_der(digest: bytes, oid: bytes = SHA384_OID) -> bytes:
    return der(0x30, oid, der(0x04, digest))


def composite(device: bytes, digest: bytes, version: int = 1, oid: bytes = SHA384_OID) -> bytes:
    """CompositeDeviceID of Hopper and LS10."""
    return der(0x30, der(0x02, bytes([version])), device, fwid_der(digest, oid))


def tcb_info(
    *fwids: bytes, flags: bytes | None = b"\x80\x00\x00\x01", model: str = "GB100"
) -> bytes:
    """DiceTcbInfo of Blackwell; with the bit "not configured", as on genuine GPUs."""
    parts = [
        der(0x80, b"NVIDIA"),
        der(0x81, model.encode()),
        der(0x82, b"01"),
        der(0x83, b"\x01"),
        der(0x84, b"\x00"),
        der(0x85, b"\x00"),
    ]
    if fwids:
        parts.append(der(0xA6, *fwids))
    if flags is not None:
        parts.append(der(0x87, b"\x00", flags))
    return der(0x30, *parts, der(0x88, b"\xc0"), der(0x89, b"\x00"))


# Certificates.


@dataclass(frozen=True, kw_only=True)
class Spec:
    """What one certificate shall say."""

    common_name: str
    private: ec.EllipticCurvePrivateKey
    number: str | None = None
    """serialNumber of the subject."""
    serial: int = 7
    ca: bool | None = True
    """None: no basicConstraints."""
    critical: bool = True
    path_length: int | None = None
    usage: tuple[str, ...] | None = ("key_cert_sign",)
    not_before: datetime = START
    not_after: datetime = END
    extensions: tuple[tuple[x509.ExtensionType, bool], ...] = ()
    hash: Any = field(default_factory=hashes.SHA384)
    public: Any = None
    """Stands in for the public key of `private`."""
    signer: ec.EllipticCurvePrivateKey | None = None
    """Signs in place of the issuer."""
    issuer: x509.Name | None = None

    def name(self) -> x509.Name:
        attributes = [x509.NameAttribute(NameOID.COMMON_NAME, self.common_name)]
        if self.number is not None:
            attributes.append(x509.NameAttribute(NameOID.SERIAL_NUMBER, self.number))
        return x509.Name(attributes)

    def issued_by(self, issuer: "Spec") -> bytes:
        limits = x509.BasicConstraints(bool(self.ca), self.path_length)
        signed = certificate(
            self.name(),
            self.issuer or issuer.name(),
            self.public or self.private.public_key(),
            self.signer or issuer.private,
            (self.not_before, self.not_after),
            None if self.ca is None else (limits, self.critical),
            None if self.usage is None else (usage(*self.usage), True),
            *self.extensions,
            serial=self.serial,
            digest=self.hash,
            ecdsa_deterministic=True,
        )
        return signed.public_bytes(Encoding.DER)


def device_info(text: str) -> tuple[x509.ExtensionType, bool]:
    name = x509.OtherName(DEVICE_INFO, der(0x0C, text.encode()))
    return x509.SubjectAlternativeName([name]), False


def dice(oid: ObjectIdentifier, value: bytes) -> tuple[x509.ExtensionType, bool]:
    return x509.UnrecognizedExtension(oid, value), False


# Reports.


def block(
    index: int,
    value: bytes,
    *,
    specification: int = 1,
    kind: int = 1,
    size: int | None = None,
    value_size: int | None = None,
) -> bytes:
    """A measurement block; `index` counts from 0, as RIMs do."""
    value_size = len(value) if value_size is None else value_size
    size = 3 + len(value) if size is None else size
    return struct.pack("<BBHBH", index + 1, specification, size, kind, value_size) + value


def opaque_data(fields: Sequence[tuple[int, bytes]]) -> bytes:
    return b"".join(struct.pack("<HH", kind, len(value)) + value for kind, value in fields)


@dataclass(frozen=True, kw_only=True)
class ReportSpec:
    """What a report shall say."""

    signer: ec.EllipticCurvePrivateKey
    opaque: bytes
    blocks: tuple[bytes, ...]
    nonce: bytes = NONCE
    request: bytes = bytes((0x11, 0xE0, 0x01, 0xFF))
    slot: int = 0
    response: bytes = bytes((0x11, 0x60, 0x00, 0x00))
    count: int | None = None
    record_size: int | None = None
    opaque_size: int | None = None
    signature: bytes | None = None
    tail: bytes = b""

    def unsigned(self) -> bytes:
        record = b"".join(self.blocks)
        count = len(self.blocks) if self.count is None else self.count
        record_size = len(record) if self.record_size is None else self.record_size
        opaque_size = len(self.opaque) if self.opaque_size is None else self.opaque_size
        return b"".join(
            (
                self.request,
                self.nonce,
                bytes([self.slot]),
                self.response,
                bytes([count]),
                record_size.to_bytes(3, "little"),
                record,
                hashlib.sha256(b"responder").digest(),
                opaque_size.to_bytes(2, "little"),
                self.opaque,
            )
        )

    def encode(self) -> bytes:
        message = self.unsigned()
        signature = sign(self.signer, message) if self.signature is None else self.signature
        return message + signature + self.tail


def sign(private: ec.EllipticCurvePrivateKey, message: bytes) -> bytes:
    r, s = decode_dss_signature(private.sign(message, ec.ECDSA(hashes.SHA384())))
    return r.to_bytes(48, "big") + s.to_bytes(48, "big")


# Devices.

GPU_FIELDS: dict[int, bytes] = {
    6: bytes.fromhex("00a5009601000000"),
    15: b"885".ljust(9, b"\0"),
    17: b"G520\0",
    18: b"0200\0",
    3: b"590.12\0",
    4: bytes.fromhex("8001000000000000"),
    11: b"\x55",
    20: FWID,
    21: b"\x55",
    34: b"\x01\x00",
    36: b"\x00\x00",
}
SWITCH_FIELDS: dict[int, bytes] = {6: b"96.10.73.00.01", 25: b"\x01\x00"}


@dataclass(frozen=True)
class Device:
    """A synthetic GPU or switch."""

    pdi: str = "00112233445566aa"
    chip: str = "GH100"
    fwid: bytes = FWID
    fields: Mapping[int, bytes | None] = field(default_factory=dict)
    """Opaque data that differs from the usual; None leaves a field out."""
    certificates: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Changes of certificates, by role."""

    @property
    def kind(self) -> DeviceKind:
        return DeviceKind.SWITCH if self.chip.startswith("LS") else DeviceKind.GPU

    def private(self, role: str) -> ec.EllipticCurvePrivateKey:
        return key(f"{role} {self.chip} {self.pdi}")

    def specs(self) -> dict[str, Spec]:
        """Of all certificates, before the changes."""
        brom = self.private("brom")
        if self.chip.startswith("GB"):
            extension = dice(TCB_INFO, tcb_info(fwid_der(self.fwid), fwid_der(bytes(48))))
        else:
            extension = dice(COMPOSITE, composite(spki(brom), self.fwid))
        engine = "FSP" if self.kind is DeviceKind.SWITCH else "GSP"
        return {
            "leaf": Spec(
                common_name=f"{self.chip} A01 {engine} FMC LF",
                private=self.private("leaf"),
                serial=int.from_bytes(bytes.fromhex(self.pdi), "big") + 1,
                ca=None,
                usage=("digital_signature",),
                extensions=(device_info(f"NVIDIA:{self.chip}:48B02DF44660DA06"), extension),
            ),
            "brom": Spec(
                common_name=f"{self.chip} A01 {engine} BROM",
                number=f"41{self.pdi.upper()}",
                private=brom,
            ),
            "ica": Spec(
                common_name=f"NVIDIA {self.chip} Provisioner ICA 1",
                private=key(f"ica {self.chip}"),
                serial=0xCA,
            ),
            "family": Spec(common_name="NVIDIA GH100 Identity", private=key("family"), serial=0xFA),
            "root": Spec(common_name="NVIDIA Device Identity CA", private=key("root")),
        }

    def chain(self) -> tuple[bytes, ...]:
        specs = {
            role: dataclasses.replace(spec, **self.certificates.get(role, {}))
            for role, spec in self.specs().items()
        }
        issuers = (*ROLES[1:], "root")
        return tuple(
            specs[role].issued_by(specs[issuer])
            for role, issuer in zip(ROLES, issuers, strict=True)
        )

    def measurements(self) -> dict[int, bytes]:
        count = 31 if self.kind is DeviceKind.SWITCH else 64
        return {
            index: hashlib.sha384(f"{self.chip} {index}".encode()).digest()
            for index in range(count)
        }

    def opaque(self) -> bytes:
        if self.kind is DeviceKind.SWITCH:
            usual = SWITCH_FIELDS | {22: bytes.fromhex(self.pdi), 26: bytes(128)}
        elif self.chip.startswith("GB"):
            usual = GPU_FIELDS | {4: bytes.fromhex("a001000000000000")}
        else:
            usual = GPU_FIELDS
        if 20 in usual:
            usual = usual | {20: self.fwid}
        merged = {**usual, **self.fields}
        return opaque_data([(kind, value) for kind, value in merged.items() if value is not None])

    def report_spec(self, **changes: Any) -> ReportSpec:
        values: dict[str, Any] = {
            "signer": self.private("leaf"),
            "opaque": self.opaque(),
            "blocks": tuple(block(index, value) for index, value in self.measurements().items()),
        }
        return ReportSpec(**{**values, **changes})

    def evidence(self, **changes: Any) -> DeviceEvidence:
        return DeviceEvidence(
            kind=self.kind, report=self.report_spec(**changes).encode(), certificates=self.chain()
        )

    def state(self, **changes: Any) -> DeviceState:
        """Verified, so that what is judged later has passed what is judged before."""
        nonce = changes.get("nonce", NONCE)
        return verify(self.evidence(**changes), nonce=nonce)


def verify(evidence: DeviceEvidence, **changes: Any) -> DeviceState:
    return verify_device(evidence, **{"nonce": NONCE, "now": NOW, "roots": roots(), **changes})


# A node.


def gpu_pdi(number: int) -> str:
    return f"{0x1000 + number:016x}"


def switch_pdi(number: int) -> str:
    return f"{0x5000 + number:016x}"


def links_of_gpu(switches: Sequence[str]) -> bytes:
    """18 links, with reversed PDIs; the rest is not used."""
    used = b"".join(bytes.fromhex(pdi)[::-1] for pdi in switches)
    return used * 2 + bytes(144 - 2 * len(used))


def links_of_switch(gpus: Sequence[str]) -> bytes:
    """Eight PDIs, then their ports."""
    return b"".join(map(bytes.fromhex, gpus)).ljust(64, b"\0") + bytes(range(64))


def hgx_gpu(number: int, switches: Sequence[str], **fields: bytes | None) -> Device:
    changed = {int(name.removeprefix("f")): value for name, value in fields.items()}
    usual = {21: b"\xaa", 36: b"\x02\x00", 22: links_of_gpu(switches)}
    return Device(gpu_pdi(number), fields=usual | changed)


def hgx_switch(number: int, gpus: Sequence[str], **fields: bytes | None) -> Device:
    changed = {int(name.removeprefix("f")): value for name, value in fields.items()}
    return Device(switch_pdi(number), "LS_10", fields={26: links_of_switch(gpus)} | changed)


GPUS = tuple(map(gpu_pdi, range(8)))
SWITCHES = tuple(map(switch_pdi, range(4)))


@functools.cache
def hgx() -> tuple[DeviceState, ...]:
    """The verified devices of one board: eight GPUs, four switches."""
    gpus = [hgx_gpu(number, SWITCHES) for number in range(8)]
    switches = [hgx_switch(number, GPUS) for number in range(4)]
    return tuple(device.state() for device in (*gpus, *switches))
