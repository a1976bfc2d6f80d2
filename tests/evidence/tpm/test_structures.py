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
from tests.tables import each, forgeries

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


def refused(code, parse, data, **more):
    return vocabulary.refused(AttestationError, f"ST-ATTS-{code}", parse, data, **more)


def patch(data, at, new):
    return data[:at] + new + data[at + len(new) :]


# Controls.


@each("name", *EK_TEMPLATES)
def test_templates_round_trip(name):
    template = EK_TEMPLATES[name]
    assert parse_public(template.tpm2b) == template
    key = make_key(template).public if name != "H-7" else template
    assert parse_public(key.tpm2b).encoded == key.encoded


@each(
    "area",
    ECC,
    RSA,
    dataclasses.replace(ECC, scheme=None, auth_policy=bytes(64)),
    dataclasses.replace(ECC, scheme=Scheme(Algorithm.ECDH, Hash.SHA512)),
    dataclasses.replace(
        ECC,
        unique=EccKey(curve=Curve.P521, kdf=Scheme(Algorithm.KDF1_SP800_56A, Hash.SHA1), x=b"\x01"),
    ),
    dataclasses.replace(RSA, scheme=Scheme(Algorithm.RSAES)),
    dataclasses.replace(RSA, scheme=Scheme(Algorithm.OAEP, Hash.SHA1)),
    dataclasses.replace(RSA, symmetric=Symmetric(192, Algorithm.CBC)),
    dataclasses.replace(RSA, unique=RsaKey(bits=3072, exponent=65537)),
    dataclasses.replace(RSA, name_alg=Hash.SHA512, attributes=Attributes(0)),
)
def test_public_areas_round_trip(area):
    assert parse_public(area.tpm2b) == area
    assert parse_public_area(area.encoded) == area


@each(
    "id, selections",
    ("none", ()),
    ("one", (SELECTION,)),
    ("two", (PcrSelection(Hash.SHA1, (), 1), PcrSelection(Hash.SHA384, tuple(range(32)), 4))),
    ("no-bits", (PcrSelection(Hash.SHA512, (), 0),)),
    ("the-limit", (SELECTION,) * MAX_SELECTIONS),
)
def test_selections_round_trip(selections):
    assert parse_selections(encode_selections(selections)) == selections


@each("id, attest", ("quote", ATTEST), ("certification", CERTIFICATION))
def test_attestations_round_trip(attest):
    assert parse_attest(encode_attest(attest)) == attest


@each("id, signature", ("ecdsa", ECDSA), ("rsassa", RSASSA))
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


@each("said, meant", (0, 65537), (65537, 65537), (17, 17))
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
    ("public-ecc", parse_public, ECC.tpm2b),
    ("public-rsa", parse_public, RSA.tpm2b),
    ("area-of-template", parse_public_area, EK_TEMPLATES["L-1"].encoded),
    ("selections", parse_selections, encode_selections([SELECTION] * 2)),
    ("quote", parse_attest, encode_attest(ATTEST)),
    ("certification", parse_attest, encode_attest(CERTIFICATION)),
    ("ecdsa", parse_signature, encode_signature(ECDSA)),
    ("rsassa", parse_signature, encode_signature(RSASSA)),
]


@forgeries("id, parse, data", *WELL_FORMED)
def test_truncated_anywhere(parse, data):
    parse(data)
    for size in range(len(data)):
        refused(101, parse, data[:size])


@forgeries("id, parse, data", *WELL_FORMED)
def test_trailing_bytes(parse, data):
    assert "follow" in refused(101, parse, data + b"\0").what
    refused(101, parse, data + data)


