# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Genuine TDs that are not what the reference values describe."""

import msgspec
import pytest

from securetrain.evidence.tee.tdx import TdAttribute, TdxReference
from tests.evidence.tee import forge_intel as intel
from tests.evidence.tee.forge_intel import SEPT_VE_DISABLE, quote, refused, verify
from tests.tables import each, forgeries


@pytest.mark.forgery
def test_evidence_of_another_connection():
    refused("ST-ATTS-517", "REPORTDATA", report_data=bytes(64))


@pytest.mark.forgery
def test_a_platform_that_is_not_enrolled():
    refused("ST-ATTS-518", "PPID", rules={"ppids": ()})
    assert verify(rules={"ppids": (), "any_platform": True})


@forgeries(
    "field, rule, where",
    ("mr_td", "mr_tds", "MRTD"),
    ("config_id", "mr_config_ids", "MRCONFIGID"),
    ("owner", "mr_owners", "MROWNER"),
    ("owner_config", "mr_owner_configs", "MROWNERCONFIG"),
    ("service_td", "mr_service_tds", "MRSERVICETD"),
)
def test_another_value(field, rule, where):
    value = b"\x5a" * 48
    data = quote(version=5, td={field: value})
    refused("ST-ATTS-518", where, data=data)
    assert verify(data, rules={rule: ("00" * 48, value.hex())})
    refused("ST-ATTS-518", where, data=data, rules={rule: ()})


@forgeries("index", *range(4))
def test_another_register(index):
    rules = {"rtmrs": {str(index): (intel.RTMRS[index].hex(),)}}
    assert verify(rules=rules)
    registers = list(intel.RTMRS)
    registers[index] = bytes(48)
    data = quote(td={"rtmrs": tuple(registers)})
    refused("ST-ATTS-518", f"RTMR{index}", data=data, rules=rules)
    assert verify(data, rules={"rtmrs": {}})


@pytest.mark.forgery
def test_another_set_of_features():
    assert verify(rules={"xfams": ("00000000000602e7",)})
    refused("ST-ATTS-518", "XFAM", rules={"xfams": ("00000000000600e7",)})
    refused("ST-ATTS-518", "XFAM", rules={"xfams": ()})


@forgeries("bit", *range(8))
def test_a_td_under_debug_is_never_accepted(bit):
    attributes = SEPT_VE_DISABLE | 1 << bit
    rules = {"allowed_attributes": tuple(TdAttribute)}
    refused("ST-ATTS-516", "ATTRIBUTES", data=quote(td={"attributes": attributes}), rules=rules)


@forgeries(
    "name, bit",
    (TdAttribute.LASS, 27),
    (TdAttribute.MIGRATABLE, 29),
    (TdAttribute.PKS, 30),
    (TdAttribute.KL, 31),
    (TdAttribute.TPA, 62),
    (TdAttribute.PERFMON, 63),
)
def test_attributes(name, bit):
    data = quote(td={"attributes": SEPT_VE_DISABLE | 1 << bit})
    refused("ST-ATTS-519", "ATTRIBUTES", "not allowed", data=data)
    others = tuple(set(TdAttribute) - {name})
    refused("ST-ATTS-519", "ATTRIBUTES", data=data, rules={"allowed_attributes": others})
    assert verify(data, rules={"allowed_attributes": (name, name)})
    needs = {"required_attributes": (TdAttribute.SEPT_VE_DISABLE, name)}
    assert verify(data, rules=needs)
    refused("ST-ATTS-519", "ATTRIBUTES", f"{1 << bit:#x} is missing", rules=needs)


@forgeries("bit", 8, 26, 32, 61)
def test_attributes_that_have_no_name(bit):
    data = quote(td={"attributes": SEPT_VE_DISABLE | 1 << bit})
    rules = {"allowed_attributes": tuple(TdAttribute)}
    refused("ST-ATTS-519", "ATTRIBUTES", data=data, rules=rules)


@pytest.mark.forgery
def test_the_attribute_that_is_asked_for_by_default():
    data = quote(td={"attributes": 0})
    refused("ST-ATTS-519", "ATTRIBUTES", "0x10000000 is missing", data=data)
    assert verify(data, rules={"required_attributes": ()})


def test_an_empty_reference_accepts_nothing():
    refused("ST-ATTS-518", "PPID", reference=TdxReference())
    refused("ST-ATTS-518", "MRTD", reference=TdxReference(any_platform=True))


def test_a_reference_is_read_from_json():
    made = intel.reference(rtmrs={"0": ("00" * 48,)}, allowed_attributes=(TdAttribute.PKS,))
    assert msgspec.json.decode(msgspec.json.encode(made), type=TdxReference) == made


@each(
    "change",
    {"mr_tds": ["AB" * 48]},
    {"rtmrs": {"4": []}},
    {"mr_tds": ["ab" * 48 + "\n"]},
    {"ppids": ["ab"]},
    {"allowed_attributes": ["debug"]},
    {"unknown": 1},
)
def test_malformed_references(change):
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(change, TdxReference)
