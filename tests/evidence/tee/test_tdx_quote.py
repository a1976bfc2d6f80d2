# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The form of TDX quotes."""

import pytest

from securetrain.core.errors import AttestationError
from securetrain.evidence.tee.tdx_quote import QUOTE_LIMIT, parse_quote
from tests import vocabulary
from tests.evidence.tee import forge_intel as intel
from tests.evidence.tee.forge import p256_key
from tests.evidence.tee.forge_intel import quote
from tests.tables import each, forgeries


def refused(data, text, code="ST-ATTS-501"):
    vocabulary.refused(AttestationError, code, parse_quote, data, says=text)


def test_every_field_is_read_from_its_place():
    fields = {
        "svns": bytes(range(16)),
        "seam_signer": b"\x01" * 48,
        "seam_attributes": b"\x02" * 8,
        "attributes": 0x0102030405060708,
        "xfam": 0x1112131415161718,
        "config_id": b"\x03" * 48,
        "owner": b"\x04" * 48,
        "owner_config": b"\x05" * 48,
        "svns2": bytes(range(16, 32)),
        "service_td": b"\x06" * 48,
    }
    enclave = {"misc_select": 7, "attributes": bytes(range(16)), "product": 9, "svn": 10}
    parsed = parse_quote(quote(version=5, td=fields, enclave=enclave))
    report = parsed.report
    assert parsed.version == 5
    assert report.tee_tcb_svn == fields["svns"]
    assert report.mr_seam == b"\x99" * 48
    assert report.mr_signer_seam == fields["seam_signer"]
    assert report.seam_attributes == fields["seam_attributes"]
    assert report.td_attributes == fields["attributes"]
    assert report.xfam == fields["xfam"]
    assert report.mr_td == intel.MR_TD
    assert report.mr_config_id == fields["config_id"]
    assert report.mr_owner == fields["owner"]
    assert report.mr_owner_config == fields["owner_config"]
    assert report.rtmrs == intel.RTMRS
    assert report.report_data == intel.REPORT_DATA
    assert report.tee_tcb_svn2 == fields["svns2"]
    assert report.mr_service_td == fields["service_td"]
    qe = parsed.qe_report
    assert (qe.misc_select, qe.attributes) == (7, bytes(range(16)))
    assert (qe.isv_prod_id, qe.isv_svn) == (9, 10)
    assert qe.mr_signer.hex() == intel.QE_SIGNER
    assert parsed.qe_auth_data == bytes(range(32))
    assert parsed.pck_chain == intel.pck_chain()
    assert parsed.attestation_key == intel.point(p256_key("attestation"))


@each("version, body_type, signed", (4, 3, 632), (5, 2, 638), (5, 3, 702))
def test_every_form(version, body_type, signed):
    parsed = parse_quote(quote(version=version, body_type=body_type))
    assert len(parsed.signed) == signed
    assert bool(parsed.report.tee_tcb_svn2) == (signed == 702)
    assert bool(parsed.report.mr_service_td) == (signed == 702)


@each("after", b"\0" * 3066, b"\nextra bytes", quote())
def test_what_follows_a_quote_is_ignored(after):
    assert parse_quote(intel.good_quote() + after) == parse_quote(intel.good_quote())


def test_a_chain_with_the_end_of_its_string():
    assert parse_quote(quote(chain=intel.pck_chain() + b"\0")).pck_chain == intel.pck_chain()


@forgeries(
    "changes, text",
    ({"version": 3}, "version 3"),
    ({"version": 6}, "version 6"),
    ({"key_type": 3}, "attestation key type 3"),
    ({"tee": 0}, "TEE type 0x0"),
    ({"version": 5, "body_type": 1, "body_size": 384}, "body type 1"),
    ({"version": 5, "body_type": 4}, "body type 4"),
    ({"version": 5, "body_type": 3, "body_size": 584}, "body type 3 of 584"),
    ({"version": 5, "body_type": 2, "body_size": 648}, "body type 2 of 648"),
    ({"outer_type": 5}, "type 5, 6 is expected"),
    ({"inner_type": 6}, "type 6, 5 is expected"),
    ({"inner_type": 1}, "type 1, 5 is expected"),
    ({"lies": (1, 0, 0, 0)}, "are left"),
    ({"lies": (-1, 0, 0, 0)}, "are left"),
    ({"lies": (0, 1, 0, 0)}, "are left"),
    ({"lies": (0, -1, 0, 0)}, "follow the structure"),
    ({"lies": (0, 0, 1, 0)}, "certification data of type"),
    ({"lies": (0, 0, 1000, 0)}, "a length"),
    ({"lies": (0, 0, 0, 1)}, "wanted"),
    ({"lies": (0, 0, 0, 1 << 20)}, "the limit is"),
    ({"lies": (1 << 31, 0, 0, 0)}, "a length"),
    ({"inner_junk": b"x"}, "follow the structure"),
    ({"outer_junk": b"x"}, "follow the structure"),
    ({"auth": bytes(1025)}, "the limit is 1024"),
)
def test_forms_that_do_not_exist(changes, text):
    refused(quote(**changes), text)


@pytest.mark.forgery
def test_another_vendors_quoting_enclave():
    refused(quote(vendor=bytes(16)), "of vendor 0000", code="ST-ATTS-512")


@each("size", 0, 1, 47, 48, 631, 632, 636, 700, 1200, 2000)
def test_cut_short(size):
    refused(quote()[:size], "")


def test_too_long():
    refused(quote(after=bytes(QUOTE_LIMIT)), "the limit is")
