# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""One node's CPU: the report of its confidential environment, with collateral from the cache.

Rules:

1. the report carries this exchange's binding, is signed by the maker's hardware, and is not of a
   debug environment (`snp`, `tdx`);
2. certificates, lists and TCB verdicts come from the signed cache, never from the node alone;
3. a TDX guest's run-time registers are explained by its log, or else each of RTMR 0 to 2 has
   reference values of its own;
4. a chip that is enrolled for a node is that node's;
5. a report that is a paravisor's carries the hash of its runtime data instead, and is judged by the
   measurements of paravisors alone (`paravisor`). Which VM it is, is said by those data: several
   VMs share a chip. Its registers of a TDX guest have reference values of their own;
6. a report beside which Google vouches for a virtual TPM names that TPM's key, and is judged by
   what Google has endorsed alone (`google`).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from securetrain.core.errors import AttestationError
from securetrain.core.vocabulary import NodeTier
from securetrain.evidence.case import Case, Part
from securetrain.evidence.collateral import Collateral, CollateralKind
from securetrain.evidence.node_evidence import TeeEvidence, TeeKind, report_data
from securetrain.evidence.result import Submodule, trust_vector
from securetrain.evidence.tee.chain import Memory
from securetrain.evidence.tee.google import (
    CertifiedKey,
    GoogleAppraiser,
    GoogleReference,
    check_technology,
)
from securetrain.evidence.tee.paravisor import (
    ParavisorReference,
    RuntimeData,
    judge_vm,
    parse_runtime_data,
    vouched_data,
)
from securetrain.evidence.tee.snp import ROOTS as AMD_ROOTS
from securetrain.evidence.tee.snp import claimed_key, verify_snp
from securetrain.evidence.tee.snp_report import Product, parse_report
from securetrain.evidence.tee.snp_rules import SnpReference, unknown_bits
from securetrain.evidence.tee.tdx import TdxReference, TdxState, claimed_platform, verify_tdx
from securetrain.evidence.tee.tdx_collateral import ROOT as INTEL_ROOT
from securetrain.evidence.tee.tdx_collateral import TdxCollateral
from securetrain.evidence.tee.tdx_quote import parse_quote
from securetrain.evidence.tpm.bootrules import BootReference
from securetrain.evidence.tpm.ccel import appraise_ccel

