# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""SEV-SNP reports up to AMD's root; `test_honest_guests` is the control of all forgeries."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding

from securetrain.attest.tee import chain, snp
from securetrain.attest.tee.snp_report import Product, SigningKey, parse_report
from securetrain.attest.tee.snp_rules import Permission, SnpReference, Tcb
from securetrain.core.errors import AttestationError
from tests.attest.tee import forge, forge_amd
from tests.attest.tee.forge import DAY, NOW, der, der_int, flip, p256_key, p384_key, rsa_key, tlv
from tests.attest.tee.forge_amd import TCBS, AmdWorld
from tests.attest.vectors import needs_vectors, vector, vectors

MILAN = AmdWorld()
VLEK = AmdWorld(key=SigningKey.VLEK)
TURIN = AmdWorld(product=Product.TURIN)


def refused(code, where="", *, world=MILAN, text="", report=None, **changes):
    with pytest.raises(AttestationError) as caught:
        world.verify(report, **changes)
    assert caught.value.code == code, caught.value
    assert where in caught.value.where, caught.value
    assert text in caught.value.what, caught.value


def refused_leaf(code, where="VCEK", *, world=MILAN, text="", **options):
    refused(code, where, world=world, text=text, certificates=[der(world.leaf(**options))])


def refused_chain(code, where, *, text="", ask=None, ark=None):
    vendor = [der(ask or MILAN.ask()), der(ark or MILAN.ark())]
    refused(code, where, text=text, vendor_chain=vendor)


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("key", SigningKey)
@pytest.mark.parametrize("product", Product)
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


@pytest.mark.parametrize("world", [MILAN, VLEK, TURIN], ids=["milan", "vlek", "turin"])
def test_the_whole_chain_from_the_host(world):
    certificates = [der(world.leaf()), der(world.ask()), der(world.ark())]
    assert world.verify(certificates=certificates, vendor_chain=[])


def test_a_cache_in_pem_with_other_products():
    others = [AmdWorld(product=p) for p in Product]
    files = [forge.pem(world.ask(), world.ark()) for world in others]
    assert MILAN.verify(vendor_chain=[*files, forge.pem(VLEK.ask(), VLEK.ark())])


@pytest.mark.parametrize("world", [MILAN, VLEK, TURIN], ids=["milan", "vlek", "turin"])
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


@pytest.mark.parametrize("keep", [(), (0,), (1,)], ids=["nothing", "no-root", "no-intermediate"])
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
    report = TURIN.report()
    assert snp.claimed_key(report, []) == (Product.TURIN, SigningKey.VCEK)
    assert snp.claimed_key(TURIN.report(version=2), []) == (None, SigningKey.VCEK)
    assert snp.claimed_key(TURIN.report(flags=7 << 2), []) == (Product.TURIN, None)


# The report's signature.


@pytest.mark.parametrize(
    "offset", [0x04, 0x08, 0x10, 0x30, 0x38, 0x50, 0x8F, 0x90, 0xC0, 0xE0, 0x110, 0x140, 0x1F0]
)
@pytest.mark.forgery
def test_a_changed_report(offset):
    refused("ST-ATTS-403", "SIGNATURE", report=flip(MILAN.report(), offset))


@pytest.mark.parametrize("offset", [0x2A0, 0x2CF, 0x2D0, 0x2E8, 0x317, 0x318])
@pytest.mark.forgery
def test_a_changed_signature(offset):
    refused("ST-ATTS-403", "SIGNATURE", report=flip(MILAN.report(), offset, 0x80))


@pytest.mark.parametrize(
    "signature",
    [bytes(144), b"\xff" * 144, (1).to_bytes(72, "little") * 2],
    ids=["zeros", "huge", "ones"],
)
@pytest.mark.forgery
def test_an_invented_signature(signature):
    report = MILAN.report()
    refused("ST-ATTS-403", report=report[:0x2A0] + signature + report[0x2A0 + 144 :])


