# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The form of SEV-SNP reports."""

import pytest

from securetrain.core.errors import AttestationError
from securetrain.evidence.tee.snp_report import (
    PlatformBit,
    PolicyBit,
    Product,
    parse_report,
    product_of_cpu,
)
from tests import vocabulary
from tests.evidence.tee.forge import flip
from tests.evidence.tee.forge_amd import CPUS, POLICY, AmdWorld
from tests.tables import each, forgeries

WORLD = AmdWorld()


def refused(data, text):
    vocabulary.refused(AttestationError, "ST-ATTS-401", parse_report, data, says=text)


def test_every_field_is_read_from_its_place():
    report = parse_report(
        WORLD.report(
            guest_svn=9,
            policy=POLICY | 1 << 20 | 0x0137,
            vmpl=2,
            platform_info=0b10111111,
            host_data=b"\x44" * 32,
            id_key_digest=b"\x55" * 48,
            author_key_digest=b"\x66" * 48,
            current_tcb=b"\x77" * 8,
            launch_tcb=b"\x88" * 8,
            mitigations=(5, 7),
            raw={0x1E0: b"\x99" * 8, 0x1E8: b"\x01\x02\x03\x00\x04\x05\x06\x00"},
        )
    )
    assert report.version == 5
    assert report.guest_svn == 9
    assert report.policy == POLICY | 1 << 20 | 0x0137
    assert (report.family_id, report.image_id) == (b"\x11" * 16, b"\x22" * 16)
    assert report.vmpl == 2
    assert report.current_tcb == b"\x77" * 8
    assert report.platform_info == 0b10111111
    assert report.author_key_enabled
    assert not report.mask_chip_key
    assert report.signing_key == 0
    assert report.report_data == bytes(range(64))
    assert report.measurement == b"\x4d" * 48
    assert report.host_data == b"\x44" * 32
    assert report.id_key_digest == b"\x55" * 48
    assert report.author_key_digest == b"\x66" * 48
    assert report.report_id == b"\x33" * 32
    assert report.report_id_ma == b"\xff" * 32
    assert report.reported_tcb == WORLD.tcb
    assert report.cpu == CPUS[Product.MILAN]
    assert report.chip_id == WORLD.chip
    assert report.committed_tcb == b"\x99" * 8
    assert report.current_version == (3, 2, 1)
    assert report.committed_version == (6, 5, 4)
    assert report.launch_tcb == b"\x88" * 8
    assert (report.launch_mitigations, report.current_mitigations) == (5, 7)
    assert report.has_policy(PolicyBit.SINGLE_SOCKET)
    assert not report.has_policy(PolicyBit.SMT)
    assert report.has_platform(PlatformBit.ALIAS_CHECK_COMPLETE)


@each("version", 2, 3, 4, 5)
def test_every_version(version):
    report = parse_report(WORLD.report(version=version))
    assert report.version == version
    assert (report.cpu is None) == (version < 3)


def test_key_flags():
    report = parse_report(WORLD.report(flags=0b11110))
    assert (report.author_key_enabled, report.mask_chip_key, report.signing_key) == (False, True, 7)


@each("version", 0, 1, 0x100, 0x02000000)
def test_unknown_versions(version):
    refused(WORLD.report(version=version), f"version {version}")


@forgeries("algorithm", 0, 2)
def test_other_signature_algorithms(algorithm):
    refused(WORLD.report(algorithm=algorithm), "signature algorithm")


@each("change", lambda r: r[:-1], lambda r: r + b"\0", lambda _: b"")
def test_other_sizes(change):
    refused(change(WORLD.report()), "a report has 1184")


@pytest.mark.forgery
def test_the_bit_of_the_policy_that_is_always_one():
    refused(WORLD.report(policy=0), "bit 17 must be one")


@forgeries("bit", 5, 31)
def test_reserved_bits_of_the_key_flags(bit):
    refused(WORLD.report(flags=1 << bit), "key flags")


@forgeries(
    "version, offset",
    (5, 0x4C),
    (5, 0x4F),
    (2, 0x188),
    (2, 0x19F),
    (3, 0x18B),
    (3, 0x19F),
    (5, 0x1EB),
    (5, 0x1EF),
    (4, 0x1F8),
    (4, 0x207),
    (5, 0x208),
    (5, 0x29F),
)
def test_reserved_bytes(version, offset):
    refused(WORLD.report(version=version, raw={offset: b"\x80"}), "reserved and not zero")


@forgeries("offset", 0x330, 0x49F)
def test_bytes_after_the_signature(offset):
    refused(flip(WORLD.report(), offset), "reserved and not zero")


@each(
    "family, model, product",
    (0x19, 0x01, Product.MILAN),
    (0x19, 0x0F, Product.MILAN),
    (0x19, 0x11, Product.GENOA),
    (0x19, 0xA0, Product.GENOA),
    (0x1A, 0x02, Product.TURIN),
    (0x1A, 0x11, Product.TURIN),
    (0x19, 0x20, None),
    (0x1A, 0x50, None),
    (0x17, 0x31, None),
)
def test_products_of_cpus(family, model, product):
    assert product_of_cpu(family, model) is product
