# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Reference values of an SEV-SNP guest and its platform, and the rules over them.

Rules, in order:

1. the report carries this connection's report data;
2. its version is recent enough;
3. the product, its firmware (now, and when the guest was launched) and the chip or cloud provider
   are accepted ones;
4. so are privilege level, security version, measurement, host data and the keys of the launch
   identity block;
5. the guest's policy permits its host nothing that the reference does not, and what the reference
   asks for is in force;
6. a guest that its host may debug is never accepted;
7. a bit of the guest's policy that nobody here knows may give its host something, as four of the
   nine known ones do: it is refused unless `policy_bits` names it. One of PLATFORM_INFO describes
   the machine, and no rule here asks for the absence of any: it is let in and named in the result
   (`unknown_bits`), unless `strict_platform` refuses it. A version that nobody here knows is
   refused unless `max_version` lets it in.

Source: AMD 56860, SEV Secure Nested Paging Firmware ABI Specification, rev. 1.58, sections 4.3 and
7.3.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta

from securetrain.core.errors import AttestationError
from securetrain.evidence.tee.snp_report import (
    NEWEST,
    PlatformBit,
    PolicyBit,
    Product,
    Report,
    SigningKey,
)

Svn: TypeAlias = Annotated[int, Meta(ge=0, le=255)]
Hex32: TypeAlias = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
Hex48: TypeAlias = Annotated[str, Meta(pattern=r"^[0-9a-f]{96}\Z")]
ChipId: TypeAlias = Annotated[str, Meta(pattern=r"^([0-9a-f]{16}|[0-9a-f]{128})\Z")]


class Permission(StrEnum):
    """A permission that a guest's policy may give its host, when the reference says so too."""

    SMT = "smt"
    MIGRATION_AGENT = "migration-agent"
    CXL = "cxl"


class Protection(StrEnum):
    """A protection that a reference may ask of the guest's policy or of the platform."""

    SINGLE_SOCKET = "single-socket"
    AES_256_XTS = "aes-256-xts"
    RAPL_DISABLED = "rapl-disabled"
    CIPHERTEXT_HIDING = "ciphertext-hiding"
    PAGE_SWAP_DISABLED = "page-swap-disabled"
    ALIAS_CHECK = "alias-check"
    """The firmware found no aliased memory (AMD-SB-3015, "BadRAM")."""


_PERMISSIONS: Final[Mapping[Permission, PolicyBit]] = {
    Permission.SMT: PolicyBit.SMT,
    Permission.MIGRATION_AGENT: PolicyBit.MIGRATE_MA,
    Permission.CXL: PolicyBit.CXL_ALLOW,
}
_PROTECTIONS: Final[Mapping[Protection, PolicyBit]] = {
    Protection.SINGLE_SOCKET: PolicyBit.SINGLE_SOCKET,
    Protection.AES_256_XTS: PolicyBit.MEM_AES_256_XTS,
    Protection.RAPL_DISABLED: PolicyBit.RAPL_DIS,
    Protection.CIPHERTEXT_HIDING: PolicyBit.CIPHERTEXT_HIDING,
    Protection.PAGE_SWAP_DISABLED: PolicyBit.PAGE_SWAP_DISABLE,
}