@pytest.mark.forgery
def test_a_report_signed_by_another_key():
    refused("ST-ATTS-403", "SIGNATURE", report=MILAN.report(key=p384_key("other")))


@pytest.mark.parametrize("flags", [0b10, 7 << 2, 2 << 2], ids=["masked", "none", "unknown"])
@pytest.mark.forgery
def test_a_report_that_is_not_signed(flags):
    report = MILAN.body(flags=flags) + bytes(512)
    refused("ST-ATTS-403", "key flags", report=report, text="unsigned")


# The certificate belongs to the report.


@pytest.mark.parametrize("position", range(8))
@pytest.mark.parametrize("world", [MILAN, TURIN], ids=["milan", "turin"])
@pytest.mark.forgery
def test_a_key_of_another_tcb(world, position):
    tcb = flip(world.tcb, position)
    report = world.report(reported_tcb=tcb)
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


@pytest.mark.parametrize("name", ["Genoa", "Genoa-B1", "milan", "", "MilanX"])
@pytest.mark.forgery
def test_a_key_of_another_product(name):
    changes = {"2": tlv(0x16, name.encode())}
    refused_leaf("ST-ATTS-408", "product", changes=changes)


@pytest.mark.parametrize("name", ["Milan", "Milan-B0"])
def test_names_of_a_product(name):
    leaf = MILAN.leaf(changes={"2": tlv(0x16, name.encode())})
    assert MILAN.verify(certificates=[der(leaf)])


@pytest.mark.parametrize("cpu", [(0x19, 0x11, 1), (0x1A, 0x02, 1), (0x17, 0x31, 0)])
@pytest.mark.forgery
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


@pytest.mark.parametrize(
    "changes",
    [
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
    ],
    ids=str,
)
@pytest.mark.forgery
def test_extensions_that_do_not_describe_a_key(changes):
    refused_leaf("ST-ATTS-402", changes=changes)


def test_extensions_of_the_other_kinds():
    refused_leaf("ST-ATTS-402", world=TURIN, changes={"3.9": b""})
    refused_leaf("ST-ATTS-402", world=TURIN, changes={"4": bytes(64)})
    refused_leaf("ST-ATTS-402", "VLEK", world=VLEK, changes={"5": b""})


