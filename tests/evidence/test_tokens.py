# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Attestation tokens: real ones of NVIDIA's service, and those of issuers that the tests play."""

import base64
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from cryptography import x509
from hypothesis import given
from hypothesis import strategies as st

from securetrain.core.errors import AttestationError
from securetrain.core.vocabulary import NodeTier
from securetrain.evidence.jws import TOKEN_LIMIT, Algorithm, Jwks, Signing, parse
from securetrain.evidence.node_evidence import device_nonce
from securetrain.evidence.token_profiles import TokenProfile
from securetrain.evidence.tokens import (
    TokenAppraiser,
    TokenIssuer,
    TokenReference,
    TokenState,
    appraise_token,
)
from tests import vocabulary
from tests.attest.keyrecovery import recover_p384
from tests.evidence.honest_tokens import (
    AZURE,
    CLOUD,
    COMMON,
    EAR,
    FLEET,
    HONEST,
    ISS,
    ISSUER,
    NONCE,
    NOW,
    NRAS,
    SWITCH,
    bundle,
    device,
    devices,
    digests,
    seconds,
)
from tests.evidence.issuers import KEYS, OTHERS, jwk, signing, token
from tests.evidence.test_token_profiles import changed
from tests.evidence.vectors import needs_vectors, vector
from tests.tables import each, forgeries


def reference(issuer: TokenIssuer = ISSUER, **changes: Any) -> TokenReference:
    return TokenReference(issuers={ISS: msgspec.structs.replace(issuer, **changes)})


def appraise(
    text: str, pinned: TokenReference | None = None, *, nonce: bytes = NONCE, now: datetime = NOW
) -> TokenState:
    return appraise_token(text, nonce=nonce, reference=pinned or reference(), now=now)


def refused(
    text: str, code: str, pinned: TokenReference | None = None, **arguments: Any
) -> AttestationError:
    error = vocabulary.refused(AttestationError, code, appraise, text, pinned, **arguments)
    assert error.where.startswith("token")
    return error


def test_a_token_of_googles():
    state = appraise(token(CLOUD))
    assert state.issuer == ISS
    assert state.profile is TokenProfile.GOOGLE
    assert state.issued == NOW - timedelta(seconds=10)
    assert state.expires == NOW + timedelta(seconds=3000)
    assert state.hwmodel == "GCP_INTEL_TDX"
    assert state.instance == "7"
    assert state.facts["image_digest"] == "sha256:abc"
    assert state.devices == ()


def test_a_token_of_azures():
    spelling = base64.b64encode(NONCE.hex().encode()).decode()
    claims = {
        **AZURE,
        **{name: COMMON[name] for name in ("iss", "iat", "nbf")},
        "exp": seconds(28_700),
        "x-ms-runtime": {"client-payload": {"nonce": spelling}},
    }
    issuer = TokenIssuer(
        profile=TokenProfile.AZURE,
        signing=signing("RS256", jku=f"{ISS}/certs"),
        max_lifetime_seconds=28_800,
    )
    text = token(claims, "RS256", header={"jku": f"{ISS}/certs"})
    assert appraise(text, reference(issuer)).hwmodel == "sevsnpvm"


def test_a_token_of_trustees():
    """It has no eat_nonce and no nbf; its nonce is among the annotated evidence."""
    pointer = "/submods/cpu0/ear.veraison.annotated-evidence/runtime_data_claims/nonce"
    evidence = {"runtime_data_claims": {"nonce": base64.b64encode(NONCE).decode()}}
    claims = changed(EAR, "submods/cpu0/ear.veraison.annotated-evidence", evidence)
    claims = {**claims, "iss": ISS, "iat": seconds(-1), "exp": seconds(299)}
    issuer = TokenIssuer(
        profile=TokenProfile.EAR,
        signing=signing(jwks=Jwks(keys=(jwk(KEYS["ES256"], kid=""),)), embedded_key=True),
        nonce=pointer,
    )
    own = msgspec.to_builtins(jwk(KEYS["ES256"], kid=""))
    state = appraise(token(claims, header={"kid": None, "jwk": own}), reference(issuer))
    assert state.trust_vector["cpu0"]["executables"] == 3
    assert state.affirmed >= {"hardware"}


