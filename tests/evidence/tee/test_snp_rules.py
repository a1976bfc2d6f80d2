# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Genuine SEV-SNP guests that are not what the reference values describe."""

import msgspec
import pytest

from securetrain.core.errors import AttestationError
from securetrain.evidence.tee.snp_report import PolicyBit, Product, SigningKey
from securetrain.evidence.tee.snp_rules import Permission, Protection, SnpReference, Tcb
from tests import vocabulary
from tests.evidence.tee.forge_amd import DEBUG, POLICY, SMT, AmdWorld
from tests.tables import each, forgeries

WORLD = AmdWorld()
VLEK = AmdWorld(key=SigningKey.VLEK)
ALL = tuple(Permission)


def refused(code, where, *, world=WORLD, text="", rules=None, **guest):
    error = vocabulary.refused(
        AttestationError, code, lambda: world.verify(world.report(**guest), rules=rules or {})
    )
    assert where in error.where
    assert text in error.what, error


def test_an_empty_reference_accepts_nothing():
    with pytest.raises(AttestationError, match="ST-ATTS-411") as caught:
        WORLD.verify(reference=SnpReference(require_crl=False))
    assert "product" in caught.value.where


def test_a_reference_is_read_from_json():
    data = msgspec.json.encode(WORLD.reference(permissions=ALL))
    assert msgspec.json.decode(data, type=SnpReference) == WORLD.reference(permissions=ALL)


@each(
    "change",
    {"measurements": ["AB" * 48]},
    {"measurements": ["ab" * 32]},
    {"chip_ids": ["ab" * 4]},
    {"min_tcb": {"Rome": {}}},
    {"min_tcb": {"Milan": {"snp": 256}}},
    {"vmpls": [4]},
    {"permissions": ["debug"]},
    {"min_version": 6},
    {"unknown": 1},
)
def test_malformed_references(change):
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(change, SnpReference)


@pytest.mark.forgery
def test_evidence_of_another_connection():
    error = vocabulary.refused(AttestationError, "ST-ATTS-410", WORLD.verify, report_data=bytes(64))
    assert "REPORT_DATA" in error.where


def test_an_old_version():
    refused("ST-ATTS-411", "VERSION", version=2)
    assert WORLD.verify(WORLD.report(version=2), rules={"min_version": 2}).report.version == 2


def test_a_product_that_is_not_listed():
    refused("ST-ATTS-411", "product", rules={"min_tcb": {Product.GENOA: Tcb()}}, text="Milan")


@forgeries(
    "product, needs, name",
    (Product.MILAN, Tcb(bootloader=5), "bootloader"),
    (Product.MILAN, Tcb(tee=1), "tee"),
    (Product.MILAN, Tcb(snp=30), "snp"),
    (Product.MILAN, Tcb(microcode=218), "microcode"),
    (Product.TURIN, Tcb(fmc=2), "fmc"),
    (Product.TURIN, Tcb(bootloader=2), "bootloader"),
    (Product.TURIN, Tcb(snp=6), "snp"),
    (Product.TURIN, Tcb(microcode=74), "microcode"),
)
def test_firmware_that_is_too_old(product, needs, name):
    world = AmdWorld(product=product)
    rules = {"min_tcb": {product: needs}}
    refused("ST-ATTS-412", "REPORTED_TCB", world=world, rules=rules, text=name)


@pytest.mark.forgery
def test_firmware_that_was_too_old_when_the_guest_was_launched():
    rules = {"min_tcb": {Product.MILAN: Tcb(snp=29)}}
    WORLD.verify(rules=rules)
    old = bytes.fromhex("0400000000001cd9")
    refused("ST-ATTS-412", "LAUNCH_TCB", rules=rules, launch_tcb=old, text="28")


@pytest.mark.forgery
def test_a_chip_that_is_not_enrolled():
    refused("ST-ATTS-411", "CHIP_ID", rules={"chip_ids": ()})
    assert WORLD.verify(rules={"chip_ids": (), "any_chip": True}).chip_id == WORLD.chip


@pytest.mark.forgery
def test_a_provider_that_is_not_listed():
    VLEK.verify(rules={"chip_ids": ()})
    refused("ST-ATTS-411", "CSP_ID", world=VLEK, rules={"providers": ("CN=other",)})
    refused("ST-ATTS-411", "CSP_ID", world=VLEK, rules={"providers": (), "any_chip": True})