# The chain.


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"signer": rsa_key("x")}, "is not signed by the SEV-Milan"),
        ({"signer": rsa_key("ark")}, "is not signed by the SEV-Milan"),
        ({"pss": False}, "is not signed by the SEV-Milan"),
        ({"hash_algorithm": hashes.SHA256()}, "is not signed by the SEV-Milan"),
        ({"issuer": "SEV-Rome"}, "issued by 'SEV-Rome'"),
        ({"subject": "SEV-VLEK"}, "the certificate is of 'SEV-VLEK'"),
        ({"subject": "VCEK"}, "the certificate is of 'VCEK'"),
        ({"ca": True}, "is a CA"),
        ({"more": [(forge.NO_USAGE, True)]}, "may not sign"),
        ({"more": [(forge.custom("1.2.3", b""), True)]}, "unknown critical extensions"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.forgery
def test_a_key_that_amd_did_not_certify(options, text):
    refused_leaf("ST-ATTS-404", text=text, **options)


def test_a_key_that_says_it_signs():
    leaf = MILAN.leaf(more=[(forge.SIGNING_USAGE, True)])
    assert MILAN.verify(certificates=[der(leaf)])


@pytest.mark.forgery
def test_a_key_on_another_curve():
    refused_leaf("ST-ATTS-404", "VCEK", key=p256_key("vek"), text="P-384")
    refused_leaf("ST-ATTS-404", "VCEK", key=rsa_key("x"), text="P-384")


@pytest.mark.parametrize(
    ("start", "end"),
    [(NOW - 9 * DAY, NOW - DAY), (NOW + DAY, NOW + 9 * DAY)],
    ids=["expired", "not-yet"],
)
@pytest.mark.forgery
def test_certificates_out_of_date(start, end):
    dates = {"start": start, "end": end}
    refused_leaf("ST-ATTS-405", **dates)
    refused_chain("ST-ATTS-405", "SEV-Milan", ask=MILAN.ask(**dates))
    refused_chain("ST-ATTS-405", "ARK-Milan", ark=MILAN.ark(**dates))


def test_the_first_and_last_second():
    leaf = MILAN.leaf(start=NOW, end=NOW + DAY)
    for now in (NOW, NOW + DAY):
        assert MILAN.verify(certificates=[der(leaf)], now=now)
    for now in (NOW - timedelta(seconds=1), NOW + DAY + timedelta(seconds=1)):
        refused("ST-ATTS-405", "VCEK", certificates=[der(leaf)], now=now)


@pytest.mark.forgery
def test_forged_is_not_called_expired():
    refused_leaf("ST-ATTS-404", signer=rsa_key("x"), end=NOW - DAY, start=NOW - 2 * DAY)


@pytest.mark.forgery
def test_a_root_of_the_same_name():
    root = forge.certificate("ARK-Milan", "ARK-Milan", rsa_key("x"), rsa_key("x"), ca=True)
    ask = forge.certificate("SEV-Milan", "ARK-Milan", rsa_key("ask"), rsa_key("x"), ca=True)
    refused_chain("ST-ATTS-404", "ARK-Milan", ask=ask, ark=root, text="the pinned root has")


@pytest.mark.forgery
def test_a_root_whose_dates_somebody_else_wrote():
    ark = forge.certificate("ARK-Milan", "ARK-Milan", rsa_key("ark"), rsa_key("x"), ca=True)
    refused_chain("ST-ATTS-404", "ARK-Milan", ark=ark, text="is not signed")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"ca": False}, "may not sign certificates"),
        ({"may_sign_certificates": False}, "may not sign certificates"),
        ({"extensions": [(forge.custom("1.2.3", b""), True)]}, "unknown critical"),
    ],
)
@pytest.mark.forgery
def test_an_intermediate_that_is_none(options, text):
    refused_chain("ST-ATTS-404", "SEV-Milan", ask=MILAN.ask(**options), text=text)


@pytest.mark.forgery
def test_an_intermediate_by_somebody_else():
    ask = forge.certificate("SEV-Milan", "ARK-Milan", rsa_key("ask"), rsa_key("x"), ca=True)
    refused_chain("ST-ATTS-404", "SEV-Milan", ask=ask, text="is not signed by the ARK-Milan")


@pytest.mark.forgery
def test_a_root_that_allows_no_intermediates():
    ark = MILAN.ark(path_length=0)
    refused_chain("ST-ATTS-404", "ARK-Milan", ark=ark, text="allows 0 CAs")
    assert MILAN.verify(vendor_chain=[der(MILAN.ask()), der(MILAN.ark(path_length=1))])


@pytest.mark.forgery
def test_an_intermediate_with_a_short_key():
    short = p384_key("short")
    ask = forge.certificate("SEV-Milan", "ARK-Milan", short, rsa_key("ark"), ca=True)
    leaf = MILAN.leaf(signer=short)
    vendor = [der(ask), der(MILAN.ark())]
    refused("ST-ATTS-404", "VCEK", certificates=[der(leaf)], vendor_chain=vendor)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "not a certificate"),
        (b"\x30\x03\x02\x01\x01", "not a certificate"),
        (bytes(9000), "9000 bytes"),
        (forge.pem(MILAN.leaf()), "not a certificate"),
    ],
    ids=["empty", "garbage", "large", "pem"],
)
def test_certificates_that_are_none(data, text):
    refused("ST-ATTS-402", "certificates[0]", certificates=[data], text=text)


def test_trailing_bytes_of_a_certificate():
    refused("ST-ATTS-402", certificates=[der(MILAN.leaf()) + b"\0"])


def test_too_many_certificates():
    refused("ST-ATTS-402", certificates=[der(MILAN.leaf())] * 17, text="17 certificates")


