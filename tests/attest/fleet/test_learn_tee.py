# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What guests teach: each is then accepted by the verifier's own rules, and nothing forged is."""

from datetime import UTC, datetime

import msgspec
import pytest

from securetrain.attest.fleet.learn_tee import learn_snp, learn_tdx, merge_snp, merge_tdx
from securetrain.core.errors import AttestationError
from securetrain.evidence.node_evidence import TeeEvidence, TeeKind
from securetrain.evidence.tee.snp_report import Product, SigningKey, parse_report
from securetrain.evidence.tee.snp_rules import Permission, Protection, SnpReference, Tcb
from securetrain.evidence.tee.tdx import TdAttribute, TdxReference
from securetrain.evidence.tee.tdx_quote import parse_quote
from securetrain.evidence.tpm.ccel import appraise_ccel
from tests.attest.worlds import refused
from tests.evidence.tee import forge_intel as intel
from tests.evidence.tee.forge import NOW, flip
from tests.evidence.tee.forge_amd import (
    DEBUG,
    POLICY,
    PROVIDER,
    REPORT_DATA,
    SMT,
    AmdWorld,
    good_chain,
    good_leaf,
)
from tests.evidence.tpm import bootlogs
from tests.evidence.vectors import needs_vectors, vector
from tests.tables import each, forgeries

LOG = bootlogs.encode(bootlogs.good_guest(), (bootlogs.SHA384,))
GUEST_RTMRS = tuple(bootlogs.rtmrs(bootlogs.good_guest()))
REAL_NOW = datetime(2026, 6, 1, tzinfo=UTC)
WORLDS = [AmdWorld(product=p, key=k) for p in Product for k in SigningKey]


def snp(world, report=None, certificates=None):
    return TeeEvidence(
        kind=TeeKind.SEV_SNP,
        report=report or world.report(),
        certificates=(good_leaf(world),) if certificates is None else certificates,
    )


def learn(world, report=None, certificates=None, vendor_chain=None, report_data=REPORT_DATA):
    return learn_snp(
        snp(world, report, certificates),
        report_data=report_data,
        now=NOW,
        vendor_chain=good_chain(world) if vendor_chain is None else vendor_chain,
        roots=world.roots,
    )


def quote(**td):
    return intel.quote(td=td)


def learn_td(data=None, log=b"", report_data=intel.REPORT_DATA, root=None):
    evidence = TeeEvidence(kind=TeeKind.TDX, report=data or quote(), event_log=log)
    return learn_tdx(evidence, report_data=report_data, now=NOW, root=root or intel.pin())


# SEV-SNP.


@each("world", *WORLDS)
def test_a_guest_that_was_learned_is_accepted(world):
    learned = learn(world)
    rules = msgspec.structs.asdict(learned.reference) | {"require_crl": False}
    state = world.verify(rules=rules)
    assert learned.chip == state.chip_id.hex()
    assert learned.reference.min_tcb == {world.product: state.tcb}
    assert not learned.reference.any_chip
    assert learned.reference.require_crl
    is_chip = world.key is SigningKey.VCEK
    assert learned.reference.chip_ids == ((learned.chip,) if is_chip else ())
    assert learned.reference.providers == (() if is_chip else (PROVIDER,))


def test_another_guest_is_not():
    world = AmdWorld()
    rules = msgspec.structs.asdict(learn(world).reference) | {"require_crl": False}
    for change in ({"measurement": bytes(48)}, {"host_data": b"\1" * 32}, {"vmpl": 1}):
        refused(
            "ST-ATTS-411", lambda change=change: world.verify(world.report(**change), rules=rules)
        )
    refused("ST-ATTS-413", lambda: world.verify(world.report(policy=POLICY | SMT), rules=rules))


def test_what_the_guest_permits_is_learned():
    world = AmdWorld()
    learned = learn(world, world.report(policy=POLICY | SMT, vmpl=2, host_data=b"\7" * 32))
    assert learned.reference.permissions == (Permission.SMT,)
    assert learned.reference.vmpls == (2,)
    assert learned.reference.host_data == ("07" * 32,)