MEASURED_BY_LOADER: Final = (0, 1, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class TeeAppraiser:
    """Judges CPU environments for as long as one edition of the reference values stands."""

    snp: SnpReference
    tdx: TdxReference
    tcb_statuses: Collection[str]
    secure_boot: bool
    collateral: Collateral
    paravisor: ParavisorReference = field(default_factory=ParavisorReference)
    google: GoogleAppraiser = field(default_factory=lambda: GoogleAppraiser(GoogleReference()))
    amd_roots: Mapping[Product, str] = field(default_factory=lambda: AMD_ROOTS)
    """SHA-256 of the SubjectPublicKeyInfo of AMD's root for each product."""
    intel_root: str = INTEL_ROOT
    """The same of Intel's."""
    _memory: Memory = field(default_factory=Memory)

    def appraise(
        self, evidence: TeeEvidence, case: Case, chips: tuple[str, ...], tdx_boot: BootReference
    ) -> Part:
        """Judge one report.

        Args:
            evidence: what the node sent.
            case: this exchange.
            chips: ids that are enrolled for the node; empty leaves the chip open.
            tdx_boot: what a TDX guest of the node's image group measures when it boots.

        Raises:
            AttestationError: ST-ATTS-012 and 013, ST-ATTS-2xx, 4xx, 5xx and 7xx.
        """
        wanted = report_data(case.binding)
        match evidence.kind:
            case TeeKind.SEV_SNP:
                part = self._snp(evidence, case, self.snp, wanted)
            case TeeKind.TDX:
                part = self._tdx(evidence, case, self.tdx, wanted, tdx_boot)
        chip = str(part.submodule.claims["chip"])
        if chips and chip not in chips:
            raise AttestationError(
                "ST-ATTS-012",
                f"the chip is {chip[:20] or 'not named'}..., the node has another",
                f"node {case.node}: chips",
            )
        return part

    def appraise_vm(
        self, evidence: TeeEvidence, case: Case, enrolled: tuple[str, ...]
    ) -> tuple[Part, RuntimeData]:
        """Judge the report of a paravisor, and the VM that it speaks for.

        The key in what is returned has said nothing yet: its quote is what makes all of it fresh.

        Args:
            evidence: what the node sent, with the paravisor's part.
            case: this exchange.
            enrolled: ids of VMs that are enrolled for the node.

        Raises:
            AttestationError: ST-ATTS-012, 4xx, 5xx and 7xx.
        """
        assert evidence.paravisor is not None, "NodeAppraiser has seen it"
        runtime = parse_runtime_data(evidence.paravisor.runtime_data)
        wanted = vouched_data(evidence.paravisor.runtime_data)
        accepted = self.paravisor.measurements
        match evidence.kind:
            case TeeKind.SEV_SNP:
                snp = msgspec.structs.replace(self.snp, measurements=accepted, vmpls=(0,))
                part = self._snp(evidence, case, snp, wanted)
            case TeeKind.TDX:
                tdx = msgspec.structs.replace(self.tdx, mr_tds=accepted)
                part = self._tdx(evidence, case, tdx, wanted, BootReference())
        judge_vm(
            runtime,
            self.paravisor,
            enrolled=enrolled,
            secure_boot=self.secure_boot,
            node=case.node,
        )
        claims = {**part.submodule.claims, "vm": runtime.vm, "vtpm_key": runtime.ak_name}
        return (
            Part(
                name=part.name,
                tier=part.tier,
                submodule=Submodule(trust_vector=_vector(enrolled=bool(enrolled)), claims=claims),
                identities=(runtime.identity,),
            ),
            runtime,
        )

    def appraise_google(
        self,
        evidence: TeeEvidence,
        case: Case,
        enrolled: tuple[str, ...],
        tdx_boot: BootReference,
    ) -> tuple[Part, CertifiedKey]:
        """Judge the report of a VM of Google's, and the instance that its TPM's key is of.

        The key in what is returned has said nothing yet: its quote is the caller's to judge.

        Args:
            evidence: what the node sent, with Google's part.
            case: this exchange.
            enrolled: ids of VMs that are enrolled for the node.
            tdx_boot: what a TDX guest of the node's image group measures when it boots.

        Raises:
            AttestationError: ST-ATTS-012 and 013, ST-ATTS-2xx, 4xx, 5xx and 7xx.
        """
        said = evidence.google
        assert said is not None, "NodeAppraiser has seen it"
        certified = self.google.key(said.ak_certificate, said.ak_chain, case.now)
        wanted = report_data(case.binding, certified.digest)
        # What is accepted is said by Google's endorsements, once the report is known to be genuine.
        match evidence.kind:
            case TeeKind.SEV_SNP:
                snp = msgspec.structs.replace(
                    self.snp, measurements=(claimed_measurement(evidence),), vmpls=(0,)
                )
                part = self._snp(evidence, case, snp, wanted)
            case TeeKind.TDX:
                tdx = msgspec.structs.replace(self.tdx, mr_tds=(claimed_measurement(evidence),))
                part = self._tdx(evidence, case, tdx, wanted, tdx_boot)
        measurement = str(part.submodule.claims["measurement"])
        endorsement, launch = self.google.endorsed(evidence.kind.value, measurement, case.now)
        instance = certified.instance
        self.google.judge(instance, enrolled, case.node)
        claims: dict[str, str | int | bool] = {
            **part.submodule.claims,
            "vm": instance.vm,
            "instance": f"{instance.project}/{instance.zone}/{instance.name}",
            "vtpm_key": certified.digest.hex(),
            "firmware": endorsement.firmware,
            "firmware_svn": launch.svn,
            "vcpus" if evidence.kind is TeeKind.SEV_SNP else "memory_gib": launch.count,
        }
        return (
            Part(
                name=part.name,
                tier=part.tier,
                submodule=Submodule(trust_vector=_vector(enrolled=bool(enrolled)), claims=claims),
                identities=(instance.identity,),
            ),
            certified,
        )

    def _snp(
        self, evidence: TeeEvidence, case: Case, reference: SnpReference, wanted: bytes
    ) -> Part:
        product, key = claimed_key(evidence.report, evidence.certificates)
        name = f"{product}-{key.name if key is not None else 'key'}"
        state = verify_snp(
            evidence.report,
            evidence.certificates,
            reference=reference,
            report_data=wanted,
            now=case.now,
            vendor_chain=[self.collateral.get(CollateralKind.AMD_CHAIN, name, case.now)],
            crl=self._list(f"amd-{name}", case),
            roots=self.amd_roots,
            memory=self._memory,
        )
        chip = state.chip_id.hex()
        unknown = unknown_bits(state.report)
        return Part(
            name=TeeKind.SEV_SNP.value,
            tier=NodeTier.TEE,
            submodule=Submodule(
                trust_vector=_vector(enrolled=bool(chip) and not self.snp.any_chip),
                claims={
                    "chip": chip,
                    "product": str(state.product),
                    "key": state.key.name,
                    "provider": state.provider,
                    "measurement": state.report.measurement.hex(),
                    "tcb": str(state.tcb),
                    "revocation_checked": state.crl_checked,
                    **({"unknown_bits": unknown} if unknown else {}),
                },
            ),
            identities=(f"chip:{chip}",) if chip else (),
        )

    def _tdx(
        self,
        evidence: TeeEvidence,
        case: Case,
        reference: TdxReference,
        wanted: bytes,
        tdx_boot: BootReference,
    ) -> Part:
        platform = claimed_platform(evidence.report)

        def get(kind: CollateralKind, name: str) -> bytes:
            return self.collateral.get(kind, name, case.now)

        state = verify_tdx(
            evidence.report,
            reference=reference,
            collateral=TdxCollateral(
                tcb_info=get(CollateralKind.TCB_INFO, platform.fmspc),
                tcb_info_chain=get(CollateralKind.ISSUER_CHAIN, "tcb-info"),
                qe_identity=get(CollateralKind.QE_IDENTITY, "tdx"),
                qe_identity_chain=get(CollateralKind.ISSUER_CHAIN, "qe-identity"),
                root_crl=get(CollateralKind.CRL, "intel-root"),
                pck_crl=get(CollateralKind.CRL, f"intel-{platform.ca}"),
            ),
            accepted_statuses=self.tcb_statuses,
            report_data=wanted,
            now=case.now,
            root=self.intel_root,
            memory=self._memory,
        )
        boot = self._boot(evidence, state, tdx_boot)
        return Part(
            name=TeeKind.TDX.value,
            tier=NodeTier.TEE,
            submodule=Submodule(
                trust_vector=_vector(enrolled=not self.tdx.any_platform),
                claims={
                    "chip": state.ppid,
                    "fmspc": state.fmspc,
                    "measurement": state.report.mr_td.hex(),
                    "tcb_status": str(state.tcb.status),
                    "revocation_checked": True,
                    "secure_boot": boot,
                },
            ),
            identities=(f"chip:{state.ppid}",),
        )

    def _boot(self, evidence: TeeEvidence, state: TdxState, reference: BootReference) -> bool:
        """Tell whether Secure Boot is known to have been on."""
        if evidence.event_log:
            found = appraise_ccel(
                evidence.event_log, state.rtmrs, reference, secure_boot=self.secure_boot
            )
            return found.secure_boot
        open_registers = [n for n in MEASURED_BY_LOADER if str(n) not in self.tdx.rtmrs]
        if open_registers:
            raise AttestationError(
                "ST-ATTS-013",
                f"the CCEL log is missing, and RTMR{open_registers[0]} has no reference values",
                "tee.event_log",
                "let the node read /sys/firmware/acpi/tables/data/CCEL, or list tdx.rtmrs",
            )
        return False

    def _list(self, name: str, case: Case) -> bytes | None:
        if not self.collateral.has(CollateralKind.CRL, name):
            return None
        return self.collateral.get(CollateralKind.CRL, name, case.now)


def check_google_vtpm(evidence: TeeEvidence) -> None:
    """Compare the kind of VM that the TPM's host has started with the kind of the report.

    Its quote has been judged.

    Raises:
        AttestationError: ST-ATTS-013 without a log, ST-ATTS-446; ST-ATTS-201, 202 and 204.
    """
    assert evidence.google is not None, "the caller has seen it"
    vtpm = evidence.google.vtpm
    if not vtpm.event_log:
        raise AttestationError(
            "ST-ATTS-013",
            "the firmware's event log is missing: it says what kind of VM the TPM is of",
            "google.vtpm.event_log",
            "let the node read the log, as root",
        )
    check_technology(vtpm.event_log, vtpm.pcrs.get(0, b""), evidence.kind.value)


def claimed_measurement(evidence: TeeEvidence) -> str:
    """The MEASUREMENT or MRTD of a report that nobody has verified yet, hex.

    Raises:
        AttestationError: ST-ATTS-401 or 501.
    """
    if evidence.kind is TeeKind.SEV_SNP:
        return parse_report(evidence.report).measurement.hex()
    return parse_quote(evidence.report).report.mr_td.hex()


def _vector(*, enrolled: bool) -> dict[str, int]:
    claims = ["hardware", "configuration", "executables", "runtime-opaque"]
    if enrolled:
        claims.append("instance-identity")
    return trust_vector(*claims)