def test_a_token_of_veraisons_never_says_when_it_ends():
    claims = {**EAR, "iss": ISS, "iat": seconds(-10), "eat_nonce": NONCE.hex()}
    issuer = TokenIssuer(profile=TokenProfile.EAR, signing=signing())
    assert appraise(token(claims), reference(issuer)).expires == NOW + timedelta(seconds=290)
    late = NOW + timedelta(seconds=290)
    assert "exp" in refused(token(claims), "ST-ATTS-805", reference(issuer), now=late).where


@each(
    "id, spelling",
    ("hex", NONCE.hex()),
    ("base64", base64.b64encode(NONCE).decode()),
    ("unpadded", base64.b64encode(NONCE).rstrip(b"=").decode()),
    ("base64url", base64.urlsafe_b64encode(NONCE).decode()),
    ("unpadded url", base64.urlsafe_b64encode(NONCE).rstrip(b"=").decode()),
    ("base64 of hex", base64.b64encode(NONCE.hex().encode()).decode()),
    ("list", [NONCE.hex()]),
)
def test_spellings_of_a_nonce(spelling):
    appraise(token({**CLOUD, "eat_nonce": spelling}))


def test_what_the_reference_values_ask():
    pinned = reference(
        equal={
            "/submods/container/image_digest": ("sha256:old", "sha256:abc"),
            "/secboot": (True,),
            "/with~1slash/with~0tilde": (None,),
        },
        minimum={"/svn": 7},
    )
    appraise(token({**CLOUD, "svn": 7, "with/slash": {"with~tilde": None}}), pinned)


# Forged and unfit tokens.

TIMES: dict[str, tuple[dict[str, Any], str, str]] = {
    "expired": ({"exp": seconds(-1)}, "ST-ATTS-805", "exp"),
    "expires now": ({"exp": seconds(0)}, "ST-ATTS-805", "exp"),
    "issued long ago": ({"iat": seconds(-301), "nbf": seconds(-301)}, "ST-ATTS-806", "iat"),
    "issued in the future": ({"iat": seconds(61)}, "ST-ATTS-806", "iat"),
    "not yet valid": ({"nbf": seconds(61)}, "ST-ATTS-806", "nbf"),
    "valid for too long": ({"exp": seconds(-10 + 3601)}, "ST-ATTS-806", "exp"),
    "valid for ever": ({"exp": 1 << 36}, "ST-ATTS-806", "exp"),
    "no time of issue": ({"iat": None}, "ST-ATTS-801", ""),
    "a fraction": ({"iat": seconds(-10) + 0.5}, "ST-ATTS-801", ""),
    "a text": ({"exp": str(seconds(10))}, "ST-ATTS-801", ""),
    "true": ({"iat": True}, "ST-ATTS-801", ""),
    "negative": ({"nbf": -1}, "ST-ATTS-801", ""),
    "beyond all calendars": ({"exp": 1 << 37}, "ST-ATTS-801", ""),
}


@forgeries("id, changes, code, claim", TIMES)
def test_times(changes, code, claim):
    assert refused(token({**CLOUD, **changes}), code).where.endswith(claim)


def test_times_at_their_limits():
    for changes in (
        {"exp": seconds(1)},
        {"iat": seconds(-300), "nbf": seconds(-300)},
        {"iat": seconds(60)},
        {"nbf": seconds(60)},
        {"exp": seconds(-10 + 3600)},
        {"nbf": None},
        {"nbf": 0},
    ):
        appraise(token({**CLOUD, **changes}))