@pytest.mark.parametrize(
    "change",
    [
        lambda pem: pem + b"x",
        lambda pem: b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        lambda pem: pem.replace(b"-----END", b"-----EMD", 1),
        lambda pem: b"-----BEGIN " + pem,
        lambda pem: pem * 20,
    ],
    ids=["junk", "empty", "no-end", "half", "many"],
)
def test_a_cache_that_is_no_pem(change):
    vendor = [change(forge.pem(MILAN.ask(), MILAN.ark()))]
    refused("ST-ATTS-402", "vendor_chain[0]", vendor_chain=vendor)


# Revocation.


def test_a_list_that_has_somebody_else():
    state = MILAN.verify(crl=MILAN.crl([8, 9]), rules={"require_crl": True})
    assert state.crl_checked


@pytest.mark.forgery
def test_a_list_that_is_asked_for():
    refused("ST-ATTS-407", "CRL", rules={"require_crl": True}, text="there is none")


@pytest.mark.forgery
def test_a_revoked_intermediate():
    vendor = [der(MILAN.ask(serial=0x10001)), der(MILAN.ark())]
    refused(
        "ST-ATTS-406", "SEV-Milan", vendor_chain=vendor, crl=MILAN.crl([5, 0x10001]), text="revoked"
    )


@pytest.mark.parametrize(
    ("crl", "text"),
    [
        (b"", "not a revocation list"),
        (b"\x30\x00", "not a revocation list"),
        (bytes((4 << 20) + 1), "the limit is"),
        (forge.revocation_list("ARK-Milan", rsa_key("x")), "not signed by the CA"),
        (forge.revocation_list("ARK-Genoa", rsa_key("ark")), "of another CA"),
        (forge.revocation_list("SEV-Milan", rsa_key("ask")), "of another CA"),
        (MILAN.crl(extensions=[(x509.DeltaCRLIndicator(1), True)]), "partial list"),
    ],
    ids=["empty", "garbage", "large", "forged", "product", "intermediate", "delta"],
)
@pytest.mark.forgery
def test_lists_that_are_not_amds(crl, text):
    refused("ST-ATTS-407", "CRL", crl=crl, text=text)


def test_a_list_in_pem():
    crl = x509.load_der_x509_crl(MILAN.crl()).public_bytes(Encoding.PEM)
    assert MILAN.verify(crl=crl).crl_checked


@pytest.mark.parametrize(
    "dates",
    [
        {"start": NOW - 9 * DAY, "end": NOW - DAY},
        {"start": NOW + DAY, "end": NOW + 9 * DAY},
    ],
    ids=["expired", "not-yet"],
)
@pytest.mark.forgery
def test_lists_out_of_date(dates):
    refused("ST-ATTS-405", "CRL", crl=MILAN.crl(**dates), text="the list is good from")


@pytest.mark.forgery
def test_a_root_that_may_not_sign_lists():
    ark = MILAN.ark(may_sign_lists=False)
    vendor = [der(MILAN.ask()), der(ark)]
    refused("ST-ATTS-407", "CRL", vendor_chain=vendor, crl=MILAN.crl(), text="may not sign lists")


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
    with pytest.raises(AttestationError) as caught:
        real_verify(**changes)
    assert caught.value.code == code, caught.value


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
@pytest.mark.parametrize("name", vectors(GO_SEV + "trust/*.pem"))
def test_genuine_intermediates(name):
    intermediate, root = chain.load_certificates(vector(name), snp.AMD, name)
    common_name = chain.common_name(intermediate.subject)
    product, _ = snp._ISSUERS[common_name]
    # As a path of one more: a leaf is all that is missing.
    fits = chain.is_signed(
        root, snp.AMD.scheme, intermediate.signature, intermediate.tbs_certificate_bytes
    )
    assert fits
    assert chain.spki_digest(root) == snp.ROOTS[product]


def test_forged_worlds_are_not_amds():
    refused("ST-ATTS-404", "ARK-Milan", roots=snp.ROOTS)
    assert TCBS.keys() == set(snp.ROOTS)
