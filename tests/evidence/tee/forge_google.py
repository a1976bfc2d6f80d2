# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A Google of our own: its CAs, what it endorses, and the confidential VMs that it starts."""

from dataclasses import dataclass, field
from functools import cache
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding
from cryptography.hazmat.primitives.serialization import Encoding

from securetrain.evidence.node_evidence import (
    GoogleEvidence,
    TeeEvidence,
    TeeKind,
    TpmEvidence,
    report_data,
)
from securetrain.evidence.tee.google import INSTANCE_INFO, GoogleReference, key_digest
from securetrain.evidence.tpm.constants import Algorithm
from securetrain.evidence.tpm.structures import PublicArea
from securetrain.testing.bootlog import Boot, Event, encode_log
from tests.evidence.tee import forge_intel as intel
from tests.evidence.tee.forge import short_rsa_key, tlv
from tests.evidence.tee.forge_amd import MEASUREMENT, AmdWorld, good_leaf
from tests.evidence.tpm import forge
from tests.identity.worlds import usage

__all__ = [
    "INSTANCE_INFO",
    "MEASUREMENT",
    "Boot",
    "Event",
    "GoogleReference",
    "encode_log",
    "short_rsa_key",
]

VM = "8642097531864209753"
PROJECT, ZONE, NAME = "training-project", "europe-west4-a", "node-0"
MRTD = bytes(intel.Td().mr_td)
VCPUS, MEMORY, SVN = 8, 32, 3
TECHNOLOGIES = {"none": 0, "sev": 1, "tdx": 3, "sev-snp": 4}
AMD = AmdWorld()


@cache
def root() -> forge.Authority:
    return forge.Authority("EK/AK CA Root")


@cache
def intermediate() -> forge.Authority:
    return forge.Authority("EK/AK CA Intermediate", parent=root())


@cache
def tcb_root() -> forge.Authority:
    return forge.Authority("GCE-cc-tcb-root", key=short_rsa_key("tcb-root"))


# The wire format of protocol buffers.


def varint(value: int) -> bytes:
    found = b""
    while value > 0x7F:
        found += bytes([value & 0x7F | 0x80])
        value >>= 7
    return found + bytes([value])


def number(field_number: int, value: int) -> bytes:
    return varint(field_number << 3) + varint(value)


def text(field_number: int, value: bytes) -> bytes:
    return varint(field_number << 3 | 2) + varint(len(value)) + value


def snp_golden(svn=SVN, measurements=None, more: bytes = b"") -> bytes:
    found: dict[int, bytes] = (
        {VCPUS: MEASUREMENT, 2: b"\x02" * 48} if measurements is None else measurements
    )
    entries = (text(2, number(1, count) + text(2, value)) for count, value in found.items())
    return number(1, svn) + b"".join(entries) + more


def tdx_golden(svn=SVN, measurements=None, more: bytes = b"") -> bytes:
    found: dict[int, bytes] = (
        {MEMORY: MRTD, 64: b"\x04" * 48} if measurements is None else measurements
    )
    entries = (text(2, number(1, gib) + text(3, value)) for gib, value in found.items())
    return number(1, svn) + b"".join(entries) + more


def signer(**how: Any) -> x509.Certificate:
    signs = how.pop("usage", usage("digital_signature"))
    authority = how.pop("authority", None) or tcb_root()
    extensions = {"usage": (signs, True), **how.pop("extensions", {})}
    key = how.pop("key", None) or short_rsa_key("tcb-signer")
    how = {"pss": authority is tcb_root(), **how}
    return authority.issue(
        key.public_key(), subject="GCE-cc-tcb-signer", extensions=extensions, **how
    )


@cache
def good_signer() -> bytes:
    return signer().public_bytes(Encoding.DER)


def golden(**changes: bytes) -> bytes:
    """VMGoldenMeasurement; an empty field is left out."""
    fields = {
        "timestamp": number(1, 1_750_000_000) + number(2, 5),
        "cl_spec": b"",
        "commit": b"\xc0" * 20,
        "cert": good_signer(),
        "digest": b"\xd1" * 48,
        "ca_bundle": b"",
        "sev_snp": snp_golden(),
        "tdx": tdx_golden(),
        **changes,
    }
    places = {name: place for place, name in enumerate(fields, 1) if place <= 8}
    found = b"".join(text(places[n], v) for n, v in fields.items() if v and n in places)
    return number(2, 700_000_000) + found + fields.get("more", b"")


