# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Certificates that miss the EK Credential Profile, whoever has signed them."""

from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat import asn1
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from securetrain.core.errors import AttestationError
from securetrain.evidence.tpm.keys import EK_TEMPLATES
from securetrain.evidence.tpm.profile import (
    ALTERNATIVE_NAME,
    EXTENDED_KEY_USAGE,
    Identity,
    check_authority,
    check_endorsement_profile,
)
from tests import vocabulary
from tests.evidence.tpm.forge import MAKER, SWTPM, Authority, alternative_name, make_key, raw, usage
from tests.tables import each, forgeries

CA = Authority()
RSA, ECC = make_key(EK_TEMPLATES["L-1"]).public, make_key(EK_TEMPLATES["H-3"]).public
WHERE = "a certificate"


def judge(certificate, *, rsa=False):
    return check_endorsement_profile(certificate, WHERE, rsa=rsa)


def refused(word, certificate, *, rsa=False):
    error = vocabulary.refused(AttestationError, "ST-ATTS-105", judge, certificate, rsa=rsa)
    assert word in error.what
    assert error.where == WHERE


def sequence(*elements: bytes) -> bytes:
    return element(0x30, b"".join(elements))


def element(tag: int, content: bytes) -> bytes:
    return bytes([tag]) + asn1.encode_der(content)[1:]


def attribute(oid: str, text: bytes, tag: int = 0x0C) -> bytes:
    return sequence(asn1.encode_der(x509.ObjectIdentifier(oid)), element(tag, text))


def named(*sets: bytes) -> dict[str, Any]:
    """An alternative name made of these sets."""
    return {"name": raw(ALTERNATIVE_NAME, sequence(element(0xA4, sequence(*sets))), critical=True)}


ATTRIBUTES = [attribute(oid, text.encode()) for oid, text in MAKER.items()]
OIDS = list(MAKER)


def test_honest_certificates():
    expected = Identity("id:494E5443", "TPM-X", "id:00010002")
    assert judge(CA.endorse(RSA), rsa=True) == expected
    assert judge(CA.endorse(ECC)) == expected
    assert judge(CA.endorse(ECC, attributes=SWTPM)).model == "swtpm"


@each(
    "id, changes",
    ("one-set", {"name": (alternative_name(MAKER, together=True), True)}),
    ("name-not-critical", {"name": (alternative_name(MAKER), False)}),
    ("no-constraints", {"constraints": None}),
    ("set-not-sorted", named(element(0x31, b"".join(reversed(ATTRIBUTES))))),
    (
        "printable-strings",
        named(*(element(0x31, attribute(o, MAKER[o].encode(), 0x13)) for o in OIDS)),
    ),
    ("ia5-strings", named(*(element(0x31, attribute(o, MAKER[o].encode(), 0x16)) for o in OIDS))),
    (
        "more-attributes",
        named(*(element(0x31, a) for a in (*ATTRIBUTES, attribute("2.5.4.3", b"tpm")))),
    ),
    ("lower-case", {"name": (alternative_name({**MAKER, OIDS[0]: "id:494e5443"}), True)}),
    ("more-usage", {"usage": (usage("key_agreement", "digital_signature"), True)}),
    ("directory-attributes", {"more": raw("2.5.29.9", b"\x30\x00")}),
    ("policies", {"more": raw("2.5.29.32", b"\x30\x00", critical=True)}),
    ("unknown-not-critical", {"more": raw("1.2.3.4", b"anything")}),
)
def test_honest_variations(changes):
    assert judge(CA.endorse(ECC, **changes)).manufacturer == "id:494E5443"


def test_other_names_beside_the_directory_name():
    names = [
        x509.DNSName("tpm.example"),
        *alternative_name(MAKER)._general_names,  # type: ignore[attr-defined]
    ]
    both = CA.endorse(ECC, name=(x509.SubjectAlternativeName(names), False))
    assert judge(both).model == "TPM-X"


