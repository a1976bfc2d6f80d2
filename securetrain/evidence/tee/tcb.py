# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The TCB status of a TDX platform: what Intel's documents say about the numbers in a quote.

Rules:

1. a platform's level is the first, from the highest down, of which no number is above the
   platform's: the SVNs and PCESVN in the PCK certificate, the SVNs in the TD's report;
2. with a TDX module of major version 1 or more, the module's own SVN is judged by the identity of
   that version instead of the level's first two numbers;
3. the module's signer and attributes must be those of its identity, the quoting enclave's signer,
   product, attributes and MISCSELECT those of QE Identity. These are refusals, not statuses;
4. a module or enclave that is out of date or revoked makes the platform so;
5. when only the module was out of date at launch, and TDX 1.5 reports that it has been updated
   since, the status is that the TD should be launched again.

What status is good enough is not decided here.

Source: Intel SGX and TDX DCAP Quote Verification Library, sections 4.1.2.4.11 to 4.1.2.4.17 and
4.1.2.9; Intel PCS API version 4, "TDX TCB Info: how to determine the TCB status".
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from securetrain.core.errors import AttestationError
from securetrain.evidence.tee.tdx_collateral import (
    Component,
    EnclaveLevel,
    Level,
    Module,
    ModuleIdentity,
    PlatformLevel,
    QeIdentity,
    TcbInfo,
    TcbStatus,
)
from securetrain.evidence.tee.tdx_quote import QeReport, TdReport

