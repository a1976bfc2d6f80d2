# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Intel TDX: a guest's quote, verified up to Intel's root and judged by reference values.

Rules, in order:

1. the quote is well formed and of Intel's quoting enclave (`tdx_quote`);
2. the PCK certificate in it leads over one of Intel's two PCK CAs to the pinned root;
3. the PCK signs the report of the quoting enclave, whose report data is the digest of the
   attestation key, which signs header and TD report: three signatures that hold one another;
4. collateral is genuine and in date (`collateral`), its revocation lists have neither the PCK nor
   its CA, and it is about this platform (FMSPC, PCE id) and not older than the reference asks;
5. quoting enclave and TDX module are Intel's, and the TCB status that follows from Intel's
   documents (`tcb`) is one that the caller accepts. Revoked is never accepted;
6. the quote carries this connection's report data;
7. the reference values, of which every one is a list of what is accepted;
8. a TD that its host may debug or profile is never accepted.

Source: Intel TDX DCAP Quote Verification Library, section 4.1.2.4; Intel TDX Module ABI
specification 348551, ATTRIBUTES and TDREPORT_STRUCT; Intel SGX PCK Certificate and CRL Profile
Specification, section 1.3.5 (extension 1.2.840.113741.1.13.1).
"""

import hashlib
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Final, TypeAlias

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat import asn1
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from msgspec import Meta

from securetrain.core.errors import AttestationError
from securetrain.evidence.tee import chain
from securetrain.evidence.tee.tcb import (
    PlatformSvns,
    TcbVerdict,
    judge_enclave,
    judge_tcb,
)
from securetrain.evidence.tee.tdx_collateral import (
    INTEL,
    ROOT,
    Opened,
    TcbStatus,
    TdxCollateral,
    ecdsa_signature,
    open_collateral,
)
from securetrain.evidence.tee.tdx_quote import Quote, TdReport, parse_quote

_PCK: Final = "Intel SGX PCK Certificate"
_CAS: Final = {"Intel SGX PCK Platform CA": "platform", "Intel SGX PCK Processor CA": "processor"}
_SGX: Final = "1.2.840.113741.1.13.1"
_TCB_COMPONENTS: Final = tuple(f"{_SGX}.2.{number}" for number in range(1, 17))
_UNDER_DEBUG: Final = 0xFF
"""The first byte of ATTRIBUTES (TUD): whatever is set there, the TD's secrets are not its own."""

Hex16: TypeAlias = Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")]
Hex48: TypeAlias = Annotated[str, Meta(pattern=r"^[0-9a-f]{96}\Z")]
Xfam: TypeAlias = Annotated[str, Meta(pattern=r"^[0-9a-f]{16}\Z")]
Rtmr: TypeAlias = Annotated[str, Meta(pattern=r"\A[0-3]\Z")]
"""A number as text: a key of a JSON object."""


class TdAttribute(StrEnum):
    """Attributes of a TD that a reference can name; whatever else is set is refused."""

    LASS = "lass"
    SEPT_VE_DISABLE = "sept-ve-disable"
    MIGRATABLE = "migratable"
    PKS = "pks"
    KL = "kl"
    TPA = "tpa"
    PERFMON = "perfmon"


_ATTRIBUTES: Final[dict[TdAttribute, int]] = {
    TdAttribute.LASS: 1 << 27,
    TdAttribute.SEPT_VE_DISABLE: 1 << 28,
    TdAttribute.MIGRATABLE: 1 << 29,
    TdAttribute.PKS: 1 << 30,
    TdAttribute.KL: 1 << 31,
    TdAttribute.TPA: 1 << 62,
    TdAttribute.PERFMON: 1 << 63,
}


_NAMED: Final = sum(_ATTRIBUTES.values())


