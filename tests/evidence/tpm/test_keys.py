# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Keys that may vouch for a node, and those that may not. The first tests are the controls."""

import dataclasses
import hashlib
from typing import Any

import pytest

from securetrain.core.errors import AttestationError
from securetrain.evidence.tpm.constants import Algorithm, Attributes, Curve, Handle, Hash
from securetrain.evidence.tpm.keys import (
    AK_TEMPLATE,
    EK_TEMPLATES,
    POLICY_C,
    check_attestation_key,
    check_endorsement_key,
    policy_a,
    policy_b,
    qualified_name,
)
from securetrain.evidence.tpm.structures import (
    EccKey,
    RsaKey,
    Scheme,
    Symmetric,
    number,
    parse_public,
    tpm2b,
)
from tests import vocabulary
from tests.evidence.tpm.forge import make_key, rsa_attestation_template
from tests.tables import each, forgeries

# The profile's printed values (TCG EK Credential Profile 2.6, annex B.6).
POLICY_A_SHA256 = "837197674484b3f81a90cc8d46a5d724fd52d76e06520b64f2a1da1b331469aa"
POLICY_A_SHA384 = (
    "8bbf2266537c171cb56e403c4dc1d4b64f432611dc386e6f532050c3278c930e"
    "143e8bb1133824ccb431053871c6db53"
)
POLICY_B = {
    Hash.SHA256: "ca3d0a99a2b93906f7a3342414efcfb3a385d44cd1fd459089d19b5071c0b7a0",
    Hash.SHA384: (
        "b26e7d28d11a50bc53d882bcf5fd3a1a074148bb35d3b4e4cb1c0ad9bde419ca"
        "cb47ba09699646150f9fc000f3f80e12"
    ),
    Hash.SHA512: (
        "b8221ca69e8550a4914de3faa6a18c072cc01208073a928d5d66d59ef79e49a4"
        "29c41a6b269571d57edb25fbdb1838425608b413cd616a5f6db5b6071af99bea"
    ),
}


def refused(code, check, public, **more):
    return vocabulary.refused(AttestationError, code, check, public, **more)


P384: dict[str, Any] = {"unique": EccKey(curve=Curve.P384)}


@each("name", "L-1", "L-2", "H-1", "H-2", "H-3", "H-4", "H-6")
def test_keys_of_the_templates(name):
    public = make_key(EK_TEMPLATES[name]).public
    assert check_endorsement_key(parse_public(public.tpm2b)) == name


def test_an_exponent_may_be_spelt_out():
    key = make_key(EK_TEMPLATES["L-1"]).public
    assert isinstance(key.unique, RsaKey)
    spelt = dataclasses.replace(key, unique=dataclasses.replace(key.unique, exponent=65537))
    assert check_endorsement_key(spelt) == "L-1"


def test_policies_are_the_profiles():
    assert policy_a(Hash.SHA256).hex() == POLICY_A_SHA256
    assert policy_a(Hash.SHA384).hex() == POLICY_A_SHA384
    for algorithm, expected in POLICY_B.items():
        assert policy_b(algorithm).hex() == expected


@each(
    "algorithm, index",
    (Hash.SHA256, 0x01C07F01),
    (Hash.SHA384, 0x01C07F02),
    (Hash.SHA512, 0x01C07F03),
)
def test_policy_c_names_the_profiles_index(algorithm, index):
    # TPM2_PolicyAuthorizeNV over the Name of the index (annex B.6.3): written, readable under
    # PolicyA, as large as a TPMT_HA.
    area = number(index, 4) + number(algorithm, 2) + number(0x220F1008, 4)
    area += tpm2b(policy_a(algorithm)) + number(2 + algorithm.size, 2)
    name = number(algorithm, 2) + algorithm.digest(area)
    digest = algorithm.digest(bytes(algorithm.size) + number(0x192, 4) + name)
    assert digest == POLICY_C[algorithm]


def test_templates_are_what_the_profile_prints():
    low = EK_TEMPLATES["L-1"]
    assert low.attributes == 0x000300B2
    assert low.unique == RsaKey(bits=2048, modulus=bytes(256))
    assert low.symmetric == Symmetric(128)
    for name in ("H-1", "H-2", "H-3", "H-4", "H-6", "H-7"):
        assert EK_TEMPLATES[name].attributes == 0x000300F2, name
    # The template that CreatePrimary gets for L-1 (annex B.3.3).
    assert EK_TEMPLATES["L-1"].encoded.startswith(
        bytes.fromhex(f"0001000b000300b20020{POLICY_A_SHA256}000600800043001008000000000001 00")
    )


POLICY_ALONE: dict[str, Any] = {
    "attributes": AK_TEMPLATE.attributes & ~Attributes.USER_WITH_AUTH
    | Attributes.ADMIN_WITH_POLICY,
    "auth_policy": bytes(32),
}


@each(
    "id, public",
    ("p256", make_key(AK_TEMPLATE).public),
    ("p384", make_key(AK_TEMPLATE, scheme=Scheme(Algorithm.ECDSA, Hash.SHA384), **P384).public),
    ("rsassa", make_key(rsa_attestation_template(Algorithm.RSASSA)).public),
    ("rsapss", make_key(rsa_attestation_template(Algorithm.RSAPSS, Hash.SHA512)).public),
    ("under-a-policy", make_key(AK_TEMPLATE, **POLICY_ALONE).public),
)
def test_attestation_keys(public):
    check_attestation_key(parse_public(public.tpm2b))


def test_our_own_agents_key():
    assert AK_TEMPLATE.attributes == 0x50472