_QE_DEBUG: Final = 0x02
_HEALTHY: Final = frozenset(
    {
        TcbStatus.UP_TO_DATE,
        TcbStatus.SW_HARDENING_NEEDED,
        TcbStatus.CONFIGURATION_NEEDED,
        TcbStatus.CONFIGURATION_AND_SW_HARDENING_NEEDED,
    }
)
_NEEDS_CONFIGURATION: Final = frozenset(
    {
        TcbStatus.CONFIGURATION_NEEDED,
        TcbStatus.CONFIGURATION_AND_SW_HARDENING_NEEDED,
        TcbStatus.OUT_OF_DATE_CONFIGURATION_NEEDED,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformSvns:
    """The numbers in a PCK certificate."""

    components: tuple[int, ...]
    pce_svn: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TcbVerdict:
    """The status of a platform, and where it comes from."""

    status: TcbStatus
    platform: TcbStatus
    module: TcbStatus
    """Up to date for a module that the platform's level judges."""
    enclave: TcbStatus
    advisories: tuple[str, ...]
    """Intel's security advisories for all three, sorted."""
    tcb_date: datetime
    """Security issues published before this date are mitigated at the platform's level."""


def judge_tcb(
    info: TcbInfo, qe_level: EnclaveLevel, svns: PlatformSvns, report: TdReport
) -> TcbVerdict:
    """The status of a platform.

    Args:
        info: for the platform's FMSPC.
        qe_level: of the quoting enclave, from `judge_enclave`.
        svns: from the PCK certificate.
        report: of the TD.

    Raises:
        AttestationError: ST-ATTS-513 for another TDX module, ST-ATTS-515 for numbers below all
            levels.
    """
    identity = _judge_module(info, report)
    svn, major = report.tee_tcb_svn[:2]
    module: Level | None = None
    if identity is not None:
        module = _enclave_level(identity.tcb_levels, svn, f"TDX module {major}")
    # The order is Intel's; it is not left to the order of the document.
    levels = sorted(info.tcb_levels, key=_numbers, reverse=True)
    on_platform = [level for level in levels if _platform_fits(level, svns)]
    matches = (level for level in on_platform if _module_fits(level, report.tee_tcb_svn))
    platform = next(matches, None)
    if platform is None:
        raise _unsupported("its SVNs are below all TCB levels", "TDX quote and PCK certificate")
    module_status = module.tcb_status if module else TcbStatus.UP_TO_DATE
    status = _converge(platform.tcb_status, module_status)
    if (
        qe_level.tcb_status is TcbStatus.UP_TO_DATE
        and on_platform[0].tcb_status in _HEALTHY
        and module_status is TcbStatus.OUT_OF_DATE
        and status in {TcbStatus.OUT_OF_DATE, TcbStatus.OUT_OF_DATE_CONFIGURATION_NEEDED}
        and _updated_since(info, levels[0], report.tee_tcb_svn2)
    ):
        configure = {on_platform[0].tcb_status, status} & _NEEDS_CONFIGURATION
        status = (
            TcbStatus.TD_RELAUNCH_ADVISED_CONFIGURATION_NEEDED
            if configure
            else TcbStatus.TD_RELAUNCH_ADVISED
        )
    judged = [level for level in (platform, module, qe_level) if level is not None]
    return TcbVerdict(
        status=_converge(status, qe_level.tcb_status),
        platform=platform.tcb_status,
        module=module_status,
        enclave=qe_level.tcb_status,
        advisories=tuple(sorted({name for level in judged for name in level.advisory_ids})),
        tcb_date=platform.tcb_date,
    )


def judge_enclave(identity: QeIdentity, report: QeReport) -> EnclaveLevel:
    """The quoting enclave is Intel's, and its TCB level.

    Raises:
        AttestationError: ST-ATTS-512, ST-ATTS-515.
    """
    # Intel's numbers are written as the bytes lie in memory.
    mask = int.from_bytes(bytes.fromhex(identity.miscselect_mask), "little")
    misc_select = int.from_bytes(bytes.fromhex(identity.miscselect), "little")
    for name, found, expected in (
        ("MRSIGNER", report.mr_signer.hex(), identity.mrsigner.lower()),
        ("ISVPRODID", report.isv_prod_id, identity.isvprodid),
        ("MISCSELECT", report.misc_select & mask, misc_select),
        (
            "ATTRIBUTES",
            _masked(report.attributes, identity.attributes_mask),
            identity.attributes.lower(),
        ),
        ("ATTRIBUTES.DEBUG", report.attributes[0] & _QE_DEBUG, 0),
    ):
        if found != expected:
            raise AttestationError(
                "ST-ATTS-512", f"{found} is not Intel's {expected}", f"QE report, {name}"
            )
    return _enclave_level(identity.tcb_levels, report.isv_svn, "quoting enclave")


def _judge_module(info: TcbInfo, report: TdReport) -> ModuleIdentity | None:
    """Rule 3 for the module; its identity, unless it is of major version 0."""
    major = report.tee_tcb_svn[1]
    identity = _module_identity(info, major) if major else None
    expected: Module = identity or info.tdx_module
    for name, found, good in (
        ("MRSIGNERSEAM", report.mr_signer_seam.hex(), expected.mrsigner),
        (
            "SEAMATTRIBUTES",
            _masked(report.seam_attributes, expected.attributes_mask),
            expected.attributes,
        ),
        # All attributes are reserved or for debugging, whatever a mask leaves out.
        ("SEAMATTRIBUTES", report.seam_attributes.hex(), "00" * 8),
    ):
        if found != good.lower():
            raise _other_module(f"{found} is not Intel's {good.lower()}", name)
    return identity


def _module_identity(info: TcbInfo, major: int) -> ModuleIdentity:
    for identity in info.tdx_module_identities:
        if identity.id.upper() == f"TDX_{major:02X}":
            return identity
    raise _other_module(f"Intel describes no module of major version {major}", "TEE_TCB_SVN")


def _updated_since(info: TcbInfo, latest: PlatformLevel, svn2: bytes) -> bool:
    """Rule 5: the module that runs now (`svn2`) is the latest, and so is the loader's SVN."""
    if not svn2:
        return False
    svn, major, loader = svn2[:3]
    numbers = latest.tcb.tdxtcbcomponents
    newest = numbers[0].svn
    if major:
        levels = _module_identity(info, major).tcb_levels
        newest = max((level.tcb.isvsvn for level in levels), default=256)
    return svn >= newest and loader >= numbers[2].svn


def _enclave_level(levels: Iterable[EnclaveLevel], svn: int, where: str) -> EnclaveLevel:
    for level in sorted(levels, key=lambda level: level.tcb.isvsvn, reverse=True):
        if svn >= level.tcb.isvsvn:
            return level
    raise _unsupported(f"SVN {svn} is below all TCB levels", where)


def _numbers(level: PlatformLevel) -> tuple[list[int], int, list[int]]:
    tcb = level.tcb
    return (
        [component.svn for component in tcb.sgxtcbcomponents],
        tcb.pcesvn,
        [component.svn for component in tcb.tdxtcbcomponents],
    )


def _platform_fits(level: PlatformLevel, svns: PlatformSvns) -> bool:
    tcb = level.tcb
    return _reaches(svns.components, tcb.sgxtcbcomponents) and svns.pce_svn >= tcb.pcesvn


def _module_fits(level: PlatformLevel, tee_tcb_svn: bytes) -> bool:
    first = 2 if tee_tcb_svn[1] else 0
    return _reaches(tee_tcb_svn[first:], level.tcb.tdxtcbcomponents[first:])


def _reaches(numbers: Iterable[int], level: Iterable[Component]) -> bool:
    return all(has >= needs.svn for has, needs in zip(numbers, level, strict=True))


def _converge(platform: TcbStatus, part: TcbStatus) -> TcbStatus:
    """Rule 4."""
    if part is TcbStatus.REVOKED:
        return TcbStatus.REVOKED
    if part is TcbStatus.UP_TO_DATE or platform not in _HEALTHY:
        return platform
    if platform in _NEEDS_CONFIGURATION:
        return TcbStatus.OUT_OF_DATE_CONFIGURATION_NEEDED
    return TcbStatus.OUT_OF_DATE


def _masked(value: bytes, mask: str) -> str:
    return bytes(a & b for a, b in zip(value, bytes.fromhex(mask), strict=True)).hex()


def _other_module(what: str, field: str) -> AttestationError:
    return AttestationError("ST-ATTS-513", what, f"TDX quote, {field}")


def _unsupported(what: str, where: str) -> AttestationError:
    return AttestationError("ST-ATTS-515", what, where)