@pytest.mark.forgery
@pytest.mark.parametrize(
    ("changes", "word"),
    [
        pytest.param(
            {"constraints": (x509.BasicConstraints(ca=True, path_length=None), True)},
            "is a CA's",
            id="ca",
        ),
        pytest.param(
            {"constraints": (x509.BasicConstraints(ca=True, path_length=0), False)},
            "is a CA's",
            id="ca-not-critical",
        ),
        pytest.param({"purpose": None}, "no extended key usage", id="no-purpose"),
        pytest.param(
            {"purpose": (x509.ExtendedKeyUsage([x509.ObjectIdentifier("2.23.133.8.3")]), False)},
            "no extended key usage",
            id="purpose-of-an-attestation-key",
        ),
        pytest.param(
            {"purpose": (x509.ExtendedKeyUsage([x509.ObjectIdentifier("2.5.29.37.0")]), False)},
            "no extended key usage",
            id="any-purpose",
        ),
        pytest.param({"usage": None}, "key usage", id="no-usage"),
        pytest.param({"usage": (usage("digital_signature"), True)}, "key usage", id="signing"),
        pytest.param({"usage": (usage("key_encipherment"), True)}, "key usage", id="rsa-usage"),
        pytest.param(
            {"usage": (usage("key_agreement", "key_cert_sign"), True)}, "key usage", id="cert-sign"
        ),
        pytest.param({"usage": raw("2.5.29.15", b"\x03\x01\x00")}, "key usage", id="empty-usage"),
        pytest.param(
            {"more": raw("1.2.3.4", b"", critical=True)}, "1.2.3.4 is not known", id="critical"
        ),
        # OpenSSL knows these and would let them pass.
        pytest.param(
            {"more": raw("2.5.29.36", b"\x30\x00", critical=True)}, "2.5.29.36", id="constraints"
        ),
        pytest.param(
            {"more": raw("2.5.29.54", b"\x02\x01\x00", critical=True)}, "2.5.29.54", id="inhibit"
        ),
        pytest.param({"name": None}, "lacks 2.23.133.2.1, 2.23.133.2.2", id="no-name"),
        *(
            pytest.param(
                {"name": (alternative_name({o: MAKER[o] for o in MAKER if o != oid}), True)},
                f"lacks {oid}",
                id=f"without-{oid}",
            )
            for oid in MAKER
        ),
        *(
            pytest.param(
                {"name": (alternative_name({**MAKER, OIDS[0]: maker}), True)},
                "no vendor id",
                id=f"maker-{maker}",
            )
            for maker in ("INTC", "id:", "id:494E544", "id:494E54433", "id:GGGGGGGG", "ID:494E5443")
        ),
        pytest.param(
            {"name": (alternative_name({**MAKER, OIDS[1]: "x" * 65}), True)},
            "1 to 64",
            id="long-model",
        ),
        pytest.param(
            named(*(element(0x31, a) for a in (*ATTRIBUTES, ATTRIBUTES[0]))), "twice", id="twice"
        ),
        pytest.param(
            named(element(0x31, b"".join((*ATTRIBUTES, attribute(OIDS[1], b"other"))))),
            "twice",
            id="twice-in-one-set",
        ),
        pytest.param(
            named(element(0x31, b"".join((*ATTRIBUTES[1:], attribute(OIDS[0], b""))))),
            "1 to 64",
            id="empty-text",
        ),
        pytest.param(
            named(element(0x31, b"".join((*ATTRIBUTES[1:], attribute(OIDS[0], b"id:\xff"))))),
            "1 to 64",
            id="not-text",
        ),
        pytest.param(
            named(element(0x31, b"".join((*ATTRIBUTES[1:], attribute(OIDS[0], b"id:494E5443\n"))))),
            "1 to 64",
            id="a-line-more",
        ),
        pytest.param(
            named(
                element(0x31, b"".join((*ATTRIBUTES[1:], attribute(OIDS[0], b"id:494E5443", 4))))
            ),
            "1 to 64",
            id="octets",
        ),
        pytest.param(named(*(element(0x30, a) for a in ATTRIBUTES)), "no set", id="no-sets"),
        pytest.param(named(b"\x31\x05\x01"), "malformed", id="broken-set"),
        pytest.param({"name": raw(ALTERNATIVE_NAME, b"")}, "malformed", id="empty-name"),
        pytest.param(
            {"name": raw(ALTERNATIVE_NAME, sequence() + sequence())}, "malformed", id="two-names"
        ),
        pytest.param(
            {"name": raw(ALTERNATIVE_NAME, sequence(element(0xA4, b"")))},
            "malformed",
            id="empty-directory-name",
        ),
        pytest.param(
            {"purpose": raw(EXTENDED_KEY_USAGE, b"\x02\x01\x00")}, "malformed", id="purpose-number"
        ),
        pytest.param({"purpose": raw(EXTENDED_KEY_USAGE, b"")}, "malformed", id="purpose-empty"),
        pytest.param({"constraints": raw("2.5.29.19", b"\x05")}, "malformed", id="constraints-cut"),
        pytest.param({"usage": raw("2.5.29.15", b"\x04\x00")}, "malformed", id="usage-octets"),
    ],
)
def test_certificates_that_miss_the_profile(changes, word):
    refused(word, CA.endorse(ECC, **changes))


