# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What is written is read back, all else is refused. The `..._round_trip` are the controls."""

import dataclasses
import hashlib
import random

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from securetrain.core.errors import AttestationError
from securetrain.evidence.tpm.constants import (
    GENERATED,
    Algorithm,
    Attributes,
    Curve,
    Handle,
    Hash,
    Tag,
)
from securetrain.evidence.tpm.keys import AK_TEMPLATE, EK_TEMPLATES
from securetrain.evidence.tpm.structures import (
    MAX_SELECTIONS,
    Attest,
    CertifyInfo,
    ClockInfo,
    EccKey,
    PcrSelection,
    PublicArea,
    QuoteInfo,
    RsaKey,
    Scheme,
    Signature,
    Symmetric,
    encode_selections,
    number,
    parse_attest,
    parse_public,
    parse_public_area,
    parse_selections,
    parse_signature,
    tpm2b,
)
from tests import vocabulary
from tests.evidence.tpm.encoders import encode_attest, encode_signature
from tests.evidence.tpm.forge import Tpm, make_key, rsa_attestation_template

ECC = make_key(AK_TEMPLATE).public
assert isinstance(ECC.unique, EccKey)
RSA = make_key(rsa_attestation_template(Algorithm.RSASSA)).public
assert isinstance(RSA.unique, RsaKey)
SELECTION = PcrSelection(Hash.SHA256, (0, 7, 10, 23))
ATTEST = Attest(
    qualified_signer=b"\x00\x0b" + bytes(32),
    extra_data=b"extra",
    clock=ClockInfo(2**64 - 1, 2**32 - 1, 1, safe=True),
    firmware=2**64 - 1,
    attested=QuoteInfo((SELECTION,), bytes(32)),
)
CERTIFICATION = msgspec.structs.replace(ATTEST, attested=CertifyInfo(b"name", b"qualified name"))
ECDSA = Signature(Scheme(Algorithm.ECDSA, Hash.SHA256), (bytes(32), b"\x01" * 32))
RSASSA = Signature(Scheme(Algorithm.RSASSA, Hash.SHA384), (b"\x02" * 256,))

# Offsets in the public area of an attestation key: type, nameAlg, objectAttributes, authPolicy,
# symmetric, scheme, hash, and then curveID and kdf (ECC) or keyBits and exponent (RSA).
ATTRIBUTES, SYMMETRIC, SCHEME, SCHEME_HASH, OWN = 4, 10, 12, 14, 16


def refused(code, parse, data):
    return vocabulary.refused(AttestationError, code, parse, data)


def patch(data, at, new):
    return data[:at] + new + data[at + len(new) :]


# Controls.


@pytest.mark.parametrize("name", EK_TEMPLATES)
def test_templates_round_trip(name):
    template = EK_TEMPLATES[name]
    assert parse_public(template.tpm2b) == template
    key = make_key(template).public if name != "H-7" else template
    assert parse_public(key.tpm2b).encoded == key.encoded


@pytest.mark.parametrize(
    "area",
    [
        ECC,
        RSA,
        dataclasses.replace(ECC, scheme=None, auth_policy=bytes(64)),
        dataclasses.replace(ECC, scheme=Scheme(Algorithm.ECDH, Hash.SHA512)),
        dataclasses.replace(
            ECC,
            unique=EccKey(
                curve=Curve.P521, kdf=Scheme(Algorithm.KDF1_SP800_56A, Hash.SHA1), x=b"\x01"
            ),
        ),
        dataclasses.replace(RSA, scheme=Scheme(Algorithm.RSAES)),
        dataclasses.replace(RSA, scheme=Scheme(Algorithm.OAEP, Hash.SHA1)),
        dataclasses.replace(RSA, symmetric=Symmetric(192, Algorithm.CBC)),
        dataclasses.replace(RSA, unique=RsaKey(bits=3072, exponent=65537)),
        dataclasses.replace(RSA, name_alg=Hash.SHA512, attributes=Attributes(0)),
    ],
    ids=lambda area: str(area.scheme or "NULL"),
)
def test_public_areas_round_trip(area):
    assert parse_public(area.tpm2b) == area
    assert parse_public_area(area.encoded) == area


