# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""SEV-SNP reports up to AMD's root; `test_honest_guests` is the control of all forgeries."""

from datetime import UTC, datetime
from typing import Any

import pytest

from securetrain.core.errors import AttestationError
from securetrain.evidence.tee import chain, snp
from securetrain.evidence.tee.snp_report import Product, SigningKey, parse_report
from securetrain.evidence.tee.snp_rules import Permission, SnpReference, Tcb
from securetrain.identity import paths
from tests import vocabulary
from tests.evidence.tee import forge, forge_amd
from tests.evidence.tee.forge import der, der_int, flip, p384_key, rsa_key, tlv
from tests.evidence.tee.forge_amd import TCBS, AmdWorld, refused
from tests.evidence.vectors import needs_vectors, vector, vectors
from tests.tables import each, forgeries

MILAN = AmdWorld()
VLEK = AmdWorld(key=SigningKey.VLEK)
TURIN = AmdWorld(product=Product.TURIN)


def refused_leaf(code, where="VCEK", *, world=MILAN, text="", **options):
    refused(code, where, world=world, text=text, certificates=[der(world.leaf(**options))])


@each("version", 3, 4, 5)
@each("key", *SigningKey)
@each("product", *Product)
def test_honest_guests(product, key, version):
    world = AmdWorld(product=product, key=key)
    state = world.verify(world.report(version=version))
    assert state.product is product
    assert state.key is key
    assert state.chip_id == (world.chip if key is SigningKey.VCEK else b"")
    assert state.provider == (forge_amd.PROVIDER if key is SigningKey.VLEK else "")
    assert state.report.measurement == forge_amd.MEASUREMENT
    assert state.launch_tcb == state.tcb
    assert state.leaf_expires == forge.END
    assert not state.crl_checked


def test_the_tcb_has_names():
    assert MILAN.verify().tcb == Tcb(bootloader=4, snp=0x1D, microcode=0xD9)
    assert TURIN.verify().tcb == Tcb(fmc=1, bootloader=1, snp=5, microcode=0x49)


# Where certificates come from.


@each("id, world", ("milan", MILAN), ("vlek", VLEK), ("turin", TURIN))
def test_the_whole_chain_from_the_host(world):
    certificates = [der(world.leaf()), der(world.ask()), der(world.ark())]
    assert world.verify(certificates=certificates, vendor_chain=[])


def test_a_cache_in_pem_with_other_products():
    others = [AmdWorld(product=p) for p in Product]
    files = [forge.pem(world.ask(), world.ark()) for world in others]
    assert MILAN.verify(vendor_chain=[*files, forge.pem(VLEK.ask(), VLEK.ark())])


@each("id, world", ("milan", MILAN), ("vlek", VLEK), ("turin", TURIN))
def test_a_key_certificate_from_the_cache(world):
    other = AmdWorld(product=world.product, key=SigningKey(1 - world.key))
    chain_files = [
        der(other.leaf()),
        der(world.leaf(changes={"3.8": der_int(1)})),
        der(world.leaf()),
        *forge_amd.good_chain(world),
    ]
    assert world.verify(certificates=[], vendor_chain=chain_files)


@pytest.mark.forgery
def test_no_certificate_anywhere():
    refused("ST-ATTS-402", "VCEK", certificates=[], text="the cache has none")
    another_chip = [der(MILAN.leaf(changes={"4": bytes(64)})), *forge_amd.good_chain(MILAN)]
    refused("ST-ATTS-402", "VCEK", certificates=[], vendor_chain=another_chip)


@each("id, keep", ("nothing", ()), ("no-root", (0,)), ("no-intermediate", (1,)))
def test_a_chain_with_a_hole(keep):
    vendor = [forge_amd.good_chain(MILAN)[index] for index in keep]
    refused("ST-ATTS-404", vendor_chain=vendor, text="neither the node nor the cache")


@pytest.mark.forgery
def test_the_cache_wins_over_the_host():
    forged = forge.certificate("SEV-Milan", "ARK-Milan", rsa_key("x"), rsa_key("x"), ca=True)
    assert MILAN.verify(certificates=[der(MILAN.leaf()), der(forged)])


def test_which_list_is_needed():
    leaf = forge_amd.good_leaf
    assert snp.claimed_key(b"", [leaf(MILAN)]) == (Product.MILAN, SigningKey.VCEK)
    assert snp.claimed_key(b"", [leaf(VLEK)]) == (Product.MILAN, SigningKey.VLEK)
    assert snp.claimed_key(b"", [der(MILAN.ark())]) == (None, None)
    assert snp.claimed_key(TURIN.report(), []) == (Product.TURIN, SigningKey.VCEK)
    assert snp.claimed_key(TURIN.report(version=2), []) == (None, SigningKey.VCEK)
    assert snp.claimed_key(TURIN.report(flags=7 << 2), []) == (Product.TURIN, None)


# The report's signature.


