# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Reference values from a confidential VM of Google Cloud that a person knows to be good.

Rules:

1. nothing is learned before both chains have held: from the CPU maker's root to a report that names
   the TPM's key, and from Google's to that key, whose quote is for this very bundle;
2. firmware is never learned: Google endorses it, or the VM teaches nothing. Roots and endorsements
   are named first (`securetrain attest google`);
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
from securetrain.core.errors import AttestationError
from securetrain.evidence import (
    QUOTED,
    ReferenceValues,
    TeeEvidence,
    TeeKind,
    TpmEvidence,
    report_data,
)
from securetrain.evidence.tee import (
    GoogleAppraiser,
    Product,
    SnpReference,
    check_technology,
    parse_report,
)
from securetrain.evidence.tpm import BootReference, verify_quote


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedInstance:
    """The values that an instance teaches."""

    vm: str
    instance: str
    """Its project, zone and name, for people."""
    project: str
    production: bool
    size: str
    """What its measurement says of it, for people."""
    snp: SnpReference | None
    tdx: LearnedTdx | None
    vtpm: TpmEvidence
    pcrs: Mapping[int, bytes]
    """As they were quoted."""

    @property
    def tdx_boot(self) -> BootReference | None:
        """The boot that a TDX guest's registers explain; None without a log."""
        return None if self.tdx is None else self.tdx.boot

    def merged(self, values: ReferenceValues) -> dict[str, object]:
        """The sections of reference values that change."""
        old = values.google
        projects = tuple(dict.fromkeys((*old.projects, self.project)))
        allowed = old.allow_test or not self.production
        sections: dict[str, object] = {
            "google": msgspec.structs.replace(old, projects=projects, allow_test=allowed)
        }
        if self.snp is not None:
            sections["snp"] = merge_snp(values.snp, self.snp)
        if self.tdx is not None:
            sections["tdx"] = merge_tdx(values.tdx, self.tdx)
        return sections


def learn_instance(
    evidence: TeeEvidence,
    values: ReferenceValues,
    *,
    binding: bytes,
    now: datetime,
    vendor_chain: Sequence[bytes],
    amd: Mapping[Product, str],
    intel: str,
) -> LearnedInstance:
    """Take over an instance.

    Args:
        evidence: with Google's part.
        values: where Google's roots and endorsements are.
        binding: of the bundle.
        now: the time of the check, with a time zone.
        vendor_chain: AMD's certificates from the cache.
        amd: SHA-256 of the SubjectPublicKeyInfo of each product's root.
        intel: the same of Intel's.

    Raises:
        AttestationError: ST-ATTS-013 without a log; 1xx about the quote, 2xx about the log, 4xx and
            5xx about the report.
    """
    said = evidence.google
    assert said is not None, "the caller has seen it"
    appraiser = GoogleAppraiser(values.google)
    certified = appraiser.key(said.ak_certificate, said.ak_chain, now)
    wanted = report_data(binding, certified.digest)
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
        tdx = LearnedTdx(reference=guest, boot=tdx.boot, rtmrs=tdx.rtmrs, chip=tdx.chip)
    _, launch = appraiser.endorsed(evidence.kind.value, measurement, now)
    quote = verify_quote(
        said.vtpm.quote,
        said.vtpm.signature,
        ak=certified.ak,
        ek=None,
        extra_data=binding,
        pcrs=said.vtpm.pcrs,
        required=QUOTED,
    )
    if not said.vtpm.event_log:
        raise AttestationError(
            "ST-ATTS-013",
            "the firmware's event log is missing: it says what kind of VM the TPM is of",
            "google.vtpm.event_log",
            "collect the evidence as root",
        )
    check_technology(said.vtpm.event_log, quote.pcrs[0], evidence.kind.value)
    instance = certified.instance
    unit = "virtual CPUs" if evidence.kind is TeeKind.SEV_SNP else "GiB"
    return LearnedInstance(
        vm=instance.vm,
        instance=f"{instance.project}/{instance.zone}/{instance.name}",
        project=instance.project,
        production=instance.production,
        size=f"{launch.count} {unit}, firmware {launch.svn}",
        snp=snp,
        tdx=tdx,
        vtpm=said.vtpm,
        pcrs=quote.pcrs,
    )
