# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The TCB status of TDX platforms."""

import json

import msgspec
import pytest

from securetrain.core.errors import AttestationError
from securetrain.evidence.tee.tcb import PlatformSvns, judge_enclave, judge_tcb
from securetrain.evidence.tee.tdx import authenticate
from securetrain.evidence.tee.tdx_collateral import QeIdentity, TcbInfo, TcbStatus
from securetrain.evidence.tee.tdx_quote import parse_quote
from tests import vocabulary
from tests.evidence.tee import forge_intel as intel
from tests.evidence.tee.forge import NOW
from tests.evidence.tee.forge_intel import PCE_SVN, SVNS, level, module, svn_level
from tests.evidence.vectors import needs_vectors, vector
from tests.tables import each, forgeries

S = TcbStatus


def info(**changes):
    return msgspec.convert(intel.tcb_info(**changes), TcbInfo, strict=False)


def enclave(report=None, **changes):
    identity = msgspec.convert(intel.qe_identity(**changes), QeIdentity, strict=False)
    parsed = parse_quote(intel.quote(enclave=report or {}))
    return judge_enclave(identity, parsed.qe_report)


def judge(td=None, *, svns=SVNS, pce=PCE_SVN, qe="UpToDate", version=4, **changes):
    report = parse_quote(intel.quote(version=version, td=td or {})).report
    platform = PlatformSvns(components=svns, pce_svn=pce)
    return judge_tcb(info(**changes), enclave(tcbLevels=[svn_level(6, qe)]), platform, report)


def refused(code, text, call, *arguments, **changes):
    error = vocabulary.refused(AttestationError, f"ST-ATTS-{code}", call, *arguments, **changes)
    assert text in f"{error.what} {error.where}", error


def td(*svns, **more):
    """A TD whose security versions begin so."""
    return {"svns": bytes([*svns, *bytes(16 - len(svns))]), **more}


def lowered(position):
    return tuple(svn - (index == position) for index, svn in enumerate(SVNS))


def test_the_highest_level():
    verdict = judge()
    parts = (verdict.status, verdict.platform, verdict.module, verdict.enclave)
    assert parts == (S.UP_TO_DATE,) * 4
    assert (verdict.advisories, verdict.tcb_date.year) == ((), 2026)


@forgeries("position", 0, 1)
def test_one_number_of_the_platform_below_the_level(position):
    verdict = judge(svns=lowered(position))
    assert (verdict.status, verdict.advisories) == (S.OUT_OF_DATE, ("INTEL-SA-00001",))
    assert judge(pce=PCE_SVN - 1).status is S.OUT_OF_DATE


@forgeries("changes", *({"svns": lowered(position)} for position in (2, 5, 7)), {"pce": 4})
def test_one_number_of_the_platform_below_all_levels(changes):
    refused(515, "below all", judge, **changes)


@forgeries("position", *range(2, 16))
def test_one_number_of_the_td_below_all_levels(position):
    needs = [0, 0, *([9] * 14)]
    have = [5, 1, *([9] * 14)]
    levels = [level(td=needs)]
    assert judge({"svns": bytes(have)}, tcbLevels=levels).status is S.UP_TO_DATE
    have[position] = 8
    refused(515, "below", judge, {"svns": bytes(have)}, tcbLevels=levels)


def test_a_module_of_version_0_is_judged_by_the_level():
    levels = [level(td=(5, 0, 7)), level("OutOfDate", td=(3, 0, 7))]
    assert judge(td(5, 0, 7), tcbLevels=levels).status is S.UP_TO_DATE
    assert judge(td(4, 0, 7), tcbLevels=levels).status is S.OUT_OF_DATE
    refused(515, "below", judge, td(2, 0, 7), tcbLevels=levels)


def test_a_module_of_a_later_version_is_judged_by_its_identity():
    assert judge(tcbLevels=[level(td=(99, 0, 7))]).status is S.UP_TO_DATE
    refused(515, "TDX module 1", judge, td(4, 1, 7))
    names = [module(1, [svn_level(5), svn_level(3, "OutOfDate", ("INTEL-SA-00003",))])]
    verdict = judge(td(4, 1, 7), tdxModuleIdentities=names)
    assert (verdict.status, verdict.module) == (S.OUT_OF_DATE, S.OUT_OF_DATE)
    assert verdict.advisories == ("INTEL-SA-00003",)


@forgeries("names", [], [module(3)])
def test_a_module_that_intel_does_not_describe(names):
    refused(513, "no module of major version 1", judge, tdxModuleIdentities=names)


def test_names_of_modules_in_either_case():
    names = [module(1, id="TDX_1a"), module(0x1A, id="TDX_1a")]
    assert judge(td(5, 0x1A, 7), tdxModuleIdentities=names)


@forgeries("major", 0, 1)
@each(
    "td, where",
    ({"seam_signer": b"\x01" + bytes(47)}, "MRSIGNERSEAM"),
    ({"seam_attributes": b"\x01" + bytes(7)}, "SEAMATTRIBUTES"),
)
def test_a_module_of_somebody_else(td, where, major):
    svns = bytes([5, major, 7, *bytes(13)])
    refused(513, where, judge, {"svns": svns, **td})


