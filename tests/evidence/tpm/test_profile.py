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
from tests.evidence.tpm.forge import MAKER, SWTPM, Authority, alternative_name, make_key, raw
from tests.identity.worlds import usage
from tests.tables import each, forgeries

CA = Authority()
RSA, ECC = make_key(EK_TEMPLATES["L-1"]).public, make_key(EK_TEMPLATES["H-3"]).public
WHERE = "a certificate"


def judge(certificate, *, rsa=False):
    return check_endorsement_profile(certificate, WHERE, rsa=rsa)


def refused(word, certificate, *, rsa=False):
    vocabulary.refused(
        AttestationError, "ST-ATTS-105", judge, certificate, rsa=rsa, says=word, names=WHERE
    )


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


def one_set(*attributes: bytes) -> dict[str, Any]:
    return named(element(0x31, b"".join(attributes)))


def sets(*attributes: bytes, tag: int = 0x31) -> dict[str, Any]:
    return named(*(element(tag, one) for one in attributes))


def maker(changes: dict[str, str], *, critical: bool = True) -> dict[str, Any]:
    """An alternative name that says other things of the maker."""
    return {"name": (alternative_name({**MAKER, **changes}), critical)}


def first(text: bytes, tag: int = 0x0C) -> dict[str, Any]:
    """All attributes in one set, the first with another text."""
    return one_set(*ATTRIBUTES[1:], attribute(OIDS[0], text, tag))


def named_ca(**limits: Any) -> x509.BasicConstraints:
    return x509.BasicConstraints(**{"ca": True, "path_length": None, **limits})


def purpose(oid: str) -> tuple[x509.ExtendedKeyUsage, bool]:
    return x509.ExtendedKeyUsage([x509.ObjectIdentifier(oid)]), False


def test_honest_certificates():
    expected = Identity("id:494E5443", "TPM-X", "id:00010002")
    assert judge(CA.endorse(RSA), rsa=True) == expected
    assert judge(CA.endorse(ECC)) == expected
    assert judge(CA.endorse(ECC, attributes=SWTPM)).model == "swtpm"


@each(
    "id, changes",
    ("one-set", {"name": (alternative_name(MAKER, together=True), True)}),
    ("name-not-critical", maker({}, critical=False)),
    ("no-constraints", {"constraints": None}),
    ("set-not-sorted", one_set(*reversed(ATTRIBUTES))),
    ("printable-strings", sets(*(attribute(o, MAKER[o].encode(), 0x13) for o in OIDS))),
    ("ia5-strings", sets(*(attribute(o, MAKER[o].encode(), 0x16) for o in OIDS))),
    ("more-attributes", sets(*ATTRIBUTES, attribute("2.5.4.3", b"tpm"))),
    ("lower-case", maker({OIDS[0]: "id:494e5443"})),
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


MISSED: dict[str, dict[str, dict[str, Any]]] = {
    "is a CA's": {
        "ca": {"constraints": (named_ca(), True)},
        "ca-not-critical": {"constraints": (named_ca(path_length=0), False)},
    },
    "no extended key usage": {
        "no-purpose": {"purpose": None},
        "purpose-of-an-attestation-key": {"purpose": purpose("2.23.133.8.3")},
        "any-purpose": {"purpose": purpose("2.5.29.37.0")},
    },
    "key usage": {
        "no-usage": {"usage": None},
        "signing": {"usage": (usage("digital_signature"), True)},
        "rsa-usage": {"usage": (usage("key_encipherment"), True)},
        "cert-sign": {"usage": (usage("key_agreement", "key_cert_sign"), True)},
        "empty-usage": {"usage": raw("2.5.29.15", b"\x03\x01\x00")},
    },
    "1.2.3.4 is not known": {"critical": {"more": raw("1.2.3.4", b"", critical=True)}},
    # OpenSSL knows these two and would let them pass.
    "2.5.29.36": {"constraints": {"more": raw("2.5.29.36", b"\x30\x00", critical=True)}},
    "2.5.29.54": {"inhibit": {"more": raw("2.5.29.54", b"\x02\x01\x00", critical=True)}},
    "lacks 2.23.133.2.1, 2.23.133.2.2": {"no-name": {"name": None}},
    **{
        f"lacks {oid}": {
            f"without-{oid}": {
                "name": (alternative_name({o: MAKER[o] for o in MAKER if o != oid}), True)
            }
        }
        for oid in MAKER
    },
    "no vendor id": {
        f"maker-{name}": maker({OIDS[0]: name})
        for name in ("INTC", "id:", "id:494E544", "id:494E54433", "id:GGGGGGGG", "ID:494E5443")
    },
    "1 to 64": {
        "long-model": maker({OIDS[1]: "x" * 65}),
        "empty-text": first(b""),
        "not-text": first(b"id:\xff"),
        "a-line-more": first(b"id:494E5443\n"),
        "octets": first(b"id:494E5443", 4),
    },
    "twice": {
        "twice": sets(*ATTRIBUTES, ATTRIBUTES[0]),
        "twice-in-one-set": one_set(*ATTRIBUTES, attribute(OIDS[1], b"other")),
    },
    "no set": {"no-sets": sets(*ATTRIBUTES, tag=0x30)},
    "malformed": {
        "broken-set": named(b"\x31\x05\x01"),
        "empty-name": {"name": raw(ALTERNATIVE_NAME, b"")},
        "two-names": {"name": raw(ALTERNATIVE_NAME, sequence() + sequence())},
        "empty-directory-name": {"name": raw(ALTERNATIVE_NAME, sequence(element(0xA4, b"")))},
        "purpose-number": {"purpose": raw(EXTENDED_KEY_USAGE, b"\x02\x01\x00")},
        "purpose-empty": {"purpose": raw(EXTENDED_KEY_USAGE, b"")},
        "constraints-cut": {"constraints": raw("2.5.29.19", b"\x05")},
        "usage-octets": {"usage": raw("2.5.29.15", b"\x04\x00")},
    },
}
"""What the error says, and the certificates of which it says so."""


@forgeries(
    "id, changes, word",
    *((name, one, word) for word, table in MISSED.items() for name, one in table.items()),
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
    check_authority(intermediate(constraints=(named_ca(path_length=0), True)), WHERE)


@forgeries(
    "id, certificate, code",
    ("no-constraints", intermediate(constraints=None), "ST-ATTS-107"),
    ("no-ca", intermediate(constraints=(named_ca(ca=False), True)), "ST-ATTS-107"),
    ("no-usage", intermediate(usage=None), "ST-ATTS-107"),
    ("no-cert-sign", intermediate(usage=(usage("crl_sign"), True)), "ST-ATTS-107"),
    ("usage-cut", intermediate(usage=raw("2.5.29.15", b"\x04")), "ST-ATTS-105"),
    ("bad", intermediate(constraints=raw("2.5.29.19", b"\x05")), "ST-ATTS-105"),
    ("no-certificate", b"\x30\x00", "ST-ATTS-105"),
)
def test_authorities_that_may_not_issue(certificate, code):
    vocabulary.refused(AttestationError, code, check_authority, certificate, WHERE, names=WHERE)


def test_the_curve_makes_no_difference():
    key = ec.generate_private_key(ec.SECP521R1())
    assert judge(Authority(key=key).endorse(ECC)).version == "id:00010002"