def test_qualified_names():
    ek, ak = make_key(EK_TEMPLATES["H-3"]).public, make_key(AK_TEMPLATE).public
    primary = hashlib.sha384(b"\x40\x00\x00\x0b" + ek.name).digest()
    assert qualified_name([ek]) == b"\x00\x0c" + primary
    below = hashlib.sha256(b"\x00\x0c" + primary + ak.name).digest()
    assert qualified_name([ek, ak]) == b"\x00\x0b" + below
    assert qualified_name([ek, ak], Handle.OWNER) != qualified_name([ek, ak])
    assert qualified_name([]) == b"\x40\x00\x00\x0b"


# Refusals.

LOW, HIGH = EK_TEMPLATES["L-1"], EK_TEMPLATES["H-3"]


def endorsement(template=LOW, **changes: Any):
    return make_key(template, **changes).public


TOO_MUCH = (
    *(Attributes.SIGN, Attributes.USER_WITH_AUTH, Attributes.NO_DA, Attributes.ST_CLEAR),
    *(Attributes.ENCRYPTED_DUPLICATION, Attributes.X509_SIGN),
)
OWN_KDF = EccKey(curve=Curve.P384, kdf=Scheme(Algorithm.KDF1_SP800_56A, Hash.SHA256))
NO_TEMPLATE = {
    **{f"with-{flag.name}": {"attributes": LOW.attributes | flag} for flag in TOO_MUCH},
    **{f"without-{flag.name}": {"attributes": LOW.attributes & ~flag} for flag in LOW.attributes},
    "no-policy": {"auth_policy": b""},
    "own-policy": {"auth_policy": bytes(32)},
    "policy-of-another": {"auth_policy": policy_b(Hash.SHA256)},
    "no-symmetric": {"symmetric": None},
    "aes-256": {"symmetric": Symmetric(256)},
    "aes-ecb": {"symmetric": Symmetric(128, Algorithm.ECB)},
    "own-scheme": {"scheme": Scheme(Algorithm.OAEP, Hash.SHA256)},
    "name-by-another-hash": {"name_alg": Hash.SHA384},
    "rsa-3072-under-l1": {"unique": RsaKey(bits=3072)},
    "p384-under-l1": P384,
    "p256-under-h3": {"template": HIGH, "unique": EccKey(curve=Curve.P256)},
    "own-kdf": {"template": HIGH, "unique": OWN_KDF},
    "high-without-user-with-auth": {"template": HIGH, "attributes": LOW.attributes},
    "attestation-key-as-endorsement-key": {"template": AK_TEMPLATE},
}


@forgeries("id, changes", NO_TEMPLATE)
def test_endorsement_keys_of_no_template(changes):
    public = endorsement(**changes)
    refused(
        "ST-ATTS-103", check_endorsement_key, public, says="of no template", names="endorsement key"
    )


@forgeries("name", *EK_TEMPLATES)
def test_a_template_is_no_endorsement_key(name):
    refused("ST-ATTS-101", check_endorsement_key, EK_TEMPLATES[name])


MUST = AK_TEMPLATE.attributes & ~Attributes.USER_WITH_AUTH


def attestation(template=AK_TEMPLATE, **changes: Any):
    return make_key(template, **changes).public


def by_rsa(algorithm, digest=Hash.SHA256, **changes: Any):
    return dataclasses.replace(attestation(rsa_attestation_template(algorithm, digest)), **changes)


@forgeries("flag", *list(MUST))
def test_attestation_keys_that_lack_an_attribute(flag):
    public = attestation(attributes=AK_TEMPLATE.attributes & ~flag)
    refused("ST-ATTS-104", check_attestation_key, public, says=f"without {flag.name}")


@forgeries(
    "flag",
    *(Attributes.DECRYPT, Attributes.ENCRYPTED_DUPLICATION, Attributes.X509_SIGN),
    *(Attributes.ST_CLEAR, Attributes.FIRMWARE_LIMITED, Attributes.SVN_LIMITED),
)
def test_attestation_keys_with_an_attribute_too_many(flag):
    public = attestation(attributes=AK_TEMPLATE.attributes | flag)
    refused("ST-ATTS-104", check_attestation_key, public, says=f"with {flag.name}")


@forgeries(
    "id, public",
    ("no-scheme", attestation(scheme=None)),
    ("ecdsa-sha1", attestation(scheme=Scheme(Algorithm.ECDSA, Hash.SHA1))),
    ("rsassa-sha1", by_rsa(Algorithm.RSASSA, Hash.SHA1)),
    ("rsapss-sha1", by_rsa(Algorithm.RSAPSS, Hash.SHA1)),
    ("oaep", by_rsa(Algorithm.OAEP)),
    ("rsaes", by_rsa(Algorithm.RSASSA, scheme=Scheme(Algorithm.RSAES))),
    ("ecdh", attestation(scheme=Scheme(Algorithm.ECDH, Hash.SHA256))),
    ("rsa-with-ecdsa", by_rsa(Algorithm.RSASSA, scheme=Scheme(Algorithm.ECDSA, Hash.SHA256))),
    ("ecc-key-with-rsassa", attestation(scheme=Scheme(Algorithm.RSASSA, Hash.SHA256))),
    ("without-a-hash", by_rsa(Algorithm.RSASSA, scheme=Scheme(Algorithm.RSASSA))),
)
def test_attestation_keys_with_other_schemes(public):
    refused("ST-ATTS-104", check_attestation_key, public, names="attestation key: scheme")


@pytest.mark.forgery
def test_a_storage_key_is_no_attestation_key():
    public = attestation(symmetric=Symmetric(128))
    refused("ST-ATTS-104", check_attestation_key, public, names="attestation key: symmetric")
    refused("ST-ATTS-104", check_attestation_key, make_key(LOW).public)


@pytest.mark.forgery
def test_a_template_is_no_attestation_key():
    refused("ST-ATTS-101", check_attestation_key, AK_TEMPLATE)