@pytest.mark.parametrize(
    "selections",
    [
        (),
        (SELECTION,),
        (PcrSelection(Hash.SHA1, (), 1), PcrSelection(Hash.SHA384, tuple(range(32)), 4)),
        (PcrSelection(Hash.SHA512, (), 0),),
        (SELECTION,) * MAX_SELECTIONS,
    ],
    ids=["none", "one", "two", "no-bits", "the-limit"],
)
def test_selections_round_trip(selections):
    assert parse_selections(encode_selections(selections)) == selections


@pytest.mark.parametrize("attest", [ATTEST, CERTIFICATION], ids=["quote", "certification"])
def test_attestations_round_trip(attest):
    assert parse_attest(encode_attest(attest)) == attest


@pytest.mark.parametrize("signature", [ECDSA, RSASSA], ids=["ecdsa", "rsassa"])
def test_signatures_round_trip(signature):
    assert parse_signature(encode_signature(signature)) == signature


def test_the_bytes_are_the_specifications():
    area = AK_TEMPLATE
    assert area.encoded == bytes.fromhex(
        "0023"  # ECC
        "000b"  # SHA-256
        "00050472"
        "0000"
        "0010"  # no symmetric algorithm
        "0018000b"  # ECDSA with SHA-256
        "0003"  # P-256
        "0010"  # no KDF
        "00000000"
    )
    assert area.name == b"\x00\x0b" + hashlib.sha256(area.encoded).digest()
    assert encode_selections([PcrSelection(Hash.SHA256, (0, 9, 23))]) == bytes.fromhex(
        "00000001000b03010280"
    )
    assert int(Handle.ENDORSEMENT) == 0x4000000B


