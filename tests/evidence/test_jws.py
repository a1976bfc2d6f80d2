# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Signed JSON: what a pinned key has signed is read, everything else is refused."""

import base64
import hashlib
import hmac
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import jwt
import msgspec
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from securetrain.core.errors import AttestationError
from securetrain.evidence.jws import TOKEN_LIMIT, Algorithm, Jwk, Jwks, Signing, parse
from tests import vocabulary
from tests.evidence.issuers import KEYS, OTHERS, jwk, segment, signed, signing, token
from tests.identity.worlds import certificate
from tests.rsa_keys import rsa_key
from tests.tables import each, forgeries

CLAIMS = {"iss": "https://issuer.example", "x": [1, {"y": None}]}


def refused(text: str, code: str, pinned: Signing | None = None) -> AttestationError:
    error = vocabulary.refused(
        AttestationError, code, lambda: parse(text, "token").verify(pinned or signing())
    )
    assert error.where.startswith("token")
    return error


@each("algorithm", *list(KEYS))
def test_what_a_pinned_key_has_signed(algorithm):
    parsed = parse(token(CLAIMS, algorithm), "token")
    assert parsed.issuer == "https://issuer.example"
    assert parsed.verify(signing(algorithm)) == CLAIMS


@each("algorithm", "RS384", "RS512", "PS256", "PS384", "PS512")
def test_an_rsa_key_fits_several_algorithms(algorithm):
    key = KEYS["RS256"]
    pinned = Signing(jwks=Jwks(keys=(jwk(key),)), algorithms=(Algorithm(algorithm),))
    assert parse(token(CLAIMS, algorithm, key=key), "token").verify(pinned) == CLAIMS


@each("typ", None, "JWT", "eat+jwt")
def test_types(typ):
    parse(token(CLAIMS, header={"typ": typ}), "token").verify(signing())


def test_the_key_is_selected_by_its_id():
    keys = (jwk(OTHERS["ES256"], kid="key-0"), jwk(KEYS["ES256"]))
    parse(token(CLAIMS), "token").verify(signing(jwks=Jwks(keys=keys)))


def test_an_issuer_that_names_no_keys():
    keys = (jwk(KEYS["ES256"], kid=""), jwk(OTHERS["ES256"], kid="key-2"))
    parse(token(CLAIMS, header={"kid": None}), "token").verify(signing(jwks=Jwks(keys=keys)))


def test_a_key_in_a_certificate():
    """Azure publishes its keys so."""
    key = KEYS["RS256"]
    pinned = signing("RS256", jwks=Jwks(keys=(in_certificate(key),)))
    assert parse(token(CLAIMS, "RS256"), "token").verify(pinned) == CLAIMS


def in_certificate(key: Any, **changes: Any) -> Jwk:
    day = datetime(2020, 1, 1, tzinfo=UTC)
    valid = (day, day + timedelta(days=1))
    made = certificate("an issuer", "an issuer", key.public_key(), key, valid)
    text = base64.b64encode(made.public_bytes(serialization.Encoding.DER)).decode()
    return msgspec.convert({"kty": "RSA", "kid": "key-1", "x5c": [text], **changes}, Jwk)


def test_headers_that_some_issuers_write():
    address = "https://issuer.example/certs"
    pinned = signing(jku=address, embedded_key=True)
    own = msgspec.to_builtins(jwk(KEYS["ES256"], kid=""))
    for header in ({"jku": address}, {"jwk": own}, {"jku": address, "jwk": own}):
        parse(token(CLAIMS, header=header), "token").verify(pinned)
    parse(token(CLAIMS), "token").verify(pinned)


def test_a_key_set_as_it_is_published():
    document = {
        "keys": [
            {
                **{k: v for k, v in msgspec.to_builtins(jwk(KEYS["ES256"])).items() if v},
                "use": "sig",
                "alg": "ES256",
                "key_ops": ["verify"],
                "x5t": "x",
                "x5t#S256": "y",
            }
        ]
    }
    pinned = signing(jwks=msgspec.json.decode(json.dumps(document), type=Jwks))
    parse(token(CLAIMS), "token").verify(pinned)