@forgeries(
    "id, nonce",
    ("another", bytes(32).hex()),
    ("upper case", NONCE.hex().upper()),
    ("short", NONCE.hex()[:-2]),
    ("long", NONCE.hex() + "00"),
    ("empty", ""),
    ("missing", None),
    ("empty list", []),
    ("of two sessions", [NONCE.hex(), bytes(32).hex()]),
    ("another in a list", [bytes(32).hex()]),
    ("object", {"value": NONCE.hex()}),
    ("number", 7),
)
def test_nonces_that_are_not_ours(nonce):
    error = refused(token({**CLOUD, "eat_nonce": nonce}), "ST-ATTS-807")
    assert NONCE.hex() in error.what
    assert error.where == "token/eat_nonce"


@pytest.mark.forgery
def test_a_nonce_in_another_place():
    claims = {**CLOUD, "eat_nonce": None, "nonce": NONCE.hex()}
    assert "found None" in refused(token(claims), "ST-ATTS-807").what
    appraise(token(claims), reference(nonce="/nonce"))
    claims = {**CLOUD, "nonce": None}
    refused(token(claims), "ST-ATTS-807", reference(nonce="/nonce/inside"))


def test_the_callers_nonce_must_be_one():
    vocabulary.refused(ValueError, "15 bytes", appraise, token(CLOUD), nonce=bytes(15))
    appraise(token({**CLOUD, "eat_nonce": bytes(16).hex()}), nonce=bytes(16))


@forgeries(
    "id, audience, pinned",
    ("another", "another job", "our job"),
    ("missing", None, "our job"),
    ("two", ["our job", "another job"], "our job"),
    ("empty list", [], "our job"),
    ("where none is pinned", "our job", ""),
    ("empty", "", ""),
    ("number", 7, "our job"),
)
def test_audiences(audience, pinned):
    error = refused(token({**CLOUD, "aud": audience}), "ST-ATTS-808", reference(audience=pinned))
    assert error.where == "token/aud"


def test_an_audience_in_a_list():
    appraise(token({**CLOUD, "aud": ["our job"]}))
    appraise(token({**CLOUD, "aud": None}), reference(audience=""))


@pytest.mark.forgery
def test_issuers_that_are_not_pinned():
    error = refused(token({**CLOUD, "iss": "https://evil.example"}), "ST-ATTS-802")
    assert "https://evil.example" in error.what
    refused(token(CLOUD), "ST-ATTS-802", TokenReference())


@pytest.mark.forgery
def test_a_token_signed_by_another_issuers_key():
    """Both issuers are pinned: a key vouches for its own issuer only."""
    other = TokenIssuer(
        profile=TokenProfile.GOOGLE,
        signing=signing(jwks=Jwks(keys=(jwk(OTHERS["ES256"], kid="key-2"),))),
        audience="our job",
    )
    both = TokenReference(issuers={ISS: ISSUER, "https://other.example": other})
    text = token(CLOUD, key=OTHERS["ES256"], header={"kid": "key-2"})
    refused(text, "ST-ATTS-802", both)
    text = token(
        {**CLOUD, "iss": "https://other.example"}, key=OTHERS["ES256"], header={"kid": "key-2"}
    )
    assert appraise(text, both).issuer == "https://other.example"


@pytest.mark.forgery
def test_the_signature_comes_before_what_the_claims_say():
    text = token({**CLOUD, "exp": 1, "eat_nonce": ""}, key=OTHERS["ES256"])
    refused(text, "ST-ATTS-804")


