# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""AMD SEV-SNP: a guest's report, verified up to AMD's root and judged by reference values.

Rules, in order:

1. the report is well formed (`snp_report`) and signed at all: a host can tell the firmware to write
   zeros instead of a signature;
2. the key's certificate (VCEK: of the chip; VLEK: of a cloud provider) was issued by the product's
   intermediate for that kind of key, and that one by the product's root (ARK), which is pinned.
   Expired, revoked and untrusted are different refusals. Key certificates have no serial numbers
   of their own and are replaced with each TCB, so AMD's list covers the intermediates;
3. the kind of key in the report, in the certificate's name and in its issuer's name is one;
4. ECDSA P-384 with SHA-384 over everything before the signature;
5. what the certificate says about the key is what the report says about the platform: all eight
   bytes of the reported TCB, the chip (VCEK), the product and, from version 3 on, the CPU;
6. the report carries this connection's report data and is what the reference values describe
   (`snp_rules`).

Certificates come from the node or from the cache, in any order after the first: rule 2 makes no
difference between them. A node whose host offers no certificates is verified with a VCEK from the
cache.

Source: AMD 56860 (firmware ABI) and AMD 57230, Versioned Chip Endorsement Key Certificate and KDS
Interface Specification, chapters 2 and 3.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat import asn1
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from securetrain.core.errors import AttestationError
from securetrain.evidence.tee import chain
from securetrain.evidence.tee.snp_report import (
    Product,
    Report,
    SigningKey,
    parse_report,
    product_of_cpu,
)
from securetrain.evidence.tee.snp_rules import SnpReference, SnpState, Tcb, judge
from securetrain.identity import paths