class Tcb(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Security version numbers of the platform's firmware."""

    bootloader: Svn = 0
    tee: Svn = 0
    snp: Svn = 0
    microcode: Svn = 0
    fmc: Svn = 0
    """Turin and later."""


class SnpReference(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Reference values of SEV-SNP guests. Every list names what is accepted; empty: nothing."""

    min_tcb: dict[Product, Tcb] = {}
    """Accepted products, each with the oldest acceptable firmware, both now and when the guest was
    launched."""
    measurements: tuple[Hex48, ...] = ()
    """Launch measurements (MEASUREMENT)."""
    chip_ids: tuple[ChipId, ...] = ()
    """Chips that VCEKs are accepted of: the hardware id of the VCEK, 64 bytes (Turin: 8)."""
    any_chip: bool = False
    """Accept VCEKs of every genuine chip, for clouds in which machines come and go. A broken chip
    of the same product can then stand in for the right one."""
    providers: tuple[str, ...] = ()
    """Cloud providers that VLEKs are accepted of (CSP_ID)."""
    vmpls: tuple[Annotated[int, Meta(ge=0, le=3)], ...] = (0,)
    """Privilege levels that may ask for the report."""
    host_data: tuple[Hex32, ...] = ("00" * 32,)
    """HOST_DATA, which the host sets at launch; the default is none."""
    id_key_digests: tuple[Hex48, ...] = ("00" * 48,)
    """SHA-384 of keys that sign launch identity blocks; the default is a guest without one."""
    author_key_digests: tuple[Hex48, ...] = ("00" * 48,)
    """SHA-384 of keys that certify the former; the default is none."""
    min_guest_svn: Annotated[int, Meta(ge=0, le=0xFFFFFFFF)] = 0
    permissions: tuple[Permission, ...] = ()
    """What the guest's policy may permit its host."""
    protections: tuple[Protection, ...] = ()
    """What must be in force. Empty asks for none: they depend on the machine's generation."""
    mitigations: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)] = 0
    """Bits that both mitigation vectors must have (report version 5). 0 asks for none: AMD assigns
    bits one vulnerability at a time, and the minimum TCB covers firmware."""
    min_version: Annotated[int, Meta(ge=2, le=5)] = 3
    """Oldest version of the report; the firmware that writes version 2 knows no alias check."""
    max_version: Annotated[int, Meta(ge=5, le=255)] = NEWEST
    """Newest version; above 5, fields that nobody here knows are not judged."""
    policy_bits: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)] = 0
    """Unknown bits that the guest's policy may have, as a number."""
    strict_platform: bool = False
    """Refuse bits of PLATFORM_INFO that are not known."""
    allow_masked_chip: bool = False
    """Accept a report in which the host hid the chip id. The VCEK still names the chip."""
    require_crl: bool = True
    """AMD's revocation list must be at hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnpState:
    """A genuine report, and what it was matched with."""

    product: Product
    key: SigningKey
    chip_id: bytes
    """Hardware id in the VCEK; empty for a VLEK."""
    provider: str
    """CSP_ID in the VLEK; empty for a VCEK."""
    tcb: Tcb
    """The reported TCB, which the key is derived from."""
    launch_tcb: Tcb
    report: Report
    leaf_expires: datetime
    crl_checked: bool


def judge(state: SnpState, reference: SnpReference, report_data: bytes) -> None:
    """A genuine report is what the reference asks for.

    Raises:
        AttestationError: ST-ATTS-409 to 413.
    """
    report = state.report
    if report.report_data != report_data:
        raise AttestationError(
            "ST-ATTS-410",
            f"the report carries {report.report_data.hex()[:16]}..., this connection asks for"
            f" {report_data.hex()[:16]}...",
            "SEV-SNP report, REPORT_DATA",
        )
    if report.version < reference.min_version:
        raise _wrong("VERSION", f"{report.version}, the oldest accepted is {reference.min_version}")
    if report.version > reference.max_version:
        raise _wrong("VERSION", f"{report.version}, the newest accepted is {reference.max_version}")
    _judge_platform(state, reference)
    _judge_guest(report, reference)
    _judge_policy(report, reference)


def unknown_bits(report: Report) -> str:
    """Bits of a report that nobody here can read, for people; empty when there is nothing."""
    found = [("POLICY", report.unknown_policy), ("PLATFORM_INFO", report.unknown_platform)]
    said = [f"{name} {bits:#x}" for name, bits in found if bits]
    return ", ".join([f"VERSION {report.version}"] * (report.version > NEWEST) + said)


def permissions_of(report: Report) -> tuple[Permission, ...]:
    """The permissions that the guest's policy gives its host."""
    return tuple(name for name, bit in _PERMISSIONS.items() if report.has_policy(bit))