CLAIMS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "another image": (
        {},
        {"equal": {"/submods/container/image_digest": ("sha256:new",)}},
        "/submods/container/image_digest",
    ),
    "an image that is not named": (
        {"submods": {}},
        {"equal": {"/submods/container/image_digest": ("sha256:abc",)}},
        "/submods/container/image_digest",
    ),
    "a text where an object is asked": (
        {"submods": "container"},
        {"equal": {"/submods/container/image_digest": ("sha256:abc",)}},
        "/submods/container/image_digest",
    ),
    "true is not 1": ({"x": True}, {"equal": {"/x": (1,)}}, "/x"),
    "1 is not true": ({"x": 1}, {"equal": {"/x": (True,)}}, "/x"),
    "nothing is accepted": ({"x": 1}, {"equal": {"/x": ()}}, "/x"),
    "missing is not null": ({}, {"equal": {"/x": (None,)}}, "/x"),
    "a low version": ({"svn": 6}, {"minimum": {"/svn": 7}}, "/svn"),
    "no version": ({}, {"minimum": {"/svn": 0}}, "/svn"),
    "a version as text": ({"svn": "9"}, {"minimum": {"/svn": 7}}, "/svn"),
    "a version that is true": ({"svn": True}, {"minimum": {"/svn": 0}}, "/svn"),
    "what the profile demands": ({"secboot": False}, {}, "/secboot"),
}


@forgeries("id, claims, asked, where", CLAIMS)
def test_claims(claims, asked, where):
    refused(token({**CLOUD, **claims}), "ST-ATTS-809", reference(**asked), names=f"token{where}")


@each("pointer", "secboot", "/a~2", "/a~", "x/y")
def test_pointers_are_json_pointers(pointer):
    document = {"profile": "ear", "equal": {pointer: [True]}}
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(document, TokenIssuer)


# Bundles of NVIDIA's.


def test_a_bundle():
    state = appraise(bundle(devices()), reference(FLEET))
    assert [one.name for one in state.devices] == ["GPU-0", "GPU-1"]
    assert [one.ueid for one in state.devices] == ["1", "2"]
    assert state.expires == NOW + timedelta(seconds=3000)


def test_a_bundle_about_switches():
    (switch,) = appraise(bundle({"SWITCH-0": SWITCH}), reference(FLEET)).devices
    assert switch.firmware == "96.10"


def test_a_bundle_about_both():
    both = {**devices(), "SWITCH-0": SWITCH}
    assert len(appraise(bundle(both), reference(FLEET)).devices) == 3


def test_a_bundle_ends_with_its_first_token():
    detached = {
        **devices(),
        "GPU-1": token({**device(ueid="2"), **COMMON, "exp": seconds(5)}, "ES384"),
    }
    assert appraise(bundle(detached), reference(FLEET)).expires == NOW + timedelta(seconds=5)


def without(detached: dict[str, str], name: str) -> dict[str, str]:
    return {key: value for key, value in detached.items() if key != name}


SWAPPED = {"GPU-0": HONEST["GPU-1"], "GPU-1": HONEST["GPU-0"]}
TWICE = {**HONEST, "GPU-1": HONEST["GPU-0"]}
ADDED = {**HONEST, "GPU-2": token({**device(ueid="9"), **COMMON}, "ES384")}
ONE = without(HONEST, "GPU-1")
OTHER = {**HONEST, "GPU-1": token({**device(ueid="9"), **COMMON}, "ES384")}
FOREIGN = {
    **HONEST,
    "GPU-1": token({**device(ueid="2"), **COMMON, "iss": "https://x.example"}, "ES384"),
}
NAMED = digests(HONEST)