class TdxReference(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Reference values of TDs. Every list names what is accepted; empty accepts nothing."""

    mr_tds: tuple[Hex48, ...] = ()
    """Measurements of the TD's initial memory (MRTD)."""
    rtmrs: dict[Rtmr, tuple[Hex48, ...]] = {}
    """Values of run-time registers, by index. A register that is not listed is not judged here:
    what firmware and boot loader extend differs between boots, and the replay of their log tells
    what it was."""
    ppids: tuple[Hex16, ...] = ()
    """Platforms that quotes are accepted of, by the id in the PCK certificate."""
    any_platform: bool = False
    """Accept every genuine platform, for clouds in which machines come and go. A broken platform of
    the same kind can then stand in for the right one."""
    mr_config_ids: tuple[Hex48, ...] = ("00" * 48,)
    """MRCONFIGID, which the host sets at launch; the default is none. The next two likewise."""
    mr_owners: tuple[Hex48, ...] = ("00" * 48,)
    mr_owner_configs: tuple[Hex48, ...] = ("00" * 48,)
    mr_service_tds: tuple[Hex48, ...] = ("00" * 48,)
    """Service TDs, which can migrate the TD (TDX 1.5); the default is none."""
    required_attributes: tuple[TdAttribute, ...] = (TdAttribute.SEPT_VE_DISABLE,)
    """Attributes that the TD must have. Without the default one, a host can raise exceptions (#VE)
    in the TD's kernel by taking pages away."""
    allowed_attributes: tuple[TdAttribute, ...] = ()
    """Attributes that it may have beside those."""
    attribute_bits: Xfam = "0" * 16
    """Unknown attributes that it may have, as a 64-bit number: bits without a name here. Those that
    open the TD to its host (the lowest byte) are refused all the same."""
    xfams: tuple[Xfam, ...] | None = None
    """Sets of extended CPU features (XFAM, as a 64-bit number). Not judged by default: they limit
    what the TD may use and give its host nothing."""
    min_evaluation: Annotated[int, Meta(ge=0)] = 0
    """Oldest tcbEvaluationDataNumber: insists on a TCB recovery while older collateral is good."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TdxState:
    """A genuine quote, and what it was matched with."""

    version: int
    report: TdReport
    fmspc: str
    ppid: str
    ca: str
    """``platform`` or ``processor``: which of Intel's CAs certified the platform."""
    tcb: TcbVerdict
    evaluation: int
    """tcbEvaluationDataNumber of the TCB Info."""
    collateral_expires: datetime

    @property
    def rtmrs(self) -> tuple[bytes, bytes, bytes, bytes]:
        """RTMR 0 to 3, as signed."""
        return self.report.rtmrs


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """A platform, as its PCK certificate describes it."""

    ppid: str
    fmspc: str
    pce_id: str
    ca: str
    svns: PlatformSvns


@dataclass(frozen=True, slots=True, kw_only=True)
class Authentic:
    """A quote whose signatures lead to the root; nothing in it was judged yet."""

    quote: Quote
    platform: Platform
    pck: x509.Certificate
    pck_ca: x509.Certificate


def verify_tdx(
    quote: bytes,
    *,
    reference: TdxReference,
    collateral: TdxCollateral,
    accepted_statuses: Collection[str],
    report_data: bytes,
    now: datetime,
    root: str = ROOT,
    memory: chain.Memory | None = None,
) -> TdxState:
    """Verify and judge a quote; see the module for the rules.

    Args:
        quote: with anything after it.
        reference: what is accepted.
        collateral: Intel's documents for the quote's platform (`claimed_platform`).
        accepted_statuses: TCB statuses that are good enough.
        report_data: the 64 bytes that this connection asks for.
        now: the time of the check, with a time zone.
        root: SHA-256 of the SubjectPublicKeyInfo of Intel's root.
        memory: what an appraiser keeps of checks that came out well.

    Raises:
        AttestationError: ST-ATTS-501 to 519.
    """
    memory = memory or chain.Memory()
    authentic = authenticate(quote, now=now, root=root, memory=memory)
    opened = open_collateral(collateral, now=now, root=root, memory=memory)
    _check_revocation(authentic, opened, now, memory)
    _check_platform(authentic.platform, opened, reference)
    report = authentic.quote.report
    enclave = judge_enclave(opened.qe_identity, authentic.quote.qe_report)
    verdict = judge_tcb(opened.tcb_info, enclave, authentic.platform.svns, report)
    _check_status(verdict, accepted_statuses)
    ends = [opened.expires]
    if opened.pck_crl.next_update_utc is not None:
        ends.append(opened.pck_crl.next_update_utc)
    state = TdxState(
        version=authentic.quote.version,
        report=report,
        fmspc=authentic.platform.fmspc,
        ppid=authentic.platform.ppid,
        ca=authentic.platform.ca,
        tcb=verdict,
        evaluation=opened.tcb_info.tcb_evaluation_data_number,
        collateral_expires=min(ends),
    )
    judge_td(report, state.ppid, reference, report_data)
    return state


def authenticate(
    quote: bytes, *, now: datetime, root: str = ROOT, memory: chain.Memory | None = None
) -> Authentic:
    """Rules 1 to 3.

    Raises:
        AttestationError: ST-ATTS-501 to 505, 512.
    """
    parsed = parse_quote(quote)
    loaded = chain.load_certificates(parsed.pck_chain, INTEL, "PCK certificate chain", limit=3)
    if len(loaded) != 3:
        raise INTEL.refusal(
            INTEL.malformed,
            f"{len(loaded)} certificates; PCK, its CA and the root are expected",
            "PCK certificate chain",
        )
    pck, ca, root_certificate = loaded
    ca_name = chain.common_name(ca.subject)
    path = (("PCK", pck), ("PCK CA", ca), ("SGX Root CA", root_certificate))
    chain.verify_path(path, root, now, INTEL, memory)
    if ca_name not in _CAS or chain.common_name(pck.subject) != _PCK:
        raise INTEL.refusal(INTEL.untrusted, "is not the certificate of a platform's PCK", "PCK")
    _check_signature(
        pck.public_key(), parsed.qe_report_signature, parsed.qe_report_signed, "QE report"
    )
    bound = hashlib.sha256(parsed.attestation_key + parsed.qe_auth_data).digest()
    if parsed.qe_report.report_data != bound.ljust(64, b"\0"):
        raise _bad_signature("the quoting enclave vouches for another key", "QE report, REPORTDATA")
    try:
        key = ec.EllipticCurvePublicKey.from_encoded_point(
            ec.SECP256R1(), b"\x04" + parsed.attestation_key
        )
    except ValueError as error:
        raise _bad_signature("the key is not a point of P-256", "attestation key") from error
    _check_signature(key, parsed.signature, parsed.signed, "TD report")
    return Authentic(quote=parsed, platform=_platform(pck, _CAS[ca_name]), pck=pck, pck_ca=ca)


def claimed_platform(quote: bytes) -> Platform:
    """The platform that a quote claims, to choose its collateral by (FMSPC and CA).

    Raises:
        AttestationError: ST-ATTS-501, 502, 512.
    """
    parsed = parse_quote(quote)
    loaded = chain.load_certificates(parsed.pck_chain, INTEL, "PCK certificate chain", limit=3)
    return _platform(loaded[0], _CAS.get(chain.common_name(loaded[0].issuer), "?"))


@asn1.sequence
class _Octets:
    """One field: its name, and bytes."""

    oid: x509.ObjectIdentifier
    value: bytes


@asn1.sequence
class _Svn:
    """One number, or all of them as bytes (CPUSVN)."""

    oid: x509.ObjectIdentifier
    value: int | bytes


@asn1.sequence
class _Svns:
    """The platform's TCB."""

    oid: x509.ObjectIdentifier
    value: list[_Svn]


@asn1.sequence
class _Other:
    """A field that is not needed here."""

    oid: x509.ObjectIdentifier
    value: asn1.TLV


@asn1.sequence
class _SgxExtension:
    """Intel's extension: its fields have a fixed order, only servers have the last two."""

    ppid: _Octets
    tcb: _Svns
    pce_id: _Octets
    fmspc: _Octets
    sgx_type: _Other
    platform_instance: _Other | None
    configuration: _Other | None


def _platform(pck: x509.Certificate, ca: str) -> Platform:
    try:
        extension = pck.extensions.get_extension_for_oid(x509.ObjectIdentifier(_SGX))
        fields = asn1.decode_der(_SgxExtension, extension.value.public_bytes())
    except (x509.ExtensionNotFound, ValueError) as error:
        raise INTEL.refusal(INTEL.malformed, f"no SGX extension: {error}", "PCK") from error
    for number, field, size in ((1, fields.ppid, 16), (3, fields.pce_id, 2), (4, fields.fmspc, 6)):
        if field.oid.dotted_string != f"{_SGX}.{number}" or len(field.value) != size:
            raise INTEL.refusal(INTEL.malformed, "the SGX extension has other fields", "PCK")
    svns = {svn.oid.dotted_string: svn.value for svn in fields.tcb.value}
    numbers = [svns.get(oid) for oid in (*_TCB_COMPONENTS, f"{_SGX}.2.17")]
    known = [number for number in numbers if isinstance(number, int) and 0 <= number <= 0xFFFF]
    if len(known) != 17 or len(svns) != len(fields.tcb.value):
        raise INTEL.refusal(INTEL.malformed, "the SGX extension lacks SVNs", "PCK")
    return Platform(
        ppid=fields.ppid.value.hex(),
        fmspc=fields.fmspc.value.hex(),
        pce_id=fields.pce_id.value.hex(),
        ca=ca,
        svns=PlatformSvns(components=tuple(known[:16]), pce_svn=known[16]),
    )


def _check_signature(key: object, signature: bytes, message: bytes, what: str) -> None:
    try:
        if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name != "secp256r1":
            raise InvalidSignature
        key.verify(ecdsa_signature(signature), message, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature as error:
        raise _bad_signature("its signature does not verify", what) from error


def _check_revocation(
    authentic: Authentic, opened: Opened, now: datetime, memory: chain.Memory
) -> None:
    chain.refuse_revoked(opened.root_crl, authentic.pck_ca, INTEL, "PCK CA")
    chain.verify_crl(opened.pck_crl, authentic.pck_ca, now, INTEL, "PCK CRL", memory=memory)
    chain.refuse_revoked(opened.pck_crl, authentic.pck, INTEL, "PCK")


def _check_platform(platform: Platform, opened: Opened, reference: TdxReference) -> None:
    info = opened.tcb_info
    for name, found, expected in (
        ("fmspc", info.fmspc.lower(), platform.fmspc),
        ("pceId", info.pce_id.lower(), platform.pce_id),
    ):
        if found != expected:
            raise INTEL.refusal(
                "ST-ATTS-511", f"is for {found}, the platform is {expected}", f"tcbInfo, {name}"
            )
    for where, document in (("tcbInfo", info), ("enclaveIdentity", opened.qe_identity)):
        if document.tcb_evaluation_data_number < reference.min_evaluation:
            raise INTEL.refusal(
                "ST-ATTS-510",
                f"tcbEvaluationDataNumber {document.tcb_evaluation_data_number}, the reference asks"
                f" for {reference.min_evaluation}",
                where,
            )


def _check_status(verdict: TcbVerdict, accepted: Collection[str]) -> None:
    if verdict.status in accepted and verdict.status is not TcbStatus.REVOKED:
        return
    advisories = ", ".join(verdict.advisories) or "none named"
    raise AttestationError(
        "ST-ATTS-514",
        f"the status is {verdict.status} (platform {verdict.platform}, TDX module {verdict.module},"
        f" quoting enclave {verdict.enclave}; advisories: {advisories}), accepted are"
        f" {', '.join(accepted) or 'none'}",
        "TDX TCB",
    )


def judge_td(report: TdReport, ppid: str, reference: TdxReference, report_data: bytes) -> None:
    """Rules 6 to 8: a genuine TD is what the reference asks for.

    Raises:
        AttestationError: ST-ATTS-516 to 519.
    """
    if report.report_data != report_data:
        raise AttestationError(
            "ST-ATTS-517",
            f"the quote carries {report.report_data.hex()[:16]}..., this connection asks for"
            f" {report_data.hex()[:16]}...",
            "TDX quote, REPORTDATA",
        )
    if not reference.any_platform and ppid not in reference.ppids:
        raise _wrong("PPID", f"{ppid} is not an accepted platform")
    rules = [
        ("MRTD", report.mr_td, reference.mr_tds),
        ("MRCONFIGID", report.mr_config_id, reference.mr_config_ids),
        ("MROWNER", report.mr_owner, reference.mr_owners),
        ("MROWNERCONFIG", report.mr_owner_config, reference.mr_owner_configs),
    ]
    if report.mr_service_td:
        rules.append(("MRSERVICETD", report.mr_service_td, reference.mr_service_tds))
    rules += [
        (f"RTMR{index}", report.rtmrs[int(index)], accepted)
        for index, accepted in sorted(reference.rtmrs.items())
    ]
    if reference.xfams is not None:
        rules.append(("XFAM", report.xfam.to_bytes(8, "big"), reference.xfams))
    for name, found, accepted in rules:
        if found.hex() not in accepted:
            raise _wrong(name, f"{found.hex()} is none of the {len(accepted)} accepted values")
    _judge_attributes(report.td_attributes, reference)


def _judge_attributes(attributes: int, reference: TdxReference) -> None:
    if attributes & _UNDER_DEBUG:
        raise AttestationError(
            "ST-ATTS-516",
            f"ATTRIBUTES {attributes:#x}: its host may debug or profile it",
            "TDX quote, ATTRIBUTES",
        )
    required = sum(_ATTRIBUTES[name] for name in set(reference.required_attributes))
    allowed = required | sum(_ATTRIBUTES[name] for name in set(reference.allowed_attributes))
    allowed |= int(reference.attribute_bits, 16) & ~_NAMED
    if attributes & ~allowed or required & ~attributes:
        raise AttestationError(
            "ST-ATTS-519",
            f"ATTRIBUTES {attributes:#x}: {attributes & ~allowed:#x} is not allowed,"
            f" {required & ~attributes:#x} is missing",
            "TDX quote, ATTRIBUTES",
        )


def attributes_of(td_attributes: int) -> tuple[TdAttribute, ...]:
    """The named attributes that are set."""
    return tuple(name for name, bit in _ATTRIBUTES.items() if td_attributes & bit)


def _bad_signature(what: str, where: str) -> AttestationError:
    return AttestationError("ST-ATTS-503", what, f"TDX quote, {where}")


def _wrong(field: str, what: str) -> AttestationError:
    return AttestationError("ST-ATTS-518", what, f"TDX quote, {field}")