def _judge_platform(state: SnpState, reference: SnpReference) -> None:
    lowest = reference.min_tcb.get(state.product)
    if lowest is None:
        raise _wrong("product", f"{state.product}, accepted are {sorted(reference.min_tcb)}")
    for where, tcb in (("REPORTED_TCB", state.tcb), ("LAUNCH_TCB", state.launch_tcb)):
        for name in Tcb.__struct_fields__:
            has, needs = getattr(tcb, name), getattr(lowest, name)
            if has < needs:
                raise AttestationError(
                    "ST-ATTS-412",
                    f"{name} is at {has}, the reference asks for {needs}",
                    f"SEV-SNP report, {where}",
                )
    if state.key is SigningKey.VLEK:
        if state.provider not in reference.providers:
            raise _wrong("CSP_ID", f"{state.provider!r} is not an accepted provider")
    elif not reference.any_chip and state.chip_id.hex() not in reference.chip_ids:
        raise _wrong("CHIP_ID", f"{state.chip_id.hex()} is not an accepted chip")


def _judge_guest(report: Report, reference: SnpReference) -> None:
    if report.vmpl not in reference.vmpls:
        raise _wrong("VMPL", f"{report.vmpl}, accepted are {list(reference.vmpls)}")
    if report.guest_svn < reference.min_guest_svn:
        raise _wrong(
            "GUEST_SVN", f"{report.guest_svn}, at least {reference.min_guest_svn} is asked"
        )
    for where, found, accepted in (
        ("MEASUREMENT", report.measurement, reference.measurements),
        ("HOST_DATA", report.host_data, reference.host_data),
        ("ID_KEY_DIGEST", report.id_key_digest, reference.id_key_digests),
        ("AUTHOR_KEY_DIGEST", report.author_key_digest, reference.author_key_digests),
    ):
        if found.hex() not in accepted:
            raise _wrong(where, f"{found.hex()} is none of the {len(accepted)} accepted values")
    if report.author_key_enabled != any(report.author_key_digest):
        raise _wrong("AUTHOR_KEY_EN", "the flag contradicts AUTHOR_KEY_DIGEST")


def _judge_policy(report: Report, reference: SnpReference) -> None:
    for permission in permissions_of(report):
        if permission not in reference.permissions:
            raise _weak(f"the guest's policy permits {permission}, the reference does not")
    if unknown := report.unknown_policy & ~reference.policy_bits:
        raise _weak(f"the guest's policy has {unknown:#x}, which nobody here knows (policy_bits)")
    if report.unknown_platform and reference.strict_platform:
        raise _weak(f"PLATFORM_INFO has {report.unknown_platform:#x}, which nobody here knows")
    in_force = {name for name, bit in _PROTECTIONS.items() if report.has_policy(bit)}
    if report.has_platform(PlatformBit.ALIAS_CHECK_COMPLETE):
        in_force.add(Protection.ALIAS_CHECK)
    missing = [name for name in reference.protections if name not in in_force]
    if missing:
        raise _weak(f"the reference asks for {', '.join(missing)}")
    vectors = report.launch_mitigations & report.current_mitigations
    if reference.mitigations & ~vectors:
        raise _weak(f"mitigations {reference.mitigations & ~vectors:#x} are not in force")
    if report.has_policy(PolicyBit.DEBUG):
        raise AttestationError(
            "ST-ATTS-409",
            "the guest's policy permits its host to debug it: its memory is not confidential",
            "SEV-SNP report, POLICY",
        )


def _wrong(field: str, what: str) -> AttestationError:
    return AttestationError("ST-ATTS-411", what, f"SEV-SNP report, {field}")


def _weak(what: str) -> AttestationError:
    return AttestationError("ST-ATTS-413", what, "SEV-SNP report, POLICY")
