# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Reference values from the guest of a person who knows it to be good.

Rules:

1. nothing is learned from a report that is not genuine, or not made for this very bundle: its
   signatures lead to the maker's pinned root, and it carries the bundle's binding;
2. a guest that its host may debug teaches nothing;
3. TDX guests of one fleet are all judged by their logs, or all by their registers: a register that
   is listed is compared for every guest;
4. what is learned accepts exactly this guest on this chip, and firmware from what it has now on.
   AMD's revocation list and Intel's TCB status are not asked for here: a verifier does, when the
   node joins.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import msgspec

from securetrain.core.errors import AttestationError
from securetrain.evidence import TeeEvidence
from securetrain.evidence.tee import (
    ROOT,
    ROOTS,
    Product,
    SnpReference,
    Tcb,
    TdxReference,
    attributes_of,
    authenticate,
    claimed_key,
    claimed_provider,
    judge_td,
    parse_report,
    permissions_of,
    verify_snp,
)
from securetrain.evidence.tpm import BootReference, learn_ccel

OLDEST_REPORT: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedSnp:
    """The reference values that an SEV-SNP report teaches."""

    reference: SnpReference
    chip: str
    """Hardware id, hex; empty for a cloud provider's key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedTdx:
    """The reference values that a TDX quote teaches."""

    reference: TdxReference
    """Without `rtmrs`."""
    boot: BootReference | None
    """From the CCEL log; None without one."""
    rtmrs: dict[str, tuple[str, ...]]
    """What the boot loader and firmware extended: RTMR0 to RTMR2."""
    chip: str
    """The platform's PPID, hex."""


def learn_snp(
    evidence: TeeEvidence,
    *,
    report_data: bytes,
    now: datetime,
    vendor_chain: Sequence[bytes],
    roots: Mapping[Product, str] = ROOTS,
) -> LearnedSnp:
    """Take over a guest.

    Args:
        evidence: report and certificates.
        report_data: what the report must carry.
        now: the time of the check, with a time zone.
        vendor_chain: AMD's certificates from the cache.
        roots: SHA-256 of the SubjectPublicKeyInfo of each product's root.

    Raises:
        AttestationError: ST-ATTS-401 to 413.
    """
    report = parse_report(evidence.report)
    product, _ = claimed_key(evidence.report, evidence.certificates)
    provider = claimed_provider(evidence.certificates)
    guest = SnpReference(
        min_tcb={product: Tcb()} if product is not None else {},
        measurements=(report.measurement.hex(),),
        any_chip=True,
        providers=(provider,) if provider else (),
        vmpls=(report.vmpl,),
        host_data=(report.host_data.hex(),),
        id_key_digests=(report.id_key_digest.hex(),),
        author_key_digests=(report.author_key_digest.hex(),),
        permissions=permissions_of(report),
        min_version=OLDEST_REPORT,
        require_crl=False,
    )
    state = verify_snp(
        evidence.report,
        evidence.certificates,
        reference=guest,
        report_data=report_data,
        now=now,
        vendor_chain=vendor_chain,
        crl=None,
        roots=roots,
    )
    chip = state.chip_id.hex()
    learned = SnpReference(
        min_tcb={state.product: _lower(state.tcb, state.launch_tcb)},
        measurements=guest.measurements,
        chip_ids=(chip,) if chip else (),
        providers=guest.providers,
        vmpls=guest.vmpls,
        host_data=guest.host_data,
        id_key_digests=guest.id_key_digests,
        author_key_digests=guest.author_key_digests,
        permissions=guest.permissions,
        min_version=min(report.version, SnpReference().min_version),
    )
    return LearnedSnp(reference=learned, chip=chip)