ROOTS: Final[Mapping[Product, str]] = {
    # SHA-256 of the SubjectPublicKeyInfo of each ARK, which signs the intermediates of both kinds
    # of keys; from kdsintf.amd.com/vcek/v1/<product>/cert_chain.
    Product.MILAN: "9f056bee44377e29308cb5ffa895bdfb62d18881fa6bed8d6f075b0204089cb9",
    Product.GENOA: "429a69c9422aa258ee4d8db5fcda9c6470ef15f8cd5a9cebd6cbc7d90b863831",
    Product.TURIN: "4f125410563a2ab9a50356f9243f6fe0b6f73de98603f53f90339c70e9d7ad08",
}
AMD: Final = chain.Maker(
    # The profile refuses AMD's own certificates: they write the defaults of RSASSA-PSS, and the
    # serial number of a VCEK is 0. VCEKs are on P-384 and do not say what their keys are for.
    rules=paths.Rules(
        name="AMD",
        scheme=paths.Scheme.RSA_4096_PSS_SHA384,
        engine=paths.Engine.SCHEME,
        leaf_key=False,
        leaf_usage=False,
    ),
    malformed="ST-ATTS-402",
    untrusted="ST-ATTS-404",
    expired="ST-ATTS-405",
    revoked="ST-ATTS-406",
    bad_list="ST-ATTS-407",
)
_OID: Final = "1.3.6.1.4.1.3704.1."
_TCB_LAYOUT: Final[Mapping[Product, tuple[int, ...]]] = {
    # The extension 1.3.6.1.4.1.3704.1.3.<n> of each byte of a TCB_VERSION.
    Product.MILAN: (1, 2, 4, 5, 6, 7, 3, 8),
    Product.GENOA: (1, 2, 4, 5, 6, 7, 3, 8),
    Product.TURIN: (9, 1, 2, 3, 5, 6, 7, 8),
}
_TCB_NAMES: Final[Mapping[int, str]] = {
    1: "bootloader",
    2: "tee",
    3: "snp",
    8: "microcode",
    9: "fmc",
}
_ISSUERS: Final[Mapping[str, tuple[Product, SigningKey]]] = {
    f"SEV-{infix}{product}": (product, kind)
    for product in Product
    for infix, kind in (("", SigningKey.VCEK), ("VLEK-", SigningKey.VLEK))
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Endorsement:
    """AMD's word on a key, from its certificate."""

    key: SigningKey
    product: str
    tcb: bytes
    hardware_id: bytes
    provider: str


def verify_snp(
    report: bytes,
    certificates: Sequence[bytes],
    *,
    reference: SnpReference,
    report_data: bytes,
    now: datetime,
    vendor_chain: Sequence[bytes],
    crl: bytes | None,
    roots: Mapping[Product, str] = ROOTS,
    memory: chain.Memory | None = None,
) -> SnpState:
    """Verify and judge a report; see the module for the rules.

    Args:
        report: the 1184 bytes.
        certificates: DER, the VCEK or VLEK first; empty when the host offered none.
        reference: what is accepted.
        report_data: the 64 bytes that this connection asks for.
        now: the time of the check, with a time zone.
        vendor_chain: intermediates, roots and VCEKs from the cache, in DER or PEM.
        crl: AMD's revocation list of the report's product and kind of key (`claimed_key`), if any.
        roots: SHA-256 of the SubjectPublicKeyInfo of each product's root.
        memory: what an appraiser keeps of checks that came out well.

    Raises:
        AttestationError: ST-ATTS-401 to 413.
    """
    memory = memory or chain.Memory()
    parsed = parse_report(report)
    if parsed.mask_chip_key or parsed.signing_key not in list(SigningKey):
        raise AttestationError(
            "ST-ATTS-403",
            f"the host had the report left unsigned (signing key {parsed.signing_key},"
            f" MASK_CHIP_KEY {int(parsed.mask_chip_key)})",
            "SEV-SNP report, key flags",
            "let the host sign reports (SNP_CONFIG, MASK_CHIP_KEY=0)",
        )
    key = SigningKey(parsed.signing_key)
    offered, pool = _load(certificates, vendor_chain, memory)
    leaf = offered[0] if offered else _find_leaf(pool, parsed, key)
    product, path = _path(leaf, key, [*pool, *offered[1:]])
    chain.verify_path(path, roots.get(product, ""), now, AMD, memory)
    crl_checked = _check_revocation(path, crl, now, memory, required=reference.require_crl)
    _check_signature(parsed, leaf)
    endorsement = _endorsement(leaf, product, key)
    _check_endorsement(parsed, endorsement, product, reference)
    state = SnpState(
        product=product,
        key=key,
        chip_id=endorsement.hardware_id,
        provider=endorsement.provider,
        tcb=read_tcb(parsed.reported_tcb, product),
        launch_tcb=read_tcb(parsed.launch_tcb, product),
        report=parsed,
        leaf_expires=leaf.not_valid_after_utc,
        crl_checked=crl_checked,
    )
    judge(state, reference, report_data)
    return state


def claimed_key(
    report: bytes, certificates: Sequence[bytes]
) -> tuple[Product | None, SigningKey | None]:
    """Product and kind of key that a report claims, to choose its revocation list by.

    Raises:
        AttestationError: ST-ATTS-401, ST-ATTS-402.
    """
    if certificates:
        leaf = chain.load_certificate(certificates[0], AMD, "certificates[0]")
        return _ISSUERS.get(chain.common_name(leaf.issuer), (None, None))
    parsed = parse_report(report)
    product = product_of_cpu(*parsed.cpu[:2]) if parsed.cpu else None
    known = parsed.signing_key in list(SigningKey)
    return product, SigningKey(parsed.signing_key) if known else None


def claimed_provider(certificates: Sequence[bytes]) -> str:
    """The cloud provider (CSP_ID) that the certificate of a VLEK claims; empty for a VCEK's.

    Raises:
        AttestationError: ST-ATTS-402.
    """
    product, key = claimed_key(b"", certificates) if certificates else (None, None)
    if product is None or key is not SigningKey.VLEK:
        return ""
    leaf = chain.load_certificate(certificates[0], AMD, "certificates[0]")
    return _endorsement(leaf, product, key).provider


def _load(
    certificates: Sequence[bytes], vendor_chain: Sequence[bytes], memory: chain.Memory
) -> tuple[list[x509.Certificate], list[x509.Certificate]]:
    if len(certificates) > chain.MAX_CERTIFICATES:
        raise AMD.refusal(AMD.malformed, f"{len(certificates)} certificates", "certificates")
    offered = [
        chain.load_certificate(data, AMD, f"certificates[{index}]")
        for index, data in enumerate(certificates)
    ]
    pool = [
        certificate
        for index, data in enumerate(vendor_chain)
        for certificate in chain.load_file(data, AMD, f"vendor_chain[{index}]", memory)
    ]
    return offered, pool


def _find_leaf(
    pool: Iterable[x509.Certificate], report: Report, key: SigningKey
) -> x509.Certificate:
    """The cached certificate of the very key that the report says it is signed with."""
    for certificate in pool:
        certified = _ISSUERS.get(chain.common_name(certificate.issuer))
        if certified is None or certified[1] is not key:
            continue
        endorsement = _endorsement(certificate, certified[0], key)
        # A VLEK has no hardware id, which every chip id starts with.
        of_chip = report.chip_id.startswith(endorsement.hardware_id)
        if of_chip and endorsement.tcb == report.reported_tcb:
            return certificate
    raise AMD.refusal(
        AMD.malformed,
        f"the host offered no {key.name} and the cache has none for chip"
        f" {report.chip_id.hex()[:16]}... with TCB {report.reported_tcb.hex()}",
        key.name,
    )


def _path(
    leaf: x509.Certificate, key: SigningKey, pool: Sequence[x509.Certificate]
) -> tuple[Product, chain.Path]:
    """The candidates for a path, by names; whether it is one is `chain.verify_path`'s to say."""
    issuer = chain.common_name(leaf.issuer)
    certified = _ISSUERS.get(issuer)
    if (
        certified is None
        or certified[1] is not key
        or chain.common_name(leaf.subject) != f"SEV-{key.name}"
    ):
        raise AMD.refusal(
            AMD.untrusted,
            f"the report is signed by a {key.name}; the certificate is of"
            f" {chain.common_name(leaf.subject)!r}, issued by {issuer!r}",
            key.name,
        )
    product = certified[0]
    intermediate = _by_subject(pool, leaf.issuer, f"{product} {issuer}")
    root = _by_subject(pool, intermediate.issuer, f"ARK-{product}")
    return product, ((key.name, leaf), (issuer, intermediate), (f"ARK-{product}", root))


def _by_subject(pool: Iterable[x509.Certificate], name: x509.Name, role: str) -> x509.Certificate:
    for certificate in pool:
        if certificate.subject == name:
            return certificate
    raise AMD.refusal(AMD.untrusted, "neither the node nor the cache has its certificate", role)


def _check_revocation(
    path: chain.Path,
    crl: bytes | None,
    now: datetime,
    memory: chain.Memory,
    *,
    required: bool,
) -> bool:
    if crl is None:
        if required:
            raise AMD.refusal(AMD.bad_list, "there is none, the reference asks for it", "CRL")
        return False
    _, (role, intermediate), (_, root) = path
    loaded = chain.load_crl(crl, AMD, "CRL")
    chain.verify_crl(loaded, root, now, AMD, "CRL", memory=memory)
    chain.refuse_revoked(loaded, intermediate, AMD, role)
    return True


def _check_signature(report: Report, leaf: x509.Certificate) -> None:
    key = leaf.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name != "secp384r1":
        raise AMD.refusal(AMD.untrusted, "its key is not on P-384", chain.common_name(leaf.subject))
    try:
        key.verify(
            encode_dss_signature(*report.signature), report.signed, ec.ECDSA(hashes.SHA384())
        )
    except InvalidSignature as error:
        raise AttestationError(
            "ST-ATTS-403",
            "the report is not signed by the key of its certificate",
            "SEV-SNP report, SIGNATURE",
        ) from error


def _endorsement(leaf: x509.Certificate, product: Product, key: SigningKey) -> _Endorsement:
    """Read AMD's extensions; they have no other form than that of the product and kind of key.

    Raises:
        AttestationError: ST-ATTS-402.
    """
    found = {
        extension.oid.dotted_string.removeprefix(_OID): extension.value.value
        for extension in leaf.extensions
        if isinstance(extension.value, x509.UnrecognizedExtension)
    }
    try:
        tcb = bytes(asn1.decode_der(int, found[f"3.{number}"]) for number in _TCB_LAYOUT[product])
        name = asn1.decode_der(asn1.IA5String, found["2"]).as_str()
        provider = ""
        hardware_id = b""
        if key is SigningKey.VCEK:
            # Raw bytes, against X.509's own rules.
            hardware_id = found["4"]
        else:
            provider = asn1.decode_der(asn1.IA5String, found["5"]).as_str()
    except (KeyError, ValueError, OverflowError) as error:
        raise AMD.refusal(
            AMD.malformed, f"AMD's extensions do not describe a {product} key: {error}", key.name
        ) from error
    if key is SigningKey.VCEK and len(hardware_id) != (8 if product is Product.TURIN else 64):
        raise AMD.refusal(
            AMD.malformed, f"a hardware id of {len(hardware_id)} bytes", f"{key.name}, HWID"
        )
    return _Endorsement(key=key, product=name, tcb=tcb, hardware_id=hardware_id, provider=provider)


def _check_endorsement(
    report: Report, endorsement: _Endorsement, product: Product, reference: SnpReference
) -> None:
    """Rule 5."""
    name, _, _stepping = endorsement.product.partition("-")
    if name != product:
        raise _mismatch("product", f"{endorsement.product!r}, its issuer is of {product}")
    if report.cpu is not None and product_of_cpu(*report.cpu[:2]) is not product:
        family, model, _ = report.cpu
        raise _mismatch("CPUID", f"family {family:#x} model {model:#x} is no {product}")
    if endorsement.tcb != report.reported_tcb:
        raise _mismatch(
            "REPORTED_TCB",
            f"the certificate is for {endorsement.tcb.hex()}, the report says"
            f" {report.reported_tcb.hex()}",
        )
    if endorsement.key is SigningKey.VLEK:
        return
    masked = not any(report.chip_id) and reference.allow_masked_chip
    # Turin's ids have 8 bytes and are followed by zeros.
    if not masked and endorsement.hardware_id.ljust(64, b"\0") != report.chip_id:
        raise _mismatch(
            "CHIP_ID",
            f"the certificate is for {endorsement.hardware_id.hex()[:16]}..., the report says"
            f" {report.chip_id.hex()[:16]}...",
        )


def read_tcb(raw: bytes, product: Product) -> Tcb:
    """The numbers of a TCB_VERSION; which byte is which depends on the product."""
    numbers = dict(zip(_TCB_LAYOUT[product], raw, strict=True))
    return Tcb(**{name: numbers.get(number, 0) for number, name in _TCB_NAMES.items()})


def _mismatch(field: str, what: str) -> AttestationError:
    return AttestationError("ST-ATTS-408", what, f"SEV-SNP certificate and report, {field}")
