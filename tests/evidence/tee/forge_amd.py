# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""An AMD of our own: chips of every product, reports of every version, both kinds of keys."""

from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from securetrain.core.errors import AttestationError
from securetrain.evidence.tee.snp import verify_snp
from securetrain.evidence.tee.snp_report import Product, SigningKey
from securetrain.evidence.tee.snp_rules import SnpReference, Tcb
from securetrain.identity import paths
from tests import vocabulary
from tests.evidence.tee import forge
from tests.evidence.tee.forge import NOW, certificate, der, der_int, p384_key, rsa_key, tlv
from tests.identity.worlds import custom

OID = "1.3.6.1.4.1.3704.1."
PROVIDER = "CN=cloud.example"
REPORT_DATA = bytes(range(64))
MEASUREMENT = b"\x4d" * 48
CHIP = bytes(range(100, 164))
TURIN_CHIP = bytes(range(8))
SPLS = {
    Product.MILAN: (1, 2, 4, 5, 6, 7, 3, 8),
    Product.GENOA: (1, 2, 4, 5, 6, 7, 3, 8),
    Product.TURIN: (9, 1, 2, 3, 5, 6, 7, 8),
}
TCBS = {
    Product.MILAN: bytes.fromhex("0400000000001dd9"),
    Product.GENOA: bytes.fromhex("0a00000000001754"),
    Product.TURIN: bytes.fromhex("0101000500000049"),
}
CPUS = {
    Product.MILAN: (0x19, 0x01, 1),
    Product.GENOA: (0x19, 0x11, 1),
    Product.TURIN: (0x1A, 0x02, 1),
}
POLICY = 1 << 17
DEBUG = 1 << 19
SMT = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Guest:
    """The fields of a report; `raw` overrides bytes by offset before it is signed."""

    version: int = 5
    guest_svn: int = 3
    policy: int = POLICY
    family_id: bytes = b"\x11" * 16
    image_id: bytes = b"\x22" * 16
    vmpl: int = 0
    algorithm: int = 1
    current_tcb: bytes = b""
    platform_info: int = 0b100001
    flags: int | None = None
    report_data: bytes = REPORT_DATA
    measurement: bytes = MEASUREMENT
    host_data: bytes = bytes(32)
    id_key_digest: bytes = bytes(48)
    author_key_digest: bytes = bytes(48)
    reported_tcb: bytes = b""
    cpu: tuple[int, int, int] | None = None
    chip_id: bytes | None = None
    launch_tcb: bytes = b""
    mitigations: tuple[int, int] = (0, 0)
    raw: dict[int, bytes] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class AmdWorld:
    """One node with SEV-SNP, and the verifier's side of it."""

    product: Product = Product.MILAN
    key: SigningKey = SigningKey.VCEK

    @property
    def tcb(self) -> bytes:
        return TCBS[self.product]

    @property
    def chip(self) -> bytes:
        return TURIN_CHIP if self.product is Product.TURIN else CHIP

    @property
    def issuer(self) -> str:
        return f"SEV-{'VLEK-' if self.key is SigningKey.VLEK else ''}{self.product}"

    @property
    def roots(self):
        return {p: paths.spki_sha256(AmdWorld(product=p).ark()) for p in Product}

    def ark(self, **options) -> x509.Certificate:
        name = f"ARK-{self.product}"
        return _ca(name, name, "ark", "ark", **options) if options else _ark(name)

    def ask(self, **options) -> x509.Certificate:
        """The intermediate of this world's kind of key."""
        return _ca(self.issuer, f"ARK-{self.product}", "ask", "ark", path_length=0, **options)

    def extensions(self, **changes):
        """Suffixes below AMD's arc, and values."""
        values = {"1": der_int(0), "2": tlv(0x16, str(self.product).encode())}
        values |= {
            f"3.{n}": der_int(byte) for n, byte in zip(SPLS[self.product], self.tcb, strict=True)
        }
        if self.key is SigningKey.VCEK:
            values["4"] = self.chip
        else:
            values["5"] = tlv(0x16, PROVIDER.encode())
        values |= changes
        return [(custom(OID + suffix, value), False) for suffix, value in values.items() if value]

    def leaf(
        self, *, subject="", issuer="", key=None, signer=None, changes=None, more=(), **options
    ) -> x509.Certificate:
        return certificate(
            subject or f"SEV-{self.key.name}",
            issuer or self.issuer,
            key or p384_key("vek"),
            signer or rsa_key("ask"),
            extensions=[*self.extensions(**(changes or {})), *more],
            **options,
        )

    def report(self, guest=None, *, key=None, **changes) -> bytes:
        """A signed report."""
        return sign(self.body(guest, **changes), key or p384_key("vek"))

    def body(self, guest=None, **changes) -> bytes:
        """What a report's signature covers."""
        guest = replace(guest or Guest(), **changes)
        flags = self.key << 2 if guest.flags is None else guest.flags
        if guest.flags is None and any(guest.author_key_digest):
            flags |= 1
        cpu = bytes(guest.cpu or CPUS[self.product]) if guest.version >= 3 else bytes(3)
        chip = self.chip.ljust(64, b"\0") if guest.chip_id is None else guest.chip_id
        firmware = bytes([3, 55, 1, 0])
        vectors = b"".join(v.to_bytes(8, "little") for v in guest.mitigations)
        parts = [
            guest.version.to_bytes(4, "little"),
            guest.guest_svn.to_bytes(4, "little"),
            guest.policy.to_bytes(8, "little"),
            guest.family_id,
            guest.image_id,
            guest.vmpl.to_bytes(4, "little"),
            guest.algorithm.to_bytes(4, "little"),
            guest.current_tcb or self.tcb,
            guest.platform_info.to_bytes(8, "little"),
            flags.to_bytes(4, "little"),
            bytes(4),
            guest.report_data,
            guest.measurement,
            guest.host_data,
            guest.id_key_digest,
            guest.author_key_digest,
            b"\x33" * 32,
            b"\xff" * 32,
            guest.reported_tcb or self.tcb,
            cpu,
            bytes(21),
            chip,
            self.tcb,
            firmware,
            firmware,
            guest.launch_tcb or self.tcb,
            vectors if guest.version >= 5 else bytes(16),
            bytes(152),
        ]
        body = bytearray(b"".join(parts))
        assert len(body) == 0x2A0
        for offset, value in guest.raw.items():
            body[offset : offset + len(value)] = value
        return bytes(body)

    def crl(self, serials=(), **options) -> bytes:
        return forge.revocation_list(f"ARK-{self.product}", rsa_key("ark"), serials, **options)

    def reference(self, **changes) -> SnpReference:
        reference = SnpReference(
            min_tcb={self.product: Tcb()},
            measurements=(MEASUREMENT.hex(),),
            chip_ids=(self.chip.hex(),),
            providers=(PROVIDER,),
            require_crl=False,
        )
        return msgspec.structs.replace(reference, **changes)

    def verify(self, report=None, **changes) -> Any:
        """`verify_snp`; everything that is not named is good."""
        arguments: dict[str, Any] = {
            "certificates": None,
            "reference": self.reference(**changes.pop("rules", {})),
            "report_data": REPORT_DATA,
            "now": NOW,
            "vendor_chain": None,
            "crl": None,
            "roots": self.roots,
        } | changes
        certificates = arguments.pop("certificates")
        if certificates is None:
            certificates = [good_leaf(self)]
        if arguments["vendor_chain"] is None:
            arguments["vendor_chain"] = good_chain(self)
        return verify_snp(self.report() if report is None else report, certificates, **arguments)


def sign(body: bytes, key: ec.EllipticCurvePrivateKey) -> bytes:
    """Body and signature as the firmware writes them."""
    r, s = decode_dss_signature(key.sign(body, ec.ECDSA(hashes.SHA384())))
    return body + r.to_bytes(72, "little") + s.to_bytes(72, "little") + bytes(512 - 144)


@cache
def good_leaf(world: AmdWorld) -> bytes:
    return der(world.leaf())


@cache
def good_chain(world: AmdWorld) -> tuple[bytes, ...]:
    return (der(world.ask()), der(world.ark()))


@cache
def _ark(name) -> x509.Certificate:
    return _ca(name, name, "ark", "ark")


def _ca(subject, issuer, key, signer, **options) -> x509.Certificate:
    return certificate(subject, issuer, rsa_key(key), rsa_key(signer), **({"ca": True} | options))


def refused(code, where="", *, world=None, text="", report=None, **changes):
    """What is named makes `AmdWorld.verify` refuse with this code."""
    error = vocabulary.refused(
        AttestationError, code, lambda: (world or AmdWorld()).verify(report, **changes)
    )
    assert where in error.where, error
    assert text in error.what, error