@forgeries(
    "offset", 0x04, 0x08, 0x10, 0x30, 0x38, 0x50, 0x8F, 0x90, 0xC0, 0xE0, 0x110, 0x140, 0x1F0
)
def test_a_changed_report(offset):
    refused("ST-ATTS-403", "SIGNATURE", report=flip(MILAN.report(), offset))


@forgeries("offset", 0x2A0, 0x2CF, 0x2D0, 0x2E8, 0x317, 0x318)
def test_a_changed_signature(offset):
    refused("ST-ATTS-403", "SIGNATURE", report=flip(MILAN.report(), offset, 0x80))


@forgeries(
    "id, signature",
    ("zeros", bytes(144)),
    ("huge", b"\xff" * 144),
    ("ones", (1).to_bytes(72, "little") * 2),
)
def test_an_invented_signature(signature):
    report = MILAN.report()
    refused("ST-ATTS-403", report=report[:0x2A0] + signature + report[0x2A0 + 144 :])


@pytest.mark.forgery
def test_a_report_signed_by_another_key():
    refused("ST-ATTS-403", "SIGNATURE", report=MILAN.report(key=p384_key("other")))


@forgeries("id, flags", ("masked", 0b10), ("none", 7 << 2), ("unknown", 2 << 2))
def test_a_report_that_is_not_signed(flags):
    report = MILAN.body(flags=flags) + bytes(512)
    refused("ST-ATTS-403", "key flags", report=report, text="unsigned")


# The certificate belongs to the report.


@forgeries("position", *range(8))
@each("id, world", ("milan", MILAN), ("turin", TURIN))
def test_a_key_of_another_tcb(world, position):
    report = world.report(reported_tcb=flip(world.tcb, position))
    refused("ST-ATTS-408", "REPORTED_TCB", world=world, report=report)


@pytest.mark.forgery
def test_a_key_of_another_chip():
    refused("ST-ATTS-408", "CHIP_ID", report=MILAN.report(chip_id=b"\x01" * 64))
    refused("ST-ATTS-408", "CHIP_ID", report=MILAN.report(chip_id=bytes(64)), text="000")
    padded = TURIN.chip + b"\x01" * 56
    refused("ST-ATTS-408", "CHIP_ID", world=TURIN, report=TURIN.report(chip_id=padded))


@pytest.mark.forgery
def test_a_hidden_chip_id_is_another_thing():
    rules = {"allow_masked_chip": True}
    state = MILAN.verify(MILAN.report(chip_id=bytes(64)), rules=rules)
    assert state.chip_id == MILAN.chip
    refused("ST-ATTS-408", "CHIP_ID", report=MILAN.report(chip_id=b"\x01" * 64), rules=rules)


def test_a_vlek_does_not_name_a_chip():
    assert VLEK.verify(VLEK.report(chip_id=bytes(64)))


@forgeries("name", "Genoa", "Genoa-B1", "milan", "", "MilanX")
def test_a_key_of_another_product(name):
    changes = {"2": tlv(0x16, name.encode())}
    refused_leaf("ST-ATTS-408", "product", changes=changes)


@each("name", "Milan", "Milan-B0")
def test_names_of_a_product(name):
    leaf = MILAN.leaf(changes={"2": tlv(0x16, name.encode())})
    assert MILAN.verify(certificates=[der(leaf)])


@forgeries("cpu", (0x19, 0x11, 1), (0x1A, 0x02, 1), (0x17, 0x31, 0))
def test_a_cpu_of_another_product(cpu):
    refused("ST-ATTS-408", "CPUID", report=MILAN.report(cpu=cpu))


@pytest.mark.forgery
def test_a_report_that_names_the_other_kind_of_key():
    refused("ST-ATTS-404", "VLEK", report=MILAN.report(flags=1 << 2))
    refused("ST-ATTS-404", "VCEK", world=VLEK, report=VLEK.report(flags=0))


@pytest.mark.forgery
def test_a_key_certified_by_the_other_kinds_intermediate():
    # A cloud's intermediate certifies no chips, although the same root certified it.
    vendor = [*forge_amd.good_chain(VLEK), *forge_amd.good_chain(MILAN)]
    leaf = MILAN.leaf(issuer=VLEK.issuer)
    refused("ST-ATTS-404", "VCEK", certificates=[der(leaf)], vendor_chain=vendor)
    leaf = VLEK.leaf(subject="SEV-VCEK")
    refused("ST-ATTS-404", "VLEK", world=VLEK, certificates=[der(leaf)])


@pytest.mark.forgery
def test_a_chain_of_another_product():
    genoa = AmdWorld(product=Product.GENOA)
    leaf = der(MILAN.leaf(issuer=genoa.issuer))
    vendor = forge_amd.good_chain(genoa)
    refused("ST-ATTS-408", "product", certificates=[leaf], vendor_chain=vendor)


@pytest.mark.forgery
def test_a_product_without_a_pinned_root():
    refused("ST-ATTS-404", "ARK-Milan", roots={Product.GENOA: MILAN.roots[Product.GENOA]})