@pytest.mark.forgery
def test_a_report_for_another_privilege_level():
    refused("ST-ATTS-411", "VMPL", vmpl=1)
    WORLD.verify(WORLD.report(vmpl=1), rules={"vmpls": (0, 1)})


def test_an_old_guest():
    WORLD.verify(rules={"min_guest_svn": 3})
    refused("ST-ATTS-411", "GUEST_SVN", rules={"min_guest_svn": 4})


@forgeries(
    "field, rule, where",
    ("measurement", "measurements", "MEASUREMENT"),
    ("host_data", "host_data", "HOST_DATA"),
    ("id_key_digest", "id_key_digests", "ID_KEY_DIGEST"),
    ("author_key_digest", "author_key_digests", "AUTHOR_KEY_DIGEST"),
)
def test_another_value(field, rule, where):
    value = b"\x5a" * (32 if field == "host_data" else 48)
    refused("ST-ATTS-411", where, **{field: value})
    WORLD.verify(WORLD.report(**{field: value}), rules={rule: ("0" * 2 * len(value), value.hex())})
    refused("ST-ATTS-411", where, rules={rule: ()}, **{field: value})


@forgeries("flags, digest", (1, bytes(48)), (0, b"\x5a" * 48))
def test_an_author_key_that_the_flag_contradicts(flags, digest):
    rules = {"author_key_digests": (digest.hex(),)}
    refused("ST-ATTS-411", "AUTHOR_KEY_EN", rules=rules, flags=flags, author_key_digest=digest)


@forgeries(
    "bit, permission",
    (PolicyBit.SMT, Permission.SMT),
    (PolicyBit.MIGRATE_MA, Permission.MIGRATION_AGENT),
    (PolicyBit.CXL_ALLOW, Permission.CXL),
)
def test_a_policy_that_permits_the_host_more(bit, permission):
    policy = POLICY | 1 << bit
    refused("ST-ATTS-413", "POLICY", policy=policy, text=permission)
    others = tuple(set(ALL) - {permission})
    refused("ST-ATTS-413", "POLICY", policy=policy, rules={"permissions": others})
    WORLD.verify(WORLD.report(policy=policy), rules={"permissions": (permission,)})


@forgeries(
    "bit, protection",
    (PolicyBit.SINGLE_SOCKET, Protection.SINGLE_SOCKET),
    (PolicyBit.MEM_AES_256_XTS, Protection.AES_256_XTS),
    (PolicyBit.RAPL_DIS, Protection.RAPL_DISABLED),
    (PolicyBit.CIPHERTEXT_HIDING, Protection.CIPHERTEXT_HIDING),
    (PolicyBit.PAGE_SWAP_DISABLE, Protection.PAGE_SWAP_DISABLED),
)
def test_a_policy_without_a_protection(bit, protection):
    rules = {"protections": (protection,)}
    every_other = POLICY | 0b11111 << 20 & ~(1 << bit) & ~(1 << PolicyBit.CXL_ALLOW)
    refused("ST-ATTS-413", "POLICY", policy=every_other, rules=rules, text=protection)
    WORLD.verify(WORLD.report(policy=POLICY | 1 << bit), rules=rules)


@pytest.mark.forgery
def test_a_platform_that_did_not_look_for_aliases():
    rules = {"protections": (Protection.ALIAS_CHECK,)}
    WORLD.verify(rules=rules)
    refused("ST-ATTS-413", "POLICY", platform_info=0b11111, rules=rules, text="alias-check")


@forgeries("vectors", (0b01, 0b11), (0b11, 0b01), (0, 0))
def test_mitigations_that_are_not_in_force(vectors):
    rules = {"mitigations": 0b10}
    WORLD.verify(WORLD.report(mitigations=(0b10, 0b11)), rules=rules)
    refused("ST-ATTS-413", "POLICY", mitigations=vectors, rules=rules, text="0x2")


@forgeries("policy", POLICY | DEBUG, POLICY | DEBUG | SMT)
def test_a_guest_that_can_be_debugged_is_never_accepted(policy):
    refused("ST-ATTS-409", "POLICY", policy=policy, rules={"permissions": ALL})
