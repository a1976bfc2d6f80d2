# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""CPUs as a node's evidence, with collateral from a cache; the first tests are the controls."""

from datetime import timedelta
from typing import Any

import pytest

from securetrain.core.errors import AttestationError
from securetrain.core.vocabulary import NodeTier
from securetrain.evidence.node_evidence import TeeEvidence, TeeKind, report_data
from securetrain.evidence.tee.snp_report import SigningKey
from securetrain.evidence.tee_appraiser import TeeAppraiser
from securetrain.evidence.tpm.bootrules import BootReference
from securetrain.evidence.tpm.ccel import learn_ccel
from tests import vocabulary
from tests.attest.collateral import Shelf, case
from tests.evidence.tee import forge_intel as intel
from tests.evidence.tee.forge import NOW, der, pem
from tests.evidence.tee.forge_amd import AmdWorld, good_leaf
from tests.evidence.tpm import bootlogs
from tests.tables import each, forgeries

BINDING = bytes(range(32))
AMD = AmdWorld()
FMSPC = intel.tcb_info()["fmspc"].lower()


def shelf(**without):
    made = intel.good_collateral()
    documents = {
        ("amd-chain", "Milan-VCEK"): pem(AMD.ask(), AMD.ark()),
        ("crl", "amd-Milan-VCEK"): AMD.crl(),
        ("tcb-info", FMSPC): made.tcb_info,
        ("issuer-chain", "tcb-info"): made.tcb_info_chain,
        ("qe-identity", "tdx"): made.qe_identity,
        ("issuer-chain", "qe-identity"): made.qe_identity_chain,
        ("crl", "intel-root"): made.root_crl,
        ("crl", "intel-platform"): made.pck_crl,
    }
    return Shelf(documents)


def appraiser(collateral=None, **changes):
    settings = {
        "snp": AMD.reference(require_crl=True),
        "tdx": intel.reference(rtmrs=intel_rtmrs()),
        "tcb_statuses": ("UpToDate",),
        "secure_boot": True,
        "collateral": collateral or shelf(),
        "amd_roots": AMD.roots,
        "intel_root": intel.pin(),
    }
    return TeeAppraiser(**{**settings, **changes})


NO_BOOT = BootReference()


def intel_rtmrs():
    td = intel.Td()
    return {str(number): (bytes(value).hex(),) for number, value in enumerate(td.rtmrs[:3])}


def snp(binding=BINDING, **changes):
    report = AMD.report(report_data=report_data(binding), **changes)
    return TeeEvidence(kind=TeeKind.SEV_SNP, report=report, certificates=(good_leaf(AMD),))


def tdx(binding=BINDING, **td):
    quote = intel.quote(td={"report_data": report_data(binding), **td})
    return TeeEvidence(kind=TeeKind.TDX, report=quote)


def judge(evidence, chips=(), node="node-0", tdx_boot=NO_BOOT, **changes):
    asked = case(BINDING, NOW, NOW + timedelta(minutes=10), node)
    return appraiser(**changes).appraise(evidence, asked, chips, tdx_boot)


def refused(code, evidence, chips=(), **changes):
    return vocabulary.refused(AttestationError, code, judge, evidence, chips, **changes)


@each("evidence, name", (snp, "sev-snp"), (tdx, "tdx"))
def test_a_genuine_report(evidence, name):
    part = judge(evidence())
    assert part.tier is NodeTier.TEE
    assert part.name == name
    assert part.submodule.trust_vector["runtime-opaque"] == 2
    chip = part.submodule.claims["chip"]
    assert part.identities == (f"chip:{chip}",)
    assert judge(evidence(), chips=(chip,)) == part


@forgeries("evidence, code", (snp, "ST-ATTS-410"), (tdx, "ST-ATTS-517"))
def test_a_report_for_another_connection(evidence, code):
    refused(code, evidence(binding=bytes(32)))


@forgeries("evidence", snp, tdx)
def test_the_chip_of_another_node(evidence):
    refused("ST-ATTS-012", evidence(), chips=("ab" * 16,), names="node node-0: chips")


@forgeries(
    "evidence, document",
    *((snp, name) for name in (("amd-chain", "Milan-VCEK"),)),
    *((tdx, name) for name in shelf().documents if "amd" not in "".join(name)),
)
def test_collateral_that_is_not_there(evidence, document):
    without = shelf()
    del without.documents[document]
    refused("ST-ATTS-735", evidence(), collateral=without)


@pytest.mark.forgery
def test_amds_revocation_list_is_asked_for():
    without = shelf()
    del without.documents["crl", "amd-Milan-VCEK"]
    refused("ST-ATTS-407", snp(), collateral=without)
    allowed = AMD.reference(require_crl=False)
    part = judge(snp(), collateral=without, snp=allowed)
    assert part.submodule.claims["revocation_checked"] is False