@pytest.mark.forgery
def test_key_usage_is_the_kind_of_keys():
    refused("key usage", CA.endorse(RSA, usage=(usage("key_agreement"), True)), rsa=True)
    refused("key usage", CA.endorse(ECC), rsa=True)


@forgeries("oid", b"\x55\x1d\x13", b"\x55\x1d\x0f", b"\x55\x1d\x25", b"\x55\x1d\x11")
def test_an_extension_comes_twice(oid):
    # First with what the verifier wants to see, then with something else.
    certificate = CA.endorse(ECC, more=raw("2.5.29.99", b"\x30\x00"))
    twice = certificate.replace(b"\x55\x1d\x63", oid)
    assert twice != certificate
    refused("twice", twice)


@forgeries(
    "id, certificate",
    ("empty", b""),
    ("empty-sequence", b"\x30\x00"),
    ("cut", CA.endorse(ECC)[:-1]),
    ("trailing", CA.endorse(ECC) + b"\0"),
    ("without-extensions", CA.issue(ECC.key()).public_bytes(Encoding.DER)),
    ("4-gigabytes", b"\x30\x84\xff\xff\xff\xff"),
)
def test_what_is_no_certificate(certificate):
    refused("not a certificate", certificate)


def intermediate(**extensions: Any) -> bytes:
    return Authority("below", CA, **extensions).der


def test_honest_authorities():
    check_authority(intermediate(), WHERE)
    limited = x509.BasicConstraints(ca=True, path_length=0)
    check_authority(intermediate(constraints=(limited, True)), WHERE)


@forgeries(
    "id, changes, code",
    ("no-constraints", {"constraints": None}, "ST-ATTS-107"),
    (
        "no-ca",
        {"constraints": (x509.BasicConstraints(ca=False, path_length=None), True)},
        "ST-ATTS-107",
    ),
    ("no-usage", {"usage": None}, "ST-ATTS-107"),
    ("no-cert-sign", {"usage": (usage("crl_sign"), True)}, "ST-ATTS-107"),
    ("usage-cut", {"usage": raw("2.5.29.15", b"\x04")}, "ST-ATTS-105"),
    ("bad", {"constraints": raw("2.5.29.19", b"\x05")}, "ST-ATTS-105"),
)
def test_authorities_that_may_not_issue(changes, code):
    vocabulary.refused(
        AttestationError, code, check_authority, intermediate(**changes), WHERE, names=WHERE
    )


@pytest.mark.forgery
def test_an_authority_that_is_no_certificate():
    vocabulary.refused(AttestationError, "ST-ATTS-105", check_authority, b"\x30\x00", WHERE)


def test_the_curve_makes_no_difference():
    key = ec.generate_private_key(ec.SECP521R1())
    assert judge(Authority(key=key).endorse(ECC)).version == "id:00010002"