UNSUPPORTED = {
    "type-keyed-hash": (ECC, 0, b"\x00\x08", 102, "type"),
    "type-symmetric": (ECC, 0, b"\x00\x25", 102, "type"),
    "type-that-is-no-key": (ECC, 0, b"\x00\x06", 102, "type AES"),
    "name-by-sha1": (ECC, 2, b"\x00\x04", 102, "nameAlg SHA1"),
    "name-by-nothing": (ECC, 2, b"\x00\x10", 102, "nameAlg"),
    "name-by-sm3": (ECC, 2, b"\x00\x12", 102, "nameAlg"),
    "reserved-31": (ECC, ATTRIBUTES, b"\x80\x05\x04\x72", 101, "reserved"),
    "reserved-0": (ECC, ATTRIBUTES, b"\x00\x05\x04\x73", 101, "reserved"),
    "reserved-12": (ECC, ATTRIBUTES, b"\x00\x05\x14\x72", 101, "reserved"),
    "symmetric-xor": (ECC, SYMMETRIC, b"\x00\x0a", 102, "symmetric"),
    "symmetric-rsa": (ECC, SYMMETRIC, b"\x00\x01", 102, "symmetric RSA"),
    "scheme-ecdaa": (ECC, SCHEME, b"\x00\x1a", 102, "scheme"),
    "scheme-of-rsa": (ECC, SCHEME, b"\x00\x14", 102, "scheme RSASSA"),
    "scheme-hash-sm3": (ECC, SCHEME_HASH, b"\x00\x12", 102, "scheme hash"),
    "curve-p192": (ECC, OWN, b"\x00\x01", 102, "curveID"),
    "curve-bn256": (ECC, OWN, b"\x00\x10", 102, "curveID"),
    "curve-sm2": (ECC, OWN, b"\x00\x20", 102, "curveID"),
    "kdf-mgf1": (ECC, OWN + 2, b"\x00\x07", 102, "kdf"),
    "kdf-ecdsa": (ECC, OWN + 2, b"\x00\x18", 102, "kdf ECDSA"),
    "scheme-of-ecc": (RSA, SCHEME, b"\x00\x18", 102, "scheme ECDSA"),
    "rsa-1024": (RSA, OWN, b"\x04\x00", 102, "1024 bits"),
    "rsa-2047": (RSA, OWN, b"\x07\xff", 102, "2047 bits"),
    "rsa-16384": (RSA, OWN, b"\x40\x00", 102, "16384 bits"),
    "exponent-3": (RSA, OWN + 2, b"\0\0\0\x03", 102, "exponent 3"),
    "exponent-1": (RSA, OWN + 2, b"\0\0\0\x01", 102, "exponent 1"),
}


@forgeries("id, area, at, new, code, word", UNSUPPORTED)
def test_public_areas_that_are_not_supported(area, at, new, code, word):
    refused(code, parse_public_area, patch(area.encoded, at, new), says=word)


@forgeries(
    "id, area, changes, code, word",
    ("aes-64", ECC, {"symmetric": Symmetric(64)}, 102, "AES with 64"),
    ("aes-512", ECC, {"symmetric": Symmetric(512)}, 102, "AES with 512"),
    ("no-mode", ECC, {"symmetric": Symmetric(128, Algorithm.ECDSA)}, 102, "mode ECDSA"),
    ("policy", ECC, {"auth_policy": bytes(65)}, 101, "limit"),
    ("x", ECC, {"unique": EccKey(curve=Curve.P256, x=bytes(33))}, 101, "limit"),
    ("y", ECC, {"unique": EccKey(curve=Curve.P384, y=bytes(49))}, 101, "limit"),
    ("modulus", RSA, {"unique": RsaKey(bits=2048, modulus=bytes(513))}, 101, "limit"),
)
def test_fields_of_public_areas_that_are_not_supported(area, changes, code, word):
    refused(code, parse_public, dataclasses.replace(area, **changes).tpm2b, says=word)


@pytest.mark.forgery
def test_trailing_bytes_inside_the_sized_buffer():
    refused(101, parse_public, tpm2b(ECC.encoded + b"\0"), says="follow")


LONG = tpm2b(bytes(67))
CERTIFY = {"tag": Tag.ATTEST_CERTIFY}


def selected(count, rest):
    return {"selection": number(count, 4) + rest}