@pytest.mark.forgery
def test_attributes_of_a_module_that_a_mask_leaves_out():
    names = [module(attributesMask="00" * 8)]
    bits = {"seam_attributes": b"\x01" + bytes(7)}
    refused(513, "SEAMATTRIBUTES", judge, bits, tdxModuleIdentities=names)
    names = [module(attributes="01" + "00" * 7)]
    refused(513, "SEAMATTRIBUTES", judge, tdxModuleIdentities=names)


def test_the_identity_of_the_version_replaces_the_general_one():
    other = {**intel.MODULE, "mrsigner": "11" * 48}
    assert judge(tdxModule=other)
    refused(513, "MRSIGNERSEAM", judge, td(5, 0, 7), tdxModule=other)
    signer = module(mrsigner="AB" * 48)
    assert judge({"seam_signer": b"\xab" * 48}, tdxModuleIdentities=[signer])


def test_the_order_of_the_document_does_not_matter():
    levels = [level("OutOfDate", svns=(5, 5, *SVNS[2:]), pce=5), level()]
    assert judge(tcbLevels=levels).status is S.UP_TO_DATE
    levels = [level("OutOfDate", pce=5), level()]
    assert judge(tcbLevels=levels).status is S.UP_TO_DATE
    levels = [level("OutOfDate", td=(0, 0, 5)), level()]
    assert judge(tcbLevels=levels).status is S.UP_TO_DATE
    names = [module(1, [svn_level(3, "OutOfDate"), svn_level(5)])]
    assert judge(tdxModuleIdentities=names).status is S.UP_TO_DATE


@each(
    "platform, part, status",
    ("UpToDate", "OutOfDate", S.OUT_OF_DATE),
    ("SWHardeningNeeded", "OutOfDate", S.OUT_OF_DATE),
    ("ConfigurationNeeded", "OutOfDate", S.OUT_OF_DATE_CONFIGURATION_NEEDED),
    ("ConfigurationAndSWHardeningNeeded", "OutOfDate", S.OUT_OF_DATE_CONFIGURATION_NEEDED),
    ("OutOfDate", "OutOfDate", S.OUT_OF_DATE),
    ("OutOfDateConfigurationNeeded", "OutOfDate", S.OUT_OF_DATE_CONFIGURATION_NEEDED),
    ("Revoked", "OutOfDate", S.REVOKED),
    ("Revoked", "UpToDate", S.REVOKED),
    ("UpToDate", "Revoked", S.REVOKED),
    ("OutOfDate", "Revoked", S.REVOKED),
    ("UpToDate", "ConfigurationNeeded", S.OUT_OF_DATE),
    ("SWHardeningNeeded", "UpToDate", S.SW_HARDENING_NEEDED),
    ("ConfigurationNeeded", "UpToDate", S.CONFIGURATION_NEEDED),
    ("OutOfDate", "UpToDate", S.OUT_OF_DATE),
)
def test_parts_make_a_status_worse(platform, part, status):
    levels = [level(platform)]
    assert judge(tcbLevels=levels, qe=part).status is status
    names = [module(1, [svn_level(5, part)])]
    assert judge(tcbLevels=levels, tdxModuleIdentities=names).status is status


OLD = [module(1, [svn_level(6), svn_level(4, "OutOfDate")])]


def relaunched(svns2, names=OLD, **changes):
    later = {"svns2": bytes([*svns2, *bytes(13)])}
    return judge(later, version=5, tdxModuleIdentities=names, **changes).status


def test_a_module_that_was_updated_since_the_launch():
    assert relaunched((6, 1, 7)) is S.TD_RELAUNCH_ADVISED
    needs = [level("ConfigurationNeeded")]
    assert relaunched((6, 1, 7), tcbLevels=needs) is S.TD_RELAUNCH_ADVISED_CONFIGURATION_NEEDED
    to_version_3 = [*OLD, module(3, [svn_level(2), svn_level(1)])]
    assert relaunched((2, 3, 7), to_version_3) is S.TD_RELAUNCH_ADVISED
    newest = [level(td=(4, 0, 7))]
    assert relaunched((4, 0, 7), tcbLevels=newest) is S.TD_RELAUNCH_ADVISED


@each(
    "svns2, changes",
    ((5, 1, 7), {}),
    ((6, 1, 6), {}),
    ((1, 3, 7), {"names": [*OLD, module(3, [svn_level(2), svn_level(1)])]}),
    ((9, 3, 7), {"names": [*OLD, {**module(3), "tcbLevels": []}]}),
    ((3, 0, 7), {"tcbLevels": [level(td=(4, 0, 7))]}),
    ((6, 1, 7), {"qe": "OutOfDate"}),
    ((6, 1, 7), {"tcbLevels": [level("OutOfDate")]}),
)
def test_launching_again_would_not_be_enough(svns2, changes):
    assert relaunched(svns2, **changes) is S.OUT_OF_DATE