def test_a_name_covers_every_bit_of_the_area():
    names = set()
    for at in range(len(ECC.encoded) * 8):
        changed = bytearray(ECC.encoded)
        changed[at // 8] ^= 1 << at % 8
        try:
            names.add(parse_public_area(bytes(changed)).name)
        except AttestationError:
            continue
    assert len(names) > 64 * 8, "each readable change has another name"
    assert ECC.name not in names


def test_native_keys_are_made_once():
    assert ECC.key() is ECC.key()
    assert RSA.key().key_size == 2048


@pytest.mark.parametrize(("said", "meant"), [(0, 65537), (65537, 65537), (17, 17)])
def test_the_exponent_of_a_key(said, meant):
    assert isinstance(RSA.unique, RsaKey)
    unique = dataclasses.replace(RSA.unique, exponent=said)
    key = dataclasses.replace(RSA, unique=unique).key()
    assert isinstance(key, rsa.RSAPublicKey)
    assert key.public_numbers().e == meant


def test_random_structures_round_trip():
    source = random.Random(7)
    for _ in range(300):
        selections = tuple(
            PcrSelection(
                source.choice(list(Hash)),
                tuple(sorted(source.sample(range(24), source.randrange(9)))),
            )
            for _ in range(source.randrange(4))
        )
        attest = Attest(
            qualified_signer=source.randbytes(source.randrange(67)),
            extra_data=source.randbytes(source.randrange(65)),
            clock=ClockInfo(
                source.getrandbits(64),
                source.getrandbits(32),
                source.getrandbits(32),
                bool(source.getrandbits(1)),
            ),
            firmware=source.getrandbits(64),
            attested=QuoteInfo(selections, source.randbytes(source.randrange(65))),
        )
        assert parse_attest(encode_attest(attest)) == attest


# Refusals.

WELL_FORMED = [
    pytest.param(parse_public, ECC.tpm2b, id="public-ecc"),
    pytest.param(parse_public, RSA.tpm2b, id="public-rsa"),
    pytest.param(parse_public_area, EK_TEMPLATES["L-1"].encoded, id="area-of-template"),
    pytest.param(parse_selections, encode_selections([SELECTION] * 2), id="selections"),
    pytest.param(parse_attest, encode_attest(ATTEST), id="quote"),
    pytest.param(parse_attest, encode_attest(CERTIFICATION), id="certification"),
    pytest.param(parse_signature, encode_signature(ECDSA), id="ecdsa"),
    pytest.param(parse_signature, encode_signature(RSASSA), id="rsassa"),
]


@pytest.mark.forgery
@pytest.mark.parametrize(("parse", "data"), WELL_FORMED)
def test_truncated_anywhere(parse, data):
    parse(data)
    for size in range(len(data)):
        refused("ST-ATTS-101", parse, data[:size])


@pytest.mark.forgery
@pytest.mark.parametrize(("parse", "data"), WELL_FORMED)
def test_trailing_bytes(parse, data):
    assert "follow" in refused("ST-ATTS-101", parse, data + b"\0").what
    refused("ST-ATTS-101", parse, data + data)


@pytest.mark.forgery
def test_trailing_bytes_inside_the_sized_buffer():
    assert "follow" in refused("ST-ATTS-101", parse_public, tpm2b(ECC.encoded + b"\0")).what


@pytest.mark.forgery
@pytest.mark.parametrize(
    ("at", "new", "code", "word"),
    [
        pytest.param(0, b"\x00\x08", "ST-ATTS-102", "type", id="type-keyed-hash"),
        pytest.param(0, b"\x00\x25", "ST-ATTS-102", "type", id="type-symmetric"),
        pytest.param(0, b"\x00\x06", "ST-ATTS-102", "type AES", id="type-that-is-no-key"),
        pytest.param(2, b"\x00\x04", "ST-ATTS-102", "nameAlg SHA1", id="name-by-sha1"),
        pytest.param(2, b"\x00\x10", "ST-ATTS-102", "nameAlg", id="name-by-nothing"),
        pytest.param(2, b"\x00\x12", "ST-ATTS-102", "nameAlg", id="name-by-sm3"),
        pytest.param(ATTRIBUTES, b"\x80\x05\x04\x72", "ST-ATTS-101", "reserved", id="reserved-31"),
        pytest.param(ATTRIBUTES, b"\x00\x05\x04\x73", "ST-ATTS-101", "reserved", id="reserved-0"),
        pytest.param(ATTRIBUTES, b"\x00\x05\x14\x72", "ST-ATTS-101", "reserved", id="reserved-12"),
        pytest.param(SYMMETRIC, b"\x00\x0a", "ST-ATTS-102", "symmetric", id="symmetric-xor"),
        pytest.param(SYMMETRIC, b"\x00\x01", "ST-ATTS-102", "symmetric RSA", id="symmetric-rsa"),
        pytest.param(SCHEME, b"\x00\x1a", "ST-ATTS-102", "scheme", id="scheme-ecdaa"),
        pytest.param(SCHEME, b"\x00\x14", "ST-ATTS-102", "scheme RSASSA", id="scheme-of-rsa"),
        pytest.param(SCHEME_HASH, b"\x00\x12", "ST-ATTS-102", "scheme hash", id="scheme-hash-sm3"),
        pytest.param(OWN, b"\x00\x01", "ST-ATTS-102", "curveID", id="curve-p192"),
        pytest.param(OWN, b"\x00\x10", "ST-ATTS-102", "curveID", id="curve-bn256"),
        pytest.param(OWN, b"\x00\x20", "ST-ATTS-102", "curveID", id="curve-sm2"),
        pytest.param(OWN + 2, b"\x00\x07", "ST-ATTS-102", "kdf", id="kdf-mgf1"),
        pytest.param(OWN + 2, b"\x00\x18", "ST-ATTS-102", "kdf ECDSA", id="kdf-ecdsa"),
    ],
)
def test_public_areas_that_are_not_supported(at, new, code, word):
    assert word in refused(code, parse_public_area, patch(ECC.encoded, at, new)).what


@pytest.mark.forgery
@pytest.mark.parametrize(
    ("at", "new", "code", "word"),
    [
        pytest.param(SCHEME, b"\x00\x18", "ST-ATTS-102", "scheme ECDSA", id="scheme-of-ecc"),
        pytest.param(OWN, b"\x04\x00", "ST-ATTS-102", "1024 bits", id="rsa-1024"),
        pytest.param(OWN, b"\x07\xff", "ST-ATTS-102", "2047 bits", id="rsa-2047"),
        pytest.param(OWN, b"\x40\x00", "ST-ATTS-102", "16384 bits", id="rsa-16384"),
        pytest.param(OWN + 2, b"\0\0\0\x03", "ST-ATTS-102", "exponent 3", id="exponent-3"),
        pytest.param(OWN + 2, b"\0\0\0\x01", "ST-ATTS-102", "exponent 1", id="exponent-1"),
    ],
)
def test_rsa_areas_that_are_not_supported(at, new, code, word):
    assert word in refused(code, parse_public_area, patch(RSA.encoded, at, new)).what


@pytest.mark.forgery
@pytest.mark.parametrize(
    ("symmetric", "word"),
    [
        pytest.param(Symmetric(64), "AES with 64", id="aes-64"),
        pytest.param(Symmetric(512), "AES with 512", id="aes-512"),
        pytest.param(Symmetric(128, Algorithm.ECDSA), "mode ECDSA", id="mode-that-is-none"),
    ],
)
def test_symmetric_algorithms_that_are_not_supported(symmetric, word):
    area = dataclasses.replace(ECC, symmetric=symmetric)
    assert word in refused("ST-ATTS-102", parse_public, area.tpm2b).what


@pytest.mark.forgery
@pytest.mark.parametrize(
    "area",
    [
        pytest.param(dataclasses.replace(ECC, auth_policy=bytes(65)), id="policy"),
        pytest.param(
            dataclasses.replace(ECC, unique=EccKey(curve=Curve.P256, x=bytes(33))), id="x"
        ),
        pytest.param(
            dataclasses.replace(ECC, unique=EccKey(curve=Curve.P384, y=bytes(49))), id="y"
        ),
        pytest.param(
            dataclasses.replace(RSA, unique=RsaKey(bits=2048, modulus=bytes(513))), id="modulus"
        ),
    ],
)
def test_oversized_fields_of_public_areas(area):
    assert "limit" in refused("ST-ATTS-101", parse_public, area.tpm2b).what


def make_attest(**changes):
    return Tpm().attest(**changes)


@pytest.mark.forgery
@pytest.mark.parametrize(
    ("changes", "code", "word"),
    [
        pytest.param({"magic": GENERATED + 1}, "ST-ATTS-112", "magic", id="magic"),
        pytest.param({"magic": 0x41414141}, "ST-ATTS-112", "magic", id="magic-of-text"),
        pytest.param({"tag": 0x8019}, "ST-ATTS-112", "type 0x8019", id="type-time"),
        pytest.param({"tag": 0x801A}, "ST-ATTS-112", "type 0x801a", id="type-creation"),
        pytest.param({"tag": 0x8014}, "ST-ATTS-112", "type", id="type-nv"),
        pytest.param({"tag": 0}, "ST-ATTS-112", "type", id="type-nothing"),
        pytest.param({"signer": bytes(67)}, "ST-ATTS-101", "limit", id="signer-too-long"),
        pytest.param({"extra": bytes(65)}, "ST-ATTS-101", "limit", id="extra-too-long"),
        pytest.param({"digest": bytes(65)}, "ST-ATTS-101", "limit", id="digest-too-long"),
        pytest.param({"safe": 2}, "ST-ATTS-101", "safe is 2", id="safe-2"),
        pytest.param({"safe": 255}, "ST-ATTS-101", "safe is 255", id="safe-255"),
        pytest.param({"tail": b"\0"}, "ST-ATTS-101", "follow", id="trailing"),
        pytest.param(
            {"selection": number(65535, 4)}, "ST-ATTS-101", "65535 PCR", id="65535-selections"
        ),
        pytest.param(
            {"selection": number(17, 4) + b"\0\x0b\0" * 17},
            "ST-ATTS-101",
            "17 PCR",
            id="17-selections",
        ),
        pytest.param(
            {"selection": number(1, 4) + b"\0\x0b\x05" + bytes(5)},
            "ST-ATTS-101",
            "limit",
            id="bit-map-of-5-octets",
        ),
        pytest.param(
            {"selection": number(1, 4) + b"\0\x12\x03" + bytes(3)},
            "ST-ATTS-102",
            "PCR bank",
            id="bank-of-sm3",
        ),
        pytest.param(
            {"tag": Tag.ATTEST_CERTIFY}, "ST-ATTS-101", "", id="quote-labelled-certification"
        ),
        pytest.param(
            {"tag": Tag.ATTEST_CERTIFY, "body": tpm2b(bytes(67)) + tpm2b(b"")},
            "ST-ATTS-101",
            "limit",
            id="certified-name-too-long",
        ),
        pytest.param(
            {"tag": Tag.ATTEST_CERTIFY, "body": tpm2b(b"") + tpm2b(bytes(67))},
            "ST-ATTS-101",
            "limit",
            id="qualified-name-too-long",
        ),
    ],
)
def test_altered_attestations(changes, code, word):
    parse_attest(make_attest())
    assert word in refused(code, parse_attest, make_attest(**changes)).what


@pytest.mark.forgery
@pytest.mark.parametrize(
    ("data", "code"),
    [
        pytest.param(b"\0\x10\0\x0b\0\0", "ST-ATTS-102", id="null"),
        pytest.param(b"\0\x05\0\x0b" + bytes(32), "ST-ATTS-102", id="hmac"),
        pytest.param(b"\0\x1a\0\x0b\0\x01\0\0\x01\0", "ST-ATTS-102", id="ecdaa"),
        pytest.param(b"\0\x17\0\x0b\0\x01\0", "ST-ATTS-102", id="oaep"),
        pytest.param(b"\0\x18\0\x10\0\x01\0\0\x01\0", "ST-ATTS-102", id="no-hash"),
        pytest.param(b"\0\x18\0\x0b" + tpm2b(bytes(67)) + tpm2b(b"\1"), "ST-ATTS-101", id="long-r"),
        pytest.param(b"\0\x18\0\x0b" + tpm2b(b"\1") + tpm2b(bytes(67)), "ST-ATTS-101", id="long-s"),
        pytest.param(b"\0\x14\0\x0b" + tpm2b(bytes(513)), "ST-ATTS-101", id="long-rsa"),
        pytest.param(b"\0\x18\0\x0b" + tpm2b(b"\1"), "ST-ATTS-101", id="without-s"),
    ],
)
def test_altered_signatures(data, code):
    refused(code, parse_signature, data)


@pytest.mark.forgery
@pytest.mark.parametrize(
    "unique",
    [
        pytest.param(EccKey(curve=Curve.P256), id="template"),
        pytest.param(EccKey(curve=Curve.P256, x=bytes(32), y=bytes(32)), id="zeros"),
        pytest.param(EccKey(curve=Curve.P256, x=b"\1" * 32, y=b"\1" * 32), id="off-the-curve"),
        pytest.param(
            EccKey(curve=Curve.P384, x=ECC.unique.x, y=ECC.unique.y), id="point-of-another-curve"
        ),
        pytest.param(RsaKey(bits=2048), id="rsa-template"),
        pytest.param(RsaKey(bits=2048, modulus=bytes(256)), id="rsa-zeros"),
        pytest.param(RsaKey(bits=3072, modulus=RSA.unique.modulus), id="rsa-shorter-than-said"),
        pytest.param(RsaKey(bits=2048, modulus=b"\1" + bytes(255) + b"\1"), id="rsa-longer"),
        pytest.param(RsaKey(bits=2048, modulus=b"\xff" * 255 + b"\xfe"), id="rsa-even"),
    ],
)
def test_areas_without_a_key(unique):
    area = parse_public(dataclasses.replace(ECC, scheme=None, unique=unique).tpm2b)
    error = refused("ST-ATTS-101", PublicArea.key, area)
    assert "not a public key" in error.what
    assert error.where == "TPMT_PUBLIC.unique"