BUNDLES: dict[str, tuple[str, str]] = {
    "a device dropped": (bundle(ONE, NAMED), "GPU-0, GPU-1, the bundle holds GPU-0"),
    "all devices dropped": (bundle({}, NAMED), "the bundle holds none"),
    "no devices at all": (bundle({}), "names no devices"),
    "no submodules": (bundle(HONEST, None, submods=None), "names no devices"),
    "submodules that are a list": (bundle(HONEST, None, submods=["GPU-0"]), "names no devices"),
    "a device added": (bundle(ADDED, NAMED), "holds GPU-0, GPU-1, GPU-2"),
    "two devices swapped": (bundle(SWAPPED, NAMED), "not the one"),
    "a device of another bundle": (bundle(OTHER, NAMED), "not the one"),
    "the overall token as a device": (
        bundle({**HONEST, "GPU-1": token({**NRAS, **COMMON}, "ES384")}, NAMED),
        "not the one",
    ),
    "fewer devices than the node has": (bundle(ONE), "1 devices GPU-*"),
    "more devices than the node has": (bundle(ADDED), "3 devices GPU-*"),
    "one device twice": (bundle(TWICE), "twice"),
    "a device with another name": (bundle({"CPU-0": HONEST["GPU-0"]}), "neither"),
    "a device with a longer name": (bundle({"GPU-0/x": HONEST["GPU-0"]}), "neither"),
    "a device of another issuer": (bundle(FOREIGN), "issuer"),
    "another digest algorithm": (
        bundle(HONEST, {**NAMED, "GPU-1": ["DIGEST", ["SHA-384", NAMED["GPU-1"][1][1]]]}),
        "not the one",
    ),
    "a digest in upper case": (
        bundle(HONEST, {**NAMED, "GPU-1": ["DIGEST", ["SHA-256", NAMED["GPU-1"][1][1].upper()]]}),
        "not the one",
    ),
    "a submodule instead of its digest": (
        bundle(HONEST, {**NAMED, "GPU-1": {"measres": "success"}}),
        "not the one",
    ),
}


@forgeries("id, text, what", BUNDLES)
def test_bundles_whose_devices_are_not_what_was_signed(text, what):
    assert what in refused(text, "ST-ATTS-810", reference(FLEET)).what


@pytest.mark.forgery
def test_by_default_no_device_is_accepted():
    refused(bundle(HONEST), "ST-ATTS-810", reference(FLEET, gpus=0))
    refused(bundle({"SWITCH-0": SWITCH}), "ST-ATTS-810", reference(FLEET, switches=0))


INSIDE: dict[str, tuple[dict[str, Any], str]] = {
    "stale": ({"iat": seconds(-400), "nbf": seconds(-400)}, "ST-ATTS-806"),
    "expired": ({"exp": seconds(-1)}, "ST-ATTS-805"),
    "with another nonce": ({"eat_nonce": bytes(32).hex()}, "ST-ATTS-807"),
    "for an audience": ({"aud": "another job"}, "ST-ATTS-808"),
    "not measured well": ({"measres": "fail"}, "ST-ATTS-809"),
    "with another driver": ({"x-nvidia-gpu-driver-version": "1"}, "ST-ATTS-809"),
}


@forgeries("id, changes, code", INSIDE)
def test_devices_obey_every_rule(changes, code):
    pinned = reference(FLEET, device_equal={"/x-nvidia-gpu-driver-version": ("550",)})
    appraise(bundle(HONEST), pinned)
    assert refused(bundle(devices(**changes)), code, pinned).where.startswith("token/GPU-0")


@pytest.mark.forgery
def test_a_device_signed_by_another_key():
    forged = {
        **HONEST,
        "GPU-1": token({**device(ueid="2"), **COMMON}, "ES384", key=OTHERS["ES384"]),
    }
    refused(bundle(forged), "ST-ATTS-804", reference(FLEET), names="token/GPU-1")


@forgeries(
    "id, changes, code",
    ("failed", {"x-nvidia-overall-att-result": False}, "ST-ATTS-809"),
    ("nonce", {"eat_nonce": bytes(32).hex()}, "ST-ATTS-807"),
    ("expired", {"exp": seconds(-1)}, "ST-ATTS-805"),
)
def test_the_overall_token_obeys_every_rule(changes, code):
    refused(bundle(HONEST, **changes), code, reference(FLEET))