def endorsement(signed: bytes | None = None, key=None, **changes: bytes) -> bytes:
    """VMLaunchEndorsement."""
    signed = golden(**changes) if signed is None else signed
    pss = padding.PSS(padding.MGF1(hashes.SHA256()), 32)
    signature = (key or short_rsa_key("tcb-signer")).sign(signed, pss, hashes.SHA256())
    return text(1, signed) + text(2, signature)


@cache
def good_endorsement() -> bytes:
    return endorsement()


# Instances.


def der_int(value: int):
    return tlv(2, value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))


def instance_info(
    *,
    zone=ZONE,
    project_number=123_456_789_012,
    project=PROJECT,
    vm=int(VM),
    name=NAME,
    properties=None,
) -> bytes:
    said = (tlv(0xA0, der_int(1)), tlv(0xA1, b"\1\1\xff"), tlv(0xA2, b"\1\1\xff"))
    said = said if properties is None else properties
    body = (
        *(tlv(12, zone.encode()), der_int(project_number), tlv(12, project.encode())),
        *(der_int(vm), tlv(12, name.encode())),
    )
    return tlv(0x30, *body, *([tlv(0xA0, tlv(0x30, *said))] if said else []))


def certify(public: PublicArea, authority=None, info=None, **how: Any) -> bytes:
    """Google's certificate of a TPM's attestation key, DER."""
    info = instance_info() if info is None else info
    named = x509.UnrecognizedExtension(INSTANCE_INFO, info)
    extensions = {
        "usage": (how.pop("usage", usage("digital_signature")), True),
        "basic": (x509.BasicConstraints(how.pop("ca", False), None), True),
        **({"instance": (named, False)} if info else {}),
        **how.pop("extensions", {}),
    }
    made = (authority or intermediate()).issue(
        how.pop("key", None) or public.key(), subject=VM, extensions=extensions, **how
    )
    return made.public_bytes(Encoding.DER)


def host_info(kind: str) -> bytes:
    return b"GCE NonHostInfo\0" + bytes([TECHNOLOGIES[kind]]).ljust(16, b"\0")


def boot(kind: str, **changes: Any) -> Boot:
    return Boot(host=host_info(kind), **changes)


def reference(**changes: Any) -> GoogleReference:
    return GoogleReference(
        **{
            "roots": (root().pem,),
            "intermediates": (intermediate().pem,),
            "endorsement_roots": (tcb_root().pem,),
            "endorsements": (good_endorsement(),),
            "projects": (PROJECT,),
            **changes,
        }
    )


@dataclass
class Vm:
    """A confidential VM: its virtual TPM, with the key that Google certified."""

    kind: str = "sev-snp"
    tpm: forge.Tpm = field(
        default_factory=lambda: forge.Tpm(ak=forge.rsa_attestation_template(Algorithm.RSASSA))
    )

    def __post_init__(self):
        self.certificate = certify(self.tpm.ak.public)

    def digest(self, certificate: bytes = b"") -> bytes:
        return key_digest(x509.load_der_x509_certificate(certificate or self.certificate))

    def say(
        self, binding: bytes, vtpm: TpmEvidence, certificate: bytes = b"", **changes: Any
    ) -> TeeEvidence:
        """The CPU's report for one exchange, with the TPM's part."""
        wanted = report_data(binding, self.digest(certificate))
        google = GoogleEvidence(ak_certificate=certificate or self.certificate, vtpm=vtpm)
        fields = {"report_data": wanted, **changes}
        if self.kind == "tdx":
            return TeeEvidence(kind=TeeKind.TDX, report=intel.quote(td=fields), google=google)
        return TeeEvidence(
            kind=TeeKind.SEV_SNP,
            report=AMD.report(**fields),
            certificates=(good_leaf(AMD),),
            google=google,
        )