# Forgeries.

GOOD = token(CLAIMS)
HEAD, BODY, SIGNATURE = GOOD.split(".")
PEM = (
    KEYS["RS256"]
    .public_key()
    .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
)


def edited(changes: dict[str, Any]) -> str:
    return ".".join([HEAD, segment(json.dumps({**CLAIMS, **changes}).encode()), SIGNATURE])


def with_mac(key: bytes) -> str:
    """Algorithm confusion: the public key used as a secret."""
    head = segment(json.dumps({"alg": "HS256", "kid": "key-1"}).encode())
    message = f"{head}.{BODY}"
    return f"{message}.{segment(hmac.digest(key, message.encode(), hashlib.sha256))}"


def unsigned(name: str) -> str:
    return f"{segment(json.dumps({'alg': name, 'kid': 'key-1'}).encode())}.{BODY}."


def flipped(text: str, index: int) -> str:
    other = "A" if text[index] != "A" else "B"
    return text[:index] + other + text[index + 1 :]


FORGED: dict[str, tuple[str, int, str]] = {
    "claims edited": (edited({"x": 2}), 804, "signature"),
    "header edited": (
        ".".join([segment(b'{"alg":"ES256","kid":"key-1"}'), BODY, SIGNATURE]),
        804,
        "signature",
    ),
    "signature bit flipped": (f"{HEAD}.{BODY}.{flipped(SIGNATURE, 9)}", 804, "signature"),
    "signature of another token": (
        f"{HEAD}.{BODY}.{token({'iss': 'x'}).split('.')[2]}",
        804,
        "signature",
    ),
    "signature empty": (f"{HEAD}.{BODY}.", 804, "signature"),
    "signature of zeros": (f"{HEAD}.{BODY}.{segment(bytes(64))}", 804, "signature"),
    "signature truncated": (f"{HEAD}.{BODY}.{SIGNATURE[:-2]}", 804, "signature"),
    "signed by another key": (token(CLAIMS, key=OTHERS["ES256"]), 804, "signature"),
    "alg none": (unsigned("none"), 803, "'none'"),
    "alg None": (unsigned("None"), 803, "'None'"),
    "alg empty": (unsigned(""), 803, "''"),
    "alg HS256 with the public key": (with_mac(PEM), 803, "'HS256'"),
    "alg not pinned": (token(CLAIMS, "ES384"), 803, "'ES384'"),
    "alg in lower case": (unsigned("es256"), 803, "'es256'"),
    "no alg": (token(CLAIMS, header={"alg": None}), 803, "alg"),
    "alg a number": (token(CLAIMS, header={"alg": 1}), 803, "alg"),
    "unknown kid": (token(CLAIMS, header={"kid": "key-9"}), 802, "'key-9'"),
    "no kid": (token(CLAIMS, header={"kid": None}), 802, "''"),
    "kid a list": (token(CLAIMS, header={"kid": ["key-1"]}), 803, "kid"),
    "kid too long": (token(CLAIMS, header={"kid": "k" * 513}), 803, "kid"),
    "crit": (token(CLAIMS, header={"crit": ["exp"]}), 803, "crit"),
    "b64 false": (token(CLAIMS, header={"b64": False}), 803, "b64"),
    "x5u": (token(CLAIMS, header={"x5u": "https://evil.example"}), 803, "x5u"),
    "x5c": (token(CLAIMS, header={"x5c": []}), 803, "x5c"),
    "jku": (token(CLAIMS, header={"jku": "https://evil.example/certs"}), 803, "jku"),
    "jku empty": (token(CLAIMS, header={"jku": ""}), 803, "jku"),
    "jwk": (token(CLAIMS, header={"jwk": msgspec.to_builtins(jwk(KEYS["ES256"]))}), 803, "jwk"),
    "unknown typ": (token(CLAIMS, header={"typ": "at+jwt"}), 801, "typ"),
    "unsigned": (f"{HEAD}.{BODY}", 801, "2 segments"),
    "four segments": (f"{GOOD}.x", 801, "4 segments"),
    "empty": ("", 801, "1 segments"),
    "padding": (f"{HEAD}.{BODY}.{SIGNATURE}==", 801, "base64url"),
    "ordinary base64": (f"{HEAD}.{BODY}.ab+/", 801, "base64url"),
    "white space": (f"{HEAD}.{BODY}.{SIGNATURE}\n", 801, "base64url"),
    "another spelling": (f"{HEAD}.{BODY}.AB", 801, "one spelling"),
    "outside ASCII": (f"{HEAD}.{BODY}.\u00e9", 801, "base64url"),
    "payload a list": (token(b"[]"), 801, "objects"),
    "payload no JSON": (token(b"{"), 801, "token"),
    "payload not text": (token(b'{"a":"\xff"}'), 801, "token"),
    "a claim twice": (
        token(b'{"iss":"https://issuer.example","iss":"https://issuer.example"}'),
        801,
        "duplicate key 'iss'",
    ),
    "a deep claim twice": (token(b'{"a":{"b":1,"b":1}}'), 801, "duplicate key 'b'"),
    "a header parameter twice": (
        signed(b'{"alg":"ES256","kid":"key-9","kid":"key-1"}', b"{}"),
        801,
        "duplicate key 'kid'",
    ),
    "a number that is none": (token(b'{"exp":NaN}'), 801, "NaN"),
    "too deep": (token(b'{"a":' + b"[" * 9000 + b"]" * 9000 + b"}"), 801, "token"),
}