@forgeries(
    "id, changes, code, word",
    ("magic", {"magic": GENERATED + 1}, 112, "magic"),
    ("magic-of-text", {"magic": 0x41414141}, 112, "magic"),
    ("type-time", {"tag": 0x8019}, 112, "type 0x8019"),
    ("type-creation", {"tag": 0x801A}, 112, "type 0x801a"),
    ("type-nv", {"tag": 0x8014}, 112, "type"),
    ("type-nothing", {"tag": 0}, 112, "type"),
    ("signer-too-long", {"signer": bytes(67)}, 101, "limit"),
    ("extra-too-long", {"extra": bytes(65)}, 101, "limit"),
    ("digest-too-long", {"digest": bytes(65)}, 101, "limit"),
    ("safe-2", {"safe": 2}, 101, "safe is 2"),
    ("safe-255", {"safe": 255}, 101, "safe is 255"),
    ("trailing", {"tail": b"\0"}, 101, "follow"),
    ("65535-selections", selected(65535, b""), 101, "65535 PCR"),
    ("17-selections", selected(17, b"\0\x0b\0" * 17), 101, "17 PCR"),
    ("bit-map-of-5-octets", selected(1, b"\0\x0b\x05" + bytes(5)), 101, "limit"),
    ("bank-of-sm3", selected(1, b"\0\x12\x03" + bytes(3)), 102, "PCR bank"),
    ("quote-labelled-certification", CERTIFY, 101, ""),
    ("certified-name-too-long", {**CERTIFY, "body": LONG + tpm2b(b"")}, 101, "limit"),
    ("qualified-name-too-long", {**CERTIFY, "body": tpm2b(b"") + LONG}, 101, "limit"),
)
def test_altered_attestations(changes, code, word):
    parse_attest(Tpm().attest())
    refused(code, parse_attest, Tpm().attest(**changes), says=word)


@forgeries(
    "id, data, code",
    ("null", b"\0\x10\0\x0b\0\0", 102),
    ("hmac", b"\0\x05\0\x0b" + bytes(32), 102),
    ("ecdaa", b"\0\x1a\0\x0b\0\x01\0\0\x01\0", 102),
    ("oaep", b"\0\x17\0\x0b\0\x01\0", 102),
    ("no-hash", b"\0\x18\0\x10\0\x01\0\0\x01\0", 102),
    ("long-r", b"\0\x18\0\x0b" + tpm2b(bytes(67)) + tpm2b(b"\1"), 101),
    ("long-s", b"\0\x18\0\x0b" + tpm2b(b"\1") + tpm2b(bytes(67)), 101),
    ("long-rsa", b"\0\x14\0\x0b" + tpm2b(bytes(513)), 101),
    ("without-s", b"\0\x18\0\x0b" + tpm2b(b"\1"), 101),
)
def test_altered_signatures(data, code):
    refused(code, parse_signature, data)


@forgeries(
    "id, unique",
    ("template", EccKey(curve=Curve.P256)),
    ("zeros", EccKey(curve=Curve.P256, x=bytes(32), y=bytes(32))),
    ("off-the-curve", EccKey(curve=Curve.P256, x=b"\1" * 32, y=b"\1" * 32)),
    ("point-of-another-curve", EccKey(curve=Curve.P384, x=ECC.unique.x, y=ECC.unique.y)),
    ("rsa-template", RsaKey(bits=2048)),
    ("rsa-zeros", RsaKey(bits=2048, modulus=bytes(256))),
    ("rsa-shorter-than-said", RsaKey(bits=3072, modulus=RSA.unique.modulus)),
    ("rsa-longer", RsaKey(bits=2048, modulus=b"\1" + bytes(255) + b"\1")),
    ("rsa-even", RsaKey(bits=2048, modulus=b"\xff" * 255 + b"\xfe")),
)
def test_areas_without_a_key(unique):
    area = parse_public(dataclasses.replace(ECC, scheme=None, unique=unique).tpm2b)
    refused(101, PublicArea.key, area, says="not a public key", names="TPMT_PUBLIC.unique")
