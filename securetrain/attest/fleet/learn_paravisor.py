# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Reference values from a confidential VM with a paravisor that a person knows to be good.

Rules:

1. nothing is learned before the chain has held from the maker's root to a quote for this very
   bundle: report, runtime data, key, quote;
2. the report's measurement becomes one of a paravisor's, and none of a guest's;
3. which VM it is belongs to the node. The chip under it does not: clouds move VMs between chips.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec

from securetrain.attest.fleet.learn_tee import (
    LearnedTdx,
    learn_snp,
    learn_tdx,
    merge_snp,
    merge_tdx,
)
from securetrain.evidence import QUOTED, ReferenceValues, TeeEvidence, TeeKind, TpmEvidence
from securetrain.evidence.tee import (
    Product,
    SnpReference,
    parse_report,
    parse_runtime_data,
    vouched_data,
)
from securetrain.evidence.tpm import verify_quote


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedVm:
    """The values that a VM teaches."""

    vm: str
    measurement: str
    """Of the paravisor, hex."""
    console: bool
    snp: SnpReference | None
    tdx: LearnedTdx | None
    vtpm: TpmEvidence
    pcrs: Mapping[int, bytes]
    """As they were quoted."""

    def merged(self, values: ReferenceValues) -> dict[str, object]:
        """The sections of reference values that change."""
        old = values.paravisor
        listed = tuple(dict.fromkeys((*old.measurements, self.measurement)))
        allowed = old.allow_console or self.console
        sections: dict[str, object] = {
            "paravisor": msgspec.structs.replace(old, measurements=listed, allow_console=allowed)
        }
        if self.snp is not None:
            sections["snp"] = merge_snp(values.snp, self.snp)
        if self.tdx is not None:
            sections["tdx"] = merge_tdx(values.tdx, self.tdx)
        return sections


def learn_vm(
    evidence: TeeEvidence,
    *,
    binding: bytes,
    now: datetime,
    vendor_chain: Sequence[bytes],
    amd: Mapping[Product, str],
    intel: str,
) -> LearnedVm:
    """Take over a VM.

    Args:
        evidence: with the paravisor's part.
        binding: of the bundle.
        now: the time of the check, with a time zone.
        vendor_chain: AMD's certificates from the cache.
        amd: SHA-256 of the SubjectPublicKeyInfo of each product's root.
        intel: the same of Intel's.

    Raises:
        AttestationError: 1xx about the quote, 4xx and 5xx about the report.
    """
    paravisor = evidence.paravisor
    assert paravisor is not None, "the caller has seen it"
    runtime = parse_runtime_data(paravisor.runtime_data)
    wanted = vouched_data(paravisor.runtime_data)
    snp: SnpReference | None = None
    tdx: LearnedTdx | None = None
    if evidence.kind is TeeKind.SEV_SNP:
        found = learn_snp(
            evidence, report_data=wanted, now=now, vendor_chain=vendor_chain, roots=amd
        )
        measurement = parse_report(evidence.report).measurement.hex()
        snp = msgspec.structs.replace(found.reference, measurements=(), vmpls=(0,))
    else:
        tdx = learn_tdx(evidence, report_data=wanted, now=now, root=intel)
        (measurement,) = tdx.reference.mr_tds
        guest = msgspec.structs.replace(tdx.reference, mr_tds=())
        tdx = LearnedTdx(reference=guest, boot=None, rtmrs=tdx.rtmrs, chip=tdx.chip)
    quote = verify_quote(
        paravisor.vtpm.quote,
        paravisor.vtpm.signature,
        ak=runtime.ak,
        ek=None,
        extra_data=binding,
        pcrs=paravisor.vtpm.pcrs,
        required=QUOTED,
    )
    return LearnedVm(
        vm=runtime.vm,
        measurement=measurement,
        console=runtime.console,
        snp=snp,
        tdx=tdx,
        vtpm=paravisor.vtpm,
        pcrs=quote.pcrs,
    )