def test_the_lower_of_both_firmwares():
    world = AmdWorld()
    launch = bytes([world.tcb[0] - 1]) + world.tcb[1:]
    (tcb,) = learn(world, world.report(launch_tcb=launch)).reference.min_tcb.values()
    (usual,) = learn(world).reference.min_tcb.values()
    assert tcb == msgspec.structs.replace(usual, bootloader=usual.bootloader - 1)


def test_all_certificates_from_the_node():
    world = AmdWorld()
    offered = (good_leaf(world), *good_chain(world))
    assert learn(world, certificates=offered, vendor_chain=()).chip


@forgeries(
    "id, code, how",
    ("altered", "ST-ATTS-403", {"report": flip(AmdWorld().report(), 0x95)}),
    ("another-bundle", "ST-ATTS-410", {"report_data": bytes(64)}),
    ("zeros", "ST-ATTS-401", {"report": b"\0" * 1184}),
    ("under-debug", "ST-ATTS-409", {"report": AmdWorld().report(policy=POLICY | DEBUG)}),
    ("no-intermediates", "ST-ATTS-404", {"vendor_chain": ()}),
    ("no-key-certificate", "ST-ATTS-402", {"certificates": ()}),
)
def test_a_report_that_teaches_nothing(code, how):
    refused(code, lambda: learn(AmdWorld(), **how))


@pytest.mark.forgery
def test_a_genuine_looking_amd():
    world = AmdWorld()
    refused(
        "ST-ATTS-404",
        lambda: learn_snp(
            snp(world), report_data=REPORT_DATA, now=NOW, vendor_chain=good_chain(world)
        ),
    )


def test_merging_guests():
    first = learn(AmdWorld()).reference
    old = SnpReference(
        min_tcb={Product.MILAN: Tcb(bootloader=9, microcode=1), Product.TURIN: Tcb(fmc=2)},
        measurements=("11" * 48,),
        protections=(Protection.SINGLE_SOCKET,),
        min_version=4,
        any_chip=True,
    )
    merged = merge_snp(old, first)
    assert merged.measurements == ("11" * 48, *first.measurements)
    assert merged.chip_ids == first.chip_ids
    assert merged.min_tcb[Product.TURIN] == Tcb(fmc=2)
    assert merged.min_tcb[Product.MILAN].bootloader == 4
    assert merged.min_tcb[Product.MILAN].microcode == 1
    assert merged.min_tcb[Product.MILAN].snp == 0
    assert (merged.protections, merged.min_version, merged.any_chip) == (old.protections, 4, True)
    assert merge_snp(merged, first) == merged


# TDX.


def test_a_td_with_its_registers():
    learned = learn_td(quote(attributes=intel.SEPT_VE_DISABLE | 1 << 30, owner=b"\5" * 48))
    assert learned.boot is None
    rules = msgspec.structs.asdict(merge_tdx(TdxReference(), learned))
    assert set(rules["rtmrs"]) == {"0", "1", "2"}
    assert rules["allowed_attributes"] == (TdAttribute.PKS,)
    assert rules["mr_owners"] == ("00" * 48, "05" * 48)
    data = quote(attributes=intel.SEPT_VE_DISABLE | 1 << 30, owner=b"\5" * 48)
    assert intel.verify(data, rules=rules).ppid == learned.chip
    changed = tuple(bytes([n]) * 48 for n in range(4))
    for change in ({"mr_td": bytes(48)}, {"rtmrs": changed}, {"config_id": b"\1" * 48}):
        with pytest.raises(AttestationError, match="ST-ATTS-518"):
            intel.verify(quote(**change), rules=rules)


def test_a_td_with_its_log():
    learned = learn_td(quote(rtmrs=GUEST_RTMRS), LOG)
    assert merge_tdx(TdxReference(), learned).rtmrs == {}
    assert learned.boot is not None
    assert appraise_ccel(LOG, GUEST_RTMRS, learned.boot, secure_boot=True).secure_boot