SHAPES = {
    "no JSON": "[",
    "a list of nothing": "[]",
    "one part": json.dumps([["JWT", "x"]]),
    "three parts": json.dumps([["JWT", "x"], {}, {}]),
    "another kind": json.dumps([["CWT", "x"], {}]),
    "a number as token": json.dumps([["JWT", 7], {}]),
    "a number as device": json.dumps([["JWT", "x"], {"GPU-0": 7}]),
    "devices in a list": json.dumps([["JWT", "x"], ["GPU-0"]]),
    "one device twice": f'[["JWT", "x"], {{"GPU-0": "a", "GPU-0": "{HONEST["GPU-0"]}"}}]',
    "too many devices": json.dumps([["JWT", "x"], {f"GPU-{n}": "x" for n in range(33)}]),
    "half a character": '["\ud800"]',
    "a token that is none": json.dumps([["JWT", "x"], {"GPU-0": "x"}]),
    "too long": "[" * (TOKEN_LIMIT + 1),
    "a device that is no token": bundle({**HONEST, "GPU-1": "x"}),
}


@forgeries("id, text", SHAPES)
def test_bundles_that_are_malformed(text):
    refused(text, "ST-ATTS-801", reference(FLEET))


def test_sizes_are_checked_first():
    assert "the limit is" in refused("[" * (TOKEN_LIMIT + 1), "ST-ATTS-801").what
    assert "the limit is" in refused("." * (TOKEN_LIMIT + 1), "ST-ATTS-801").what
    assert "the limit is" not in refused("[" * TOKEN_LIMIT, "ST-ATTS-801").what


@pytest.mark.forgery
def test_a_token_of_nvidias_without_its_devices():
    overall = token({**NRAS, **COMMON, "submods": NAMED}, "ES384")
    assert "bundle" in refused(overall, "ST-ATTS-801", reference(FLEET)).what
    wrapped = json.dumps([["JWT", token(CLOUD)], {}])
    assert "bundle" in refused(wrapped, "ST-ATTS-801").what


@given(st.text(max_size=80))
def test_any_text_is_refused_with_a_code(text):
    vocabulary.refused(AttestationError, "ST-ATTS-80", appraise, text)
    vocabulary.refused(AttestationError, "ST-ATTS-80", appraise, "[" + text)


# As part of a node's evidence.


class Exchange:
    """What the appraiser asks of a case."""

    binding = bytes(range(32))
    now = NOW


def test_the_parts_of_a_result():
    nonce = device_nonce(Exchange.binding).hex()
    fleet = {
        name: token({**device(ueid=str(n)), **COMMON, "eat_nonce": nonce}, "ES384")
        for n, name in enumerate(HONEST)
    }
    nvidia = "https://nvidia.example"
    both = TokenReference(issuers={ISS: ISSUER, nvidia: FLEET})
    own = {name: parse(text, "x").payload for name, text in fleet.items()}
    fleet = {name: token({**claims, "iss": nvidia}, "ES384") for name, claims in own.items()}
    texts = [token({**CLOUD, "eat_nonce": nonce}), bundle(fleet, iss=nvidia, eat_nonce=nonce)]
    case: Any = Exchange()
    cloud, gpus = TokenAppraiser(both).appraise(texts, case)
    assert (cloud.name, cloud.tier) == ("token-0", NodeTier.CLOUD_TOKEN)
    assert cloud.submodule.trust_vector["hardware"] == 2
    assert cloud.submodule.claims["image_digest"] == "sha256:abc"
    assert cloud.identities == (f"instance:{ISS}:7",)
    assert (gpus.name, gpus.tier) == ("token-1", NodeTier.SELF_ASSERTED)
    assert gpus.submodule.status == 0
    assert gpus.submodule.claims["GPU-0"] == "GH100 0 550 96.00"
    assert gpus.identities == ("device:0", "device:1")
    with pytest.raises(AttestationError) as error:
        TokenAppraiser(both).appraise([texts[0], token(CLOUD)], case)
    assert error.value.where == "token 1/eat_nonce"
    assert TokenAppraiser(both).appraise([], case) == ()


# Real bundles. Nobody published the keys of that time: they are computed from two signatures, which
# is good for a test and for nothing else.