def test_launching_again_helps_against_nothing_else():
    up = [module(1, [svn_level(5)])]
    assert relaunched((6, 1, 7), up, tcbLevels=[level("OutOfDate")]) is S.OUT_OF_DATE
    assert relaunched((6, 1, 7), up) is S.UP_TO_DATE
    revoked = [module(1, [svn_level(5, "Revoked")])]
    assert relaunched((6, 1, 7), revoked) is S.REVOKED
    # The level for the SGX numbers alone is healthy, the one for the TD's is not.
    levels = [level(td=(0, 0, 8)), level("OutOfDate", pce=5, td=(0, 0, 7))]
    assert relaunched((6, 1, 8), tcbLevels=levels) is S.TD_RELAUNCH_ADVISED
    assert relaunched((6, 1, 8), up, tcbLevels=levels) is S.OUT_OF_DATE
    levels = [level(td=(0, 0, 8)), level("Revoked", pce=5, td=(0, 0, 7))]
    assert relaunched((6, 1, 8), tcbLevels=levels) is S.REVOKED
    levels = [level("OutOfDate", td=(0, 0, 8)), level("UpToDate", pce=5, td=(0, 0, 7))]
    assert relaunched((6, 1, 8), tcbLevels=levels) is S.OUT_OF_DATE


@pytest.mark.forgery
def test_an_update_to_a_module_that_intel_does_not_describe():
    vocabulary.refused(AttestationError, "ST-ATTS-513", relaunched, (9, 9, 9))


def test_tdx_1_0_says_nothing_of_updates():
    status = judge({"svns": intel.TD_SVNS}, version=4, tdxModuleIdentities=OLD).status
    assert status is S.OUT_OF_DATE


def test_the_levels_of_the_quoting_enclave():
    assert enclave().tcb_status is S.UP_TO_DATE
    assert enclave({"svn": 9}).tcb_status is S.UP_TO_DATE
    assert enclave({"svn": 5}).tcb_status is S.OUT_OF_DATE
    refused(515, "quoting enclave", enclave, {"svn": 3})


def attributes(first, eighth="00"):
    return {"attributes": bytes.fromhex(f"{first}000000000000{eighth}e700000000000000")}


@forgeries(
    "report, where, changes",
    ({"signer": "ab" * 32}, "MRSIGNER", {}),
    ({"product": 1}, "ISVPRODID", {}),
    ({"misc_select": 1}, "MISCSELECT", {}),
    (attributes("17"), "ATTRIBUTES", {}),
    (attributes("05"), "ATTRIBUTES", {}),
    (attributes("15", "01"), "ATTRIBUTES", {}),
    # A mask leaves the bit out.
    (attributes("17"), "DEBUG", {"attributesMask": "F9" + "FF" * 7 + "00" * 8}),
)
def test_another_quoting_enclave(report, where, changes):
    refused(512, where, enclave, report, **changes)


def test_masks_of_the_quoting_enclave():
    # The bytes of Intel's numbers are in the order of memory.
    assert enclave({"misc_select": 0x0100}, miscselectMask="FF00FFFF")
    assert enclave({"misc_select": 0x01}, miscselect="01000000")
    refused(512, "MISCSELECT", enclave, {"misc_select": 1}, miscselect="00000001")


# Real evidence.

GO_TDX = "google__go-tdx-guest/testing/testdata/"


def real_info(**changes):
    document = json.loads(vector(GO_TDX + "sample_tcbInfo_response"))["tcbInfo"]
    return msgspec.convert({**document, **changes}, TcbInfo, strict=False)


def real_enclave(quote):
    document = json.loads(vector(GO_TDX + "sample_qeIdentity_response"))["enclaveIdentity"]
    return judge_enclave(msgspec.convert(document, QeIdentity, strict=False), quote.qe_report)


@needs_vectors
def test_a_genuine_platform_below_all_genuine_levels():
    genuine = authenticate(vector(GO_TDX + "tdx_prod_quote_SPR_E4.dat"), now=NOW)
    level_ = real_enclave(genuine.quote)
    assert level_.tcb_status is S.UP_TO_DATE
    svns = genuine.platform.svns
    assert genuine.platform.fmspc == real_info().fmspc.lower()
    refused(515, "below all", judge_tcb, real_info(), level_, svns, genuine.quote.report)
    # It is up to date for its own microcode alone.
    document = json.loads(vector(GO_TDX + "sample_tcbInfo_response"))["tcbInfo"]
    first = document["tcbLevels"][0]
    first["tcb"]["sgxtcbcomponents"] = [{"svn": svn} for svn in svns.components]
    first["tcb"]["tdxtcbcomponents"][2]["svn"] = 4
    made = msgspec.convert(document, TcbInfo, strict=False)
    assert judge_tcb(made, level_, svns, genuine.quote.report).status is S.UP_TO_DATE


@needs_vectors
@each("name", "quote_v5_sample.dat", "ccel/cos-113-tdx-quote.dat")
def test_genuine_quoting_enclaves(name):
    assert real_enclave(parse_quote(vector(GO_TDX + name))).tcb_status is S.UP_TO_DATE