def test_an_older_report_has_no_service_td():
    assert learn_td(intel.quote(version=4)).reference.mr_service_tds == ()
    assert learn_td(intel.quote(version=5)).reference.mr_service_tds == ("00" * 48,)


@forgeries(
    "id, code, how",
    ("altered", "ST-ATTS-503", {"data": flip(quote(), 200)}),
    ("another-bundle", "ST-ATTS-517", {"report_data": bytes(64)}),
    ("under-debug", "ST-ATTS-516", {"data": quote(attributes=1)}),
    ("without-sept-ve-disable", "ST-ATTS-519", {"data": quote(attributes=0)}),
    (
        "an-unknown-attribute",
        "ST-ATTS-519",
        {"data": quote(attributes=intel.SEPT_VE_DISABLE | 1 << 40)},
    ),
    ("another-root", "ST-ATTS-504", {"root": "ab" * 32}),
    ("a-log-of-another-boot", "ST-ATTS-204", {"log": LOG}),
)
def test_a_quote_that_teaches_nothing(code, how):
    refused(code, lambda: learn_td(**how))


def test_guests_with_and_without_logs_do_not_mix():
    """A register that is listed is compared for every guest: one kind would shut the other out."""
    by_log = merge_tdx(TdxReference(), learn_td(quote(rtmrs=GUEST_RTMRS), LOG))
    refused("ST-ATTS-013", lambda: merge_tdx(by_log, learn_td()), names="tee.event_log")
    by_registers = merge_tdx(TdxReference(), learn_td())
    both = merge_tdx(by_registers, learn_td(quote(rtmrs=GUEST_RTMRS), LOG))
    for number in "012":
        assert both.rtmrs[number] == (*by_registers.rtmrs[number], GUEST_RTMRS[int(number)].hex())


def test_merging_tds_keeps_what_was_asked():
    old = TdxReference(min_evaluation=17, any_platform=True, ppids=("00" * 16,))
    merged = merge_tdx(old, learn_td())
    assert (merged.min_evaluation, merged.any_platform) == (17, True)
    assert merged.ppids == ("00" * 16, intel.PPID.hex())
    assert merge_tdx(merged, learn_td()) == merged


# Real evidence.


@needs_vectors
def test_a_real_guest_under_debug_teaches_nothing():
    """Its chain and signature are judged first: they hold."""
    folder = "google__go-sev-guest/verify/"
    report = vector(folder + "testdata/attestation.bin")
    leaf = vector(folder + "testdata/vcek.testcer")
    evidence = TeeEvidence(kind=TeeKind.SEV_SNP, report=report, certificates=(leaf,))
    refused(
        "ST-ATTS-409",
        lambda: learn_snp(
            evidence,
            report_data=parse_report(report).report_data,
            now=REAL_NOW,
            vendor_chain=[vector(folder + "trust/ask_ark_milan.pem")],
        ),
    )


@needs_vectors
def test_a_real_td_teaches():
    folder = "google__go-tdx-guest/testing/testdata/"
    quote, log = (
        vector(folder + "ccel/cos-113-tdx-quote.dat"),
        vector(folder + "ccel/ccel_data.dat"),
    )
    report = parse_quote(quote).report
    evidence = TeeEvidence(kind=TeeKind.TDX, report=quote, event_log=log)
    learned = learn_tdx(evidence, report_data=report.report_data, now=REAL_NOW)
    assert len(learned.chip) == 32
    assert learned.boot is not None
    assert appraise_ccel(log, report.rtmrs, learned.boot, secure_boot=False).registers
    weak = vector(folder + "tdx_prod_quote_SPR_E4.dat")
    evidence = TeeEvidence(kind=TeeKind.TDX, report=weak)
    report_data = parse_quote(weak).report.report_data
    refused("ST-ATTS-519", lambda: learn_tdx(evidence, report_data=report_data, now=REAL_NOW))