@forgeries("id, text, code, what", FORGED)
def test_forged_tokens(text, code, what):
    assert what in refused(text, f"ST-ATTS-{code}").what


@pytest.mark.forgery
def test_confusion_of_algorithms_with_an_rsa_key():
    """The same forgery where the pinned key is RSA, as it was found in libraries."""
    error = refused(with_mac(PEM), "ST-ATTS-803", signing("RS256"))
    assert "'HS256'" in error.what


@forgeries(
    "id, header, key, pinned",
    ("another curve", "ES384", KEYS["ES384"], {"algorithms": (Algorithm.ES256, Algorithm.ES384)}),
    ("another type", "RS256", KEYS["RS256"], {"algorithms": (Algorithm.ES256, Algorithm.RS256)}),
)
def test_an_algorithm_that_does_not_fit_the_key(header, key, pinned):
    error = refused(token(CLAIMS, header, key=key), "ST-ATTS-803", signing(**pinned))
    assert "does not fit" in error.what


@pytest.mark.forgery
def test_an_algorithm_that_the_key_is_not_for():
    keys = Jwks(keys=(jwk(KEYS["RS256"], alg="PS256"),))
    pinned = Signing(jwks=keys, algorithms=(Algorithm.RS256, Algorithm.PS256))
    parse(token(CLAIMS, "PS256", key=KEYS["RS256"]), "token").verify(pinned)
    refused(token(CLAIMS, "RS256"), "ST-ATTS-803", pinned)


@pytest.mark.forgery
def test_another_address_for_keys_than_the_pinned_one():
    pinned = signing(jku="https://issuer.example/certs")
    text = token(CLAIMS, header={"jku": "https://issuer.example.evil/certs"})
    assert "jku" in refused(text, "ST-ATTS-803", pinned).what


@forgeries(
    "id, embedded",
    ("another key", msgspec.to_builtins(jwk(OTHERS["ES256"]))),
    ("no point", {"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"}),
    ("nothing", {"kty": "RSA"}),
    ("no certificate", {"kty": "EC", "x5c": ["AAAA"]}),
)
def test_a_key_in_the_header_that_is_not_the_pinned_one(embedded):
    own = token(CLAIMS, key=OTHERS["ES256"], header={"jwk": embedded})
    error = refused(own, "ST-ATTS-803", signing(embedded_key=True))
    assert "jwk" in error.what


@pytest.mark.forgery
def test_an_embedded_private_key():
    fields = {**msgspec.to_builtins(jwk(KEYS["ES256"])), "d": "AA"}
    error = refused(
        token(CLAIMS, header={"jwk": fields}), "ST-ATTS-803", signing(embedded_key=True)
    )
    assert "`d`" in error.what