def learn_tdx(
    evidence: TeeEvidence, *, report_data: bytes, now: datetime, root: str = ROOT
) -> LearnedTdx:
    """Take over a guest: by its log where it sends one, else by its registers.

    Args:
        evidence: quote and CCEL log.
        report_data: what the quote must carry.
        now: the time of the check, with a time zone.
        root: SHA-256 of the SubjectPublicKeyInfo of Intel's root.

    Raises:
        AttestationError: ST-ATTS-501 to 505, 512, 516 to 519; 2xx for the log.
    """
    authentic = authenticate(evidence.report, now=now, root=root)
    report, ppid = authentic.quote.report, authentic.platform.ppid
    default = TdxReference()
    more = tuple(
        name
        for name in attributes_of(report.td_attributes)
        if name not in default.required_attributes
    )
    guest = TdxReference(
        mr_tds=(report.mr_td.hex(),),
        ppids=(ppid,),
        mr_config_ids=(report.mr_config_id.hex(),),
        mr_owners=(report.mr_owner.hex(),),
        mr_owner_configs=(report.mr_owner_config.hex(),),
        mr_service_tds=(report.mr_service_td.hex(),) if report.mr_service_td else (),
        allowed_attributes=more,
    )
    judge_td(report, ppid, guest, report_data)
    return LearnedTdx(
        reference=guest,
        boot=learn_ccel(evidence.event_log, report.rtmrs) if evidence.event_log else None,
        rtmrs={str(number): (value.hex(),) for number, value in enumerate(report.rtmrs[:3])},
        chip=ppid,
    )


def merge_snp(old: SnpReference, learned: SnpReference) -> SnpReference:
    """Reference values that accept whatever one of both accepts; what `old` asks beside stays."""
    tcbs = dict(old.min_tcb)
    for product, tcb in learned.min_tcb.items():
        tcbs[product] = _lower(tcbs.get(product, tcb), tcb)
    fields = (
        *("measurements", "chip_ids", "providers", "vmpls", "host_data"),
        *("id_key_digests", "author_key_digests", "permissions"),
    )
    # Whatever accepts a guest already has its own idea of the oldest report.
    oldest = old.min_version if old.measurements else min(old.min_version, learned.min_version)
    joined = _joined(old, learned, fields)
    return msgspec.structs.replace(old, min_tcb=tcbs, min_version=oldest, **joined)


def merge_tdx(old: TdxReference, learned: LearnedTdx) -> TdxReference:
    """Reference values that accept whatever one of both accepts; what `old` asks beside stays.

    Raises:
        AttestationError: ST-ATTS-013 for a guest without a log in a fleet that is judged by logs.
    """
    fields = (
        *("mr_tds", "ppids", "mr_config_ids", "mr_owners", "mr_owner_configs", "mr_service_tds"),
        "allowed_attributes",
    )
    listed = tuple(old.rtmrs)
    if not old.mr_tds and learned.boot is None:
        listed = tuple(learned.rtmrs)
    if not listed and learned.boot is None:
        raise AttestationError(
            "ST-ATTS-013",
            "the guest sends no CCEL log, and the fleet's guests are judged by theirs",
            "tee.event_log",
            "let the node read /sys/firmware/acpi/tables/data/CCEL",
        )
    rtmrs = {
        name: tuple(dict.fromkeys((*old.rtmrs.get(name, ()), *learned.rtmrs.get(name, ()))))
        for name in listed
    }
    joined = _joined(old, learned.reference, fields)
    return msgspec.structs.replace(old, rtmrs=rtmrs, **joined)


def _lower(first: Tcb, second: Tcb) -> Tcb:
    """The lower of each number: what both have."""
    return Tcb(
        **{name: min(getattr(first, name), getattr(second, name)) for name in Tcb.__struct_fields__}
    )


def _joined(
    first: msgspec.Struct, second: msgspec.Struct, fields: Sequence[str]
) -> dict[str, tuple[object, ...]]:
    """The lists of both, without repetition."""
    return {
        name: tuple(dict.fromkeys((*getattr(first, name), *getattr(second, name))))
        for name in fields
    }