@forgeries(
    "changes",
    {"3.1": b""},
    {"3.3": b""},
    {"3.5": b""},
    {"3.8": b""},
    {"2": b""},
    {"4": b""},
    {"3.8": b"\x04\x01\xd9"},
    {"3.8": der_int(256)},
    {"3.8": der_int(-1 + (1 << 80))},
    {"3.8": b"\x02\x01\xd9"},
    {"3.8": b"\x02\x02\x00\xd9\x00"},
    {"3.8": b"\x02\x81\x01\x04"},
    {"2": b"Milan"},
    {"2": tlv(0x0C, b"Milan")},
    {"4": bytes(8)},
    {"4": bytes(63)},
    {"4": tlv(4, bytes(64))},
)
def test_extensions_that_do_not_describe_a_key(changes):
    refused_leaf("ST-ATTS-402", changes=changes)


def test_extensions_of_the_other_kinds():
    refused_leaf("ST-ATTS-402", world=TURIN, changes={"3.9": b""})
    refused_leaf("ST-ATTS-402", world=TURIN, changes={"4": bytes(64)})
    refused_leaf("ST-ATTS-402", "VLEK", world=VLEK, changes={"5": b""})


# Real evidence.

GO_SEV = "google__go-sev-guest/verify/"
GENUINE_REPORT = GO_SEV + "testdata/attestation.bin"
REAL_NOW = datetime(2026, 6, 1, tzinfo=UTC)


def real_verify(report=None, leaf=None, **changes):
    data = vector(GENUINE_REPORT) if report is None else report
    genuine = parse_report(vector(GENUINE_REPORT))
    rules = {
        "min_tcb": {Product.MILAN: Tcb(bootloader=2, snp=5, microcode=68)},
        "measurements": (genuine.measurement.hex(),),
        "chip_ids": (genuine.chip_id.hex(),),
        "permissions": (Permission.SMT,),
        "min_version": 2,
        "require_crl": False,
    }
    arguments: dict[str, Any] = {
        "reference": SnpReference(**(rules | changes.pop("rules", {}))),
        "report_data": genuine.report_data,
        "now": REAL_NOW,
        "vendor_chain": [vector(name) for name in vectors(GO_SEV + "trust/*.pem")],
        "crl": None,
    }
    leaf = vector(GO_SEV + "testdata/vcek.testcer") if leaf is None else leaf
    return snp.verify_snp(data, [leaf], **(arguments | changes))


def real_refused(code, **changes):
    vocabulary.refused(AttestationError, code, real_verify, **changes)


@needs_vectors
def test_a_genuine_report_fails_for_its_debug_bit_alone():
    real_refused("ST-ATTS-409")
    real_refused("ST-ATTS-411", rules={"measurements": ()})
    real_refused("ST-ATTS-412", rules={"min_tcb": {Product.MILAN: Tcb(microcode=69)}})
    real_refused("ST-ATTS-413", rules={"permissions": ()})
    real_refused("ST-ATTS-410", report_data=bytes(64))
    real_refused("ST-ATTS-405", now=datetime(2030, 1, 1, tzinfo=UTC))


@needs_vectors
@pytest.mark.forgery
def test_no_byte_of_a_genuine_report_can_change():
    report = vector(GENUINE_REPORT)
    # Behind R and S (0x330) only zeros are accepted; before, all is signed or the signature.
    for offset in [*range(0x50), *range(0x50, 0x4A0, 5)]:
        with pytest.raises(AttestationError) as caught:
            real_verify(flip(report, offset, 0x80))
        assert caught.value.code in {"ST-ATTS-401", "ST-ATTS-403", "ST-ATTS-404"}, hex(offset)


@needs_vectors
@pytest.mark.forgery
def test_no_byte_of_a_genuine_certificate_can_change():
    leaf = vector(GO_SEV + "testdata/vcek.testcer")
    for offset in range(0, len(leaf), 3):
        with pytest.raises(AttestationError) as caught:
            real_verify(leaf=flip(leaf, offset))
        assert caught.value.code in {"ST-ATTS-402", "ST-ATTS-404"}, hex(offset)


@needs_vectors
@pytest.mark.forgery
def test_a_genuine_report_with_the_roots_of_our_own():
    real_refused("ST-ATTS-404", roots=MILAN.roots)


@needs_vectors
@each("name", *vectors(GO_SEV + "trust/*.pem"))
def test_genuine_intermediates(name):
    intermediate, root = chain.load_certificates(vector(name), snp.AMD, name)
    common_name = chain.common_name(intermediate.subject)
    product, _ = snp._ISSUERS[common_name]
    # As a path of one more: a leaf is all that is missing.
    fits = chain.is_signed(
        root, snp.AMD.scheme, intermediate.signature, intermediate.tbs_certificate_bytes
    )
    assert fits
    assert paths.spki_sha256(root) == snp.ROOTS[product]


def test_forged_worlds_are_not_amds():
    refused("ST-ATTS-404", "ARK-Milan", roots=snp.ROOTS)
    assert TCBS.keys() == set(snp.ROOTS)