@forgeries("pinned", Signing(), Signing(algorithms=(Algorithm.ES256,)))
def test_by_default_no_token_is_accepted(pinned):
    refused(GOOD, "ST-ATTS-802" if pinned.algorithms else "ST-ATTS-803", pinned)


def test_sizes_are_checked_before_anything_is_decoded():
    with pytest.raises(AttestationError, match=f"{TOKEN_LIMIT + 1} characters"):
        parse("." * (TOKEN_LIMIT + 1), "token")
    vocabulary.refused(AttestationError, "segments", parse, "." * TOKEN_LIMIT, "token")


@each("issuer", None, 1, ["x"])
def test_a_token_without_an_issuer(issuer):
    parsed = parse(token({"iss": issuer} if issuer else {}), "token")
    with pytest.raises(AttestationError, match="names no issuer") as error:
        _ = parsed.issuer
    assert error.value.code == "ST-ATTS-801"


SHORT = rsa_key(1024)
UNUSABLE: dict[str, tuple[tuple[Jwk, ...], str]] = {
    "one id twice": ((jwk(KEYS["ES256"]), jwk(OTHERS["ES256"])), "two pinned keys"),
    "a short RSA key": ((jwk(SHORT),), "fits no algorithm"),
    "another curve": ((jwk(ec.generate_private_key(ec.SECP256K1())),), "fits no algorithm"),
    "an algorithm for another key": ((jwk(KEYS["ES256"], alg="ES384"),), "fits no algorithm"),
    "no numbers": ((Jwk(kty="EC", kid="key-1"),), "cannot be read"),
    "no point of the curve": ((jwk(KEYS["ES256"], x=segment(bytes(32))),), "cannot be read"),
    "no base64": ((jwk(KEYS["ES256"], x="*"),), "cannot be read"),
    "no certificate": ((Jwk(kty="RSA", kid="key-1", x5c=("AAAA",)),), "cannot be read"),
    "certificate not in base64": ((Jwk(kty="RSA", kid="key-1", x5c=("*",)),), "cannot be read"),
    "a certificate of another type": ((in_certificate(KEYS["RS256"], kty="EC"),), "not of type"),
}


@each("id, keys, what", UNUSABLE)
def test_pinned_keys_that_cannot_be_used(keys, what):
    with pytest.raises(AttestationError) as error:
        parse(GOOD, "token").verify(signing(jwks=Jwks(keys=keys)))
    assert error.value.code == "ST-ATTS-811"
    assert what in error.value.what


@each(
    "field",
    {"d": "AA"},
    {"kty": "oct"},
    {"use": "enc"},
    {"alg": "HS256"},
    {"alg": "none"},
    {"k": "AA"},
)
def test_key_sets_hold_public_keys_for_signatures_only(field):
    document = {**msgspec.to_builtins(jwk(KEYS["ES256"])), **field}
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"keys": [document]}, Jwks)


def test_a_certificate_beside_numbers_is_not_read():
    pinned = signing(jwks=Jwks(keys=(jwk(KEYS["ES256"], x5c=["AAAA"]),)))
    parse(GOOD, "token").verify(pinned)
    pinned = signing("RS256", jwks=Jwks(keys=(jwk(KEYS["RS256"], x5c=["AAAA"]),)))
    parse(token(CLAIMS, "RS256"), "token").verify(pinned)


@given(st.text(max_size=60), st.sampled_from([0, 1, 2]))
def test_any_text_is_refused_with_a_code(text, index):
    parts = [HEAD, BODY, SIGNATURE]
    parts[index] = text
    with pytest.raises(AttestationError, match="ST-ATTS-80"):
        parse(".".join(parts), "token").verify(signing())


@given(st.integers(0, len(GOOD) - 1))
def test_no_character_can_change(index):
    with pytest.raises(AttestationError, match="ST-ATTS-80"):
        parse(flipped(GOOD, index), "token").verify(signing())


def test_the_tests_own_tokens_are_what_pyjwt_makes():
    claims = jwt.decode(GOOD, KEYS["ES256"].public_key(), algorithms=["ES256"])
    assert claims == CLAIMS