SAMPLES = (
    "NVIDIA__attestation-sdk/nv-attestation-sdk-cpp/unit-tests/testdata/sample_attestation_data"
)
REAL = {
    "GPU": ("hopperClaimsv3_detached_eat.json", "hopperClaimsv3_decoded.json", "GPU-0"),
    "switch": ("switch_detached_eat.json", "switch_decoded.json", "SWITCH-0"),
}


def real(name: str) -> tuple[str, TokenReference, bytes, datetime, dict[str, Any]]:
    file, decoded, submodule = REAL[name]
    text = vector(f"{SAMPLES}/{file}").decode()
    claims = json.loads(vector(f"{SAMPLES}/{decoded}"))[submodule]
    (_, overall), detached = json.loads(text)
    key = recover_p384(overall, detached[submodule])
    issuer = TokenIssuer(
        profile=TokenProfile.NRAS,
        signing=Signing(
            jwks=Jwks(keys=(jwk(key, kid=parse(overall, "x").header.kid),)),
            algorithms=(Algorithm.ES384,),
        ),
        gpus=1,
        switches=1,
    )
    now = datetime.fromtimestamp(claims["iat"] + 30, UTC)
    pinned = TokenReference(issuers={claims["iss"]: issuer})
    return text, pinned, bytes.fromhex(claims["eat_nonce"]), now, claims


@needs_vectors
@each("name", *REAL)
def test_real_bundles_of_nvidias(name):
    text, pinned, nonce, now, claims = real(name)
    state = appraise(text, pinned, nonce=nonce, now=now)
    (found,) = state.devices
    assert found.ueid == claims["ueid"]
    assert found.hwmodel == claims["hwmodel"]
    assert found.driver == claims.get("x-nvidia-gpu-driver-version", "")
    assert state.expires == datetime.fromtimestamp(claims["exp"], UTC)


@needs_vectors
def test_a_real_token_names_a_real_device():
    """The key of the sample report in another repository of NVIDIA's has this serial number."""
    samples = "NVIDIA__nvtrust/guest_tools/gpu_verifiers/local_gpu_verifier/src/verifier/samples"
    leaf = x509.load_pem_x509_certificates(vector(f"{samples}/hopperCertChain.txt"))[0]
    text, pinned, nonce, now, _ = real("GPU")
    (found,) = appraise(text, pinned, nonce=nonce, now=now).devices
    assert int(found.ueid) == leaf.serial_number


@needs_vectors
@forgeries("name", *REAL)
def test_real_bundles_misused(name):
    text, pinned, nonce, now, _ = real(name)
    (_, overall), detached = json.loads(text)
    (only,) = detached
    arguments: dict[str, Any] = {"nonce": nonce, "now": now}

    def forged(token_: str, others: dict[str, str]) -> str:
        return json.dumps([["JWT", token_], others])

    head, body, signature = overall.split(".")
    for other, code in (
        (forged(overall, {}), "ST-ATTS-810"),
        (forged(overall, {only: overall}), "ST-ATTS-810"),
        (forged(overall, {**detached, "GPU-7": detached[only]}), "ST-ATTS-810"),
        (forged(f"{head}.{body}.{signature[:-4]}AAAA", detached), "ST-ATTS-804"),
        (forged(detached[only], detached), "ST-ATTS-809"),
    ):
        refused(other, code, pinned, **arguments)
    refused(text, "ST-ATTS-807", pinned, nonce=bytes(32), now=now)
    refused(text, "ST-ATTS-805", pinned, nonce=nonce, now=now + timedelta(hours=1))
    refused(text, "ST-ATTS-806", pinned, nonce=nonce, now=now + timedelta(minutes=6))
    ((name_, issuer),) = pinned.issuers.items()
    unknown = msgspec.structs.replace(issuer, signing=signing("ES384"))
    refused(text, "ST-ATTS-802", TokenReference(issuers={name_: unknown}), **arguments)