@pytest.mark.forgery
def test_a_guest_in_debug():
    refused("ST-ATTS-409", snp(policy=(1 << 17) | (1 << 19)))


@pytest.mark.forgery
def test_a_makers_root_that_is_not_pinned():
    refused("ST-ATTS-404", snp(), amd_roots=dict.fromkeys(AMD.roots, "00" * 32))
    refused("ST-ATTS-504", tdx(), intel_root="00" * 32)


@forgeries("number", *range(3))
def test_a_register_that_nothing_explains(number):
    rtmrs = intel_rtmrs()
    del rtmrs[str(number)]
    refused("ST-ATTS-013", tdx(), tdx=intel.reference(rtmrs=rtmrs), says=f"RTMR{number}")


@pytest.mark.forgery
def test_a_log_that_does_not_replay():
    quote = tdx()
    refused("ST-ATTS-201", TeeEvidence(kind=TeeKind.TDX, report=quote.report, event_log=b"\x01"))


@pytest.mark.forgery
def test_a_report_under_the_other_makers_name():
    refused("ST-ATTS-501", TeeEvidence(kind=TeeKind.TDX, report=snp().report))
    swapped = TeeEvidence(
        kind=TeeKind.SEV_SNP, report=tdx().report, certificates=(der(AMD.leaf()),)
    )
    refused("ST-ATTS-401", swapped)


# Who the chip is.

VLEK = AmdWorld(key=SigningKey.VLEK)


def vlek_shelf():
    """What the cache holds for a provider's keys."""
    made = shelf()
    made.documents["amd-chain", "Milan-VLEK"] = pem(VLEK.ask(), VLEK.ark())
    made.documents["crl", "amd-Milan-VLEK"] = VLEK.crl()
    return made


def provided():
    """A report that is signed by a provider's key: it names no chip."""
    report = VLEK.report(report_data=report_data(BINDING))
    return TeeEvidence(kind=TeeKind.SEV_SNP, report=report, certificates=(good_leaf(VLEK),))


def judge_provided(chips=(), **reference):
    rules = VLEK.reference(require_crl=True, **reference)
    return judge(provided(), chips, collateral=vlek_shelf(), snp=rules)


def identified(part):
    return part.submodule.trust_vector["instance-identity"]


@each("any_chip", False, True)
def test_a_report_that_names_no_chip(any_chip):
    part = judge_provided(any_chip=any_chip)
    assert part.identities == ()
    assert part.submodule.claims["chip"] == ""
    assert identified(part) == 0


@pytest.mark.forgery
def test_a_report_that_names_no_chip_for_a_node_that_has_one():
    error = vocabulary.refused(AttestationError, "ST-ATTS-012", judge_provided, (AMD.chip.hex(),))
    assert "not named" in error.what


def test_any_chip_of_the_maker_is_nobody_in_particular():
    assert identified(judge(snp())) == 2
    assert identified(judge(snp(), snp=AMD.reference(require_crl=True, any_chip=True))) == 0
    assert identified(judge(tdx())) == 2
    anybody = intel.reference(rtmrs=intel_rtmrs(), any_platform=True)
    assert identified(judge(tdx(), tdx=anybody)) == 0


# The log of a TDX guest.

GUEST = bootlogs.good_guest()
LOG = bootlogs.encode(GUEST, (bootlogs.SHA384,))
REGISTERS = bootlogs.rtmrs(GUEST)
LEARNED = learn_ccel(LOG, REGISTERS)


def logged(log=LOG, registers=REGISTERS, **changes):
    """Judge a guest by its log alone."""
    evidence = TeeEvidence(kind=TeeKind.TDX, report=tdx(rtmrs=registers).report, event_log=log)
    rules = {"tdx": intel.reference(rtmrs={}), "tdx_boot": LEARNED}
    return judge(evidence, **{**rules, **changes})


def test_a_log_explains_the_registers():
    assert logged().submodule.claims["secure_boot"] is True
    values = {str(n): (value.hex(),) for n, value in enumerate(REGISTERS)}
    judge(tdx(rtmrs=REGISTERS), tdx=intel.reference(rtmrs=values))  # without a log


@pytest.mark.forgery
def test_a_log_that_is_not_of_these_registers():
    vocabulary.refused(
        AttestationError, "ST-ATTS-204", logged, registers=(bytes(48), *REGISTERS[1:])
    )


@pytest.mark.forgery
def test_a_guest_without_secure_boot():
    guest = bootlogs.good_guest(b"\0")
    log, registers = bootlogs.encode(guest, (bootlogs.SHA384,)), bootlogs.rtmrs(guest)
    off: dict[str, Any] = {"log": log, "registers": registers}
    vocabulary.refused(AttestationError, "ST-ATTS-208", logged, **off)
    assert logged(**off, secure_boot=False).submodule.claims["secure_boot"] is False
