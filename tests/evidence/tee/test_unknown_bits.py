# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Bits, versions and attributes that are newer than this verifier: by name, never silently."""

import random
from datetime import timedelta

from securetrain.core.errors import AttestationError
from securetrain.evidence.node_evidence import TeeEvidence, TeeKind, report_data
from securetrain.evidence.tee.tdx import judge_td
from securetrain.evidence.tee.tdx_quote import parse_quote
from tests import vocabulary
from tests.attest.collateral import case
from tests.evidence import test_tee_appraiser as tees
from tests.evidence.tee import forge_intel as intel
from tests.evidence.tee.forge import NOW
from tests.evidence.tee.forge_amd import DEBUG, POLICY, AmdWorld
from tests.tables import each, forgeries

WORLD = AmdWorld()
UNKNOWN_POLICY = range(26, 64)
UNKNOWN_PLATFORM = (6, *range(8, 64))
PERMISSIONS = (16, 18, 21)


def refused(code, text, rules=None, **report):
    vocabulary.refused(
        AttestationError, code, WORLD.verify, WORLD.report(**report), rules=rules or {}, says=text
    )


@forgeries("bit", *UNKNOWN_POLICY)
def test_a_policy_that_may_permit_something(bit):
    refused("ST-ATTS-413", "policy_bits", policy=POLICY | 1 << bit)
    if bit < 62:
        other = {"policy_bits": 1 << (bit + 1)}
        refused("ST-ATTS-413", "policy_bits", other, policy=POLICY | 1 << bit)
        named = {"policy_bits": 1 << bit}
        report = WORLD.verify(WORLD.report(policy=POLICY | 1 << bit), rules=named).report
        assert report.unknown_policy == 1 << bit


@forgeries("bit", *PERMISSIONS, 19)
def test_the_mask_lets_no_known_bit_in(bit):
    everything = {"policy_bits": (1 << 63) - 1}
    code = "ST-ATTS-409" if 1 << bit == DEBUG else "ST-ATTS-413"
    refused(code, "", everything, policy=POLICY | 1 << bit)


@forgeries("bit", *UNKNOWN_PLATFORM)
def test_a_platform_that_says_more(bit):
    info = 0b100001 | 1 << bit
    report = WORLD.verify(WORLD.report(platform_info=info)).report
    assert report.unknown_platform == 1 << bit
    refused("ST-ATTS-413", "PLATFORM_INFO", {"strict_platform": True}, platform_info=info)


@each("bit", 0, 1, 2, 3, 4, 5, 7)
def test_what_is_known_of_a_platform_is_no_news(bit):
    report = WORLD.verify(WORLD.report(platform_info=1 << bit), rules={"strict_platform": True})
    assert report.report.unknown_platform == 0


@forgeries("version", 6, 7, 255)
@each("raw", {}, {0x208: b"\x80"}, {0x18B: b"\1"})
def test_a_version_to_come(version, raw):
    refused("ST-ATTS-411", "newest accepted is 5", version=version, raw=raw)
    below = {"max_version": max(5, version - 1)}
    refused("ST-ATTS-411", "newest accepted", below, version=version, raw=raw)
    newer = WORLD.report(version=version, raw=raw)
    assert WORLD.verify(newer, rules={"max_version": version}).report.version == version


@forgeries("seed", *range(40))
def test_newer_reports_drawn_at_random(seed):
    """What is weak in them stays weak, whatever else is new."""
    source = random.Random(seed)
    policy, info = POLICY, 0b100001
    for bit in source.sample(UNKNOWN_POLICY, 3):
        policy |= 1 << bit if bit < 63 else 0
    for bit in source.sample(UNKNOWN_PLATFORM, 3):
        info |= 1 << bit
    rules = {"max_version": 9, "policy_bits": policy & ~((1 << 26) - 1)}
    said = {"version": source.randrange(5, 10), "platform_info": info}
    WORLD.verify(WORLD.report(policy=policy, **said), rules=rules)
    weak = source.choice((*PERMISSIONS, 19))
    code = "ST-ATTS-409" if weak == 19 else "ST-ATTS-413"
    refused(code, "", rules, policy=policy | 1 << weak, **said)
    refused("ST-ATTS-410", "", rules, policy=policy, report_data=bytes(64), **said)
    refused("ST-ATTS-411", "", rules, policy=policy, measurement=bytes(48), **said)


def test_the_result_names_what_nobody_could_read():
    report = WORLD.report(
        version=6, policy=POLICY | 1 << 30, platform_info=1 << 9, report_data=report_data(bytes(32))
    )
    rules = WORLD.reference(require_crl=True, max_version=6, policy_bits=1 << 30)
    evidence = TeeEvidence(
        kind=TeeKind.SEV_SNP, report=report, certificates=tees.snp().certificates
    )
    asked = case(bytes(32), NOW, NOW + timedelta(minutes=10), "node-0")
    part = tees.appraiser(snp=rules).appraise(evidence, asked, (), tees.NO_BOOT)
    said = part.submodule.claims["unknown_bits"]
    assert said == "VERSION 6, POLICY 0x40000000, PLATFORM_INFO 0x200"
    assert "unknown_bits" not in tees.judge(tees.snp()).submodule.claims


# TDX.

UNKNOWN_TD = [bit for bit in range(8, 64) if bit not in {27, 28, 29, 30, 31, 62, 63}]


def judge_tdx(bits, **rules):
    attributes = 1 << 28 | bits
    quote = parse_quote(intel.quote(td={"attributes": attributes}))
    reference = intel.reference(**rules)
    judge_td(quote.report, reference.ppids[0], reference, quote.report.report_data)


@forgeries("bit", *UNKNOWN_TD)
def test_an_attribute_without_a_name(bit):
    bits = 1 << bit
    vocabulary.refused(AttestationError, "ST-ATTS-519", judge_tdx, bits)
    judge_tdx(bits, attribute_bits=f"{bits:016x}")
    other = f"{bits << 1 & (1 << 63) - 1:016x}"
    vocabulary.refused(AttestationError, "ST-ATTS-519", judge_tdx, bits, attribute_bits=other)


@forgeries(
    "bit, code",
    *((bit, "ST-ATTS-516") for bit in range(8)),
    (29, "ST-ATTS-519"),
    (63, "ST-ATTS-519"),
)
def test_the_mask_opens_nothing_that_has_a_name(bit, code):
    vocabulary.refused(AttestationError, code, judge_tdx, 1 << bit, attribute_bits="f" * 16)
