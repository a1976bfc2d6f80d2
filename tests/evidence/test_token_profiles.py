# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What each kind of issuer must say: an honest set of claims, and each of them changed."""

from typing import Any

import pytest

from securetrain.core.errors import AttestationError
from securetrain.core.vocabulary import NodeTier
from securetrain.evidence.token_profiles import JUDGES, Claims, Facts, TokenProfile, nras_device
from tests import vocabulary
from tests.evidence.honest_tokens import AZURE, AZURE_TEE, EAR, GOOGLE, MODULE, NRAS, device
from tests.tables import each, forgeries

MISSING = object()


def changed(claims: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    name, _, rest = path.partition("/")
    inner = changed(claims[name], rest, value) if rest else value
    return {k: v for k, v in {**claims, name: inner}.items() if v is not MISSING}


def judge(profile: TokenProfile, claims: dict[str, Any]) -> Facts:
    return JUDGES[profile](Claims(claims, "token"))


def refused(profile: TokenProfile, claims: dict[str, Any]) -> AttestationError:
    return vocabulary.refused(AttestationError, "ST-ATTS-809", judge, profile, claims)


def test_google():
    facts = judge(TokenProfile.GOOGLE, GOOGLE)
    assert facts.hwmodel == "GCP_INTEL_TDX"
    assert facts.instance == "7"
    assert facts.affirmed == {"hardware"}
    assert facts.more == {
        "swname": "CONFIDENTIAL_SPACE",
        "dbgstat": "disabled-since-boot",
        "image_digest": "sha256:abc",
        "project_id": "p",
        "zone": "z",
    }


@each(
    "model, confidential",
    ("GCP_AMD_SEV", True),
    ("GCP_AMD_SEV_ES", True),
    ("GCP_SHIELDED_VM", False),
    (7, False),
)
def test_which_machines_of_google_are_confidential(model, confidential):
    facts = judge(TokenProfile.GOOGLE, {**GOOGLE, "hwmodel": model})
    assert bool(facts.affirmed) is confidential


def test_an_ordinary_vm_of_google_says_nothing_about_its_image():
    claims = {**GOOGLE, "swname": "GCE", "dbgstat": "enabled"}
    assert judge(TokenProfile.GOOGLE, claims).more["dbgstat"] == "enabled"


def test_azure_guest_attestation():
    facts = judge(TokenProfile.AZURE, AZURE)
    assert facts.hwmodel == "sevsnpvm"
    assert facts.instance == "vm-7"
    assert facts.affirmed == {"hardware", "runtime-opaque"}
    assert facts.more == {
        "policy_hash": "hash",
        "launch_measurement": "ab",
        "compliance": "azure-compliant-cvm",
    }


def test_azure_of_a_vm_on_its_own():
    assert judge(TokenProfile.AZURE, AZURE_TEE).hwmodel == "sevsnpvm"
    claims = {
        "x-ms-attestation-type": "tdxvm",
        "x-ms-compliance-status": "azure-compliant-uvm",
        "tdx_td_attributes_debug": False,
    }
    assert judge(TokenProfile.AZURE, claims).hwmodel == "tdxvm"


def test_ear():
    facts = judge(TokenProfile.EAR, EAR)
    assert facts.trust_vector == {"cpu0": MODULE["ear.trustworthiness-vector"]}
    assert facts.affirmed == {"hardware", "executables", "runtime-opaque"}
    assert facts.more == {
        "eat_profile": "tag:github.com,2023:veraison/ear",
        "verifier": "a developer",
    }


def test_ear_of_several_modules_affirms_what_all_affirm():
    other = {"ear.status": "affirming", "ear.trustworthiness-vector": {"hardware": 2}}
    facts = judge(TokenProfile.EAR, {**EAR, "submods": {"cpu0": MODULE, "gpu0": other}})
    assert facts.affirmed == {"hardware"}
    assert set(facts.trust_vector) == {"cpu0", "gpu0"}


def test_nras():
    assert judge(TokenProfile.NRAS, NRAS) == Facts()
    gpu = nras_device(Claims(device(), "token"), "GPU-0")
    assert (gpu.name, gpu.ueid, gpu.hwmodel) == ("GPU-0", "478176", "GH100")
    assert (gpu.driver, gpu.firmware) == ("550", "96.00")
    switch = nras_device(Claims(device("switch"), "token"), "SWITCH-1")
    assert switch.firmware == "96.10"


def test_claims_that_are_not_nvidias_may_be_no():
    nras_device(Claims(device(oemboot=False), "token"), "GPU-0")


def test_what_tokens_can_prove():
    assert TokenProfile.NRAS.tier is NodeTier.SELF_ASSERTED
    others = [profile for profile in TokenProfile if profile is not TokenProfile.NRAS]
    assert {profile.tier for profile in others} == {NodeTier.CLOUD_TOKEN}


@each("profile", *TokenProfile)
def test_every_profile_is_judged(profile):
    refused(profile, {})


WRONG: list[tuple[TokenProfile, dict[str, Any], str, Any]] = [
    (TokenProfile.GOOGLE, GOOGLE, "secboot", False),
    (TokenProfile.GOOGLE, GOOGLE, "secboot", MISSING),
    (TokenProfile.GOOGLE, GOOGLE, "secboot", 1),
    (TokenProfile.GOOGLE, GOOGLE, "secboot", "true"),
    (TokenProfile.GOOGLE, GOOGLE, "dbgstat", "enabled"),
    (TokenProfile.GOOGLE, GOOGLE, "dbgstat", MISSING),
    (TokenProfile.GOOGLE, GOOGLE, "swname", "OTHER"),
    (TokenProfile.GOOGLE, GOOGLE, "swname", MISSING),
    (TokenProfile.AZURE, AZURE, "secureboot", False),
    (TokenProfile.AZURE, AZURE, "secureboot", MISSING),
    (TokenProfile.AZURE, AZURE, "x-ms-attestation-type", "sevsnpvm"),
    (TokenProfile.AZURE, AZURE, "x-ms-azurevm-bootdebug-enabled", True),
    (TokenProfile.AZURE, AZURE, "x-ms-azurevm-hypervisordebug-enabled", True),
    (TokenProfile.AZURE, AZURE, "x-ms-azurevm-kerneldebug-enabled", True),
    (TokenProfile.AZURE, AZURE, "x-ms-azurevm-kerneldebug-enabled", MISSING),
    (TokenProfile.AZURE, AZURE, "x-ms-azurevm-testsigning-enabled", True),
    (TokenProfile.AZURE, AZURE, "x-ms-isolation-tee/x-ms-attestation-type", "azurevm"),
    (TokenProfile.AZURE, AZURE, "x-ms-isolation-tee/x-ms-compliance-status", "none"),
    (TokenProfile.AZURE, AZURE, "x-ms-isolation-tee/x-ms-compliance-status", MISSING),
    (TokenProfile.AZURE, AZURE, "x-ms-isolation-tee/x-ms-sevsnpvm-is-debuggable", True),
    (TokenProfile.AZURE, AZURE, "x-ms-isolation-tee/x-ms-sevsnpvm-is-debuggable", MISSING),
    (TokenProfile.AZURE, AZURE, "x-ms-isolation-tee", "sevsnpvm"),
    (TokenProfile.AZURE, AZURE, "x-ms-isolation-tee", MISSING),
    (TokenProfile.AZURE, AZURE_TEE, "x-ms-sevsnpvm-is-debuggable", True),
    (TokenProfile.AZURE, AZURE_TEE, "x-ms-attestation-type", "tdxvm"),
    (TokenProfile.EAR, EAR, "eat_profile", MISSING),
    (TokenProfile.EAR, EAR, "submods", {}),
    (TokenProfile.EAR, EAR, "submods", MISSING),
    (TokenProfile.EAR, EAR, "submods/gpu0", {}),
    (TokenProfile.EAR, EAR, "submods/gpu0", "affirming"),
    (TokenProfile.EAR, EAR, "submods/cpu0/ear.status", "warning"),
    (TokenProfile.EAR, EAR, "submods/cpu0/ear.status", "none"),
    (TokenProfile.EAR, EAR, "submods/cpu0/ear.status", "contraindicated"),
    (TokenProfile.EAR, EAR, "submods/cpu0/ear.status", MISSING),
    (TokenProfile.EAR, EAR, "submods/cpu0/ear.trustworthiness-vector", MISSING),
    (TokenProfile.EAR, EAR, "submods/cpu0/ear.trustworthiness-vector/hardware", 0),
    (TokenProfile.EAR, EAR, "submods/cpu0/ear.trustworthiness-vector/hardware", MISSING),
    (TokenProfile.EAR, EAR, "submods/cpu0/ear.trustworthiness-vector/hardware", 97),
    (TokenProfile.EAR, EAR, "submods/cpu0/ear.trustworthiness-vector/executables", 32),
    (TokenProfile.EAR, EAR, "submods/cpu0/ear.trustworthiness-vector/executables", 1),
    (TokenProfile.EAR, EAR, "submods/cpu0/ear.trustworthiness-vector/executables", -1),
    (TokenProfile.EAR, EAR, "submods/cpu0/ear.trustworthiness-vector/executables", True),
    (TokenProfile.EAR, EAR, "submods/cpu0/ear.trustworthiness-vector/executables", "2"),
    (TokenProfile.EAR, EAR, "submods/cpu0/ear.trustworthiness-vector/executables", 2.0),
    (TokenProfile.EAR, EAR, "submods/cpu0/ear.trustworthiness-vector/executables", False),
    (TokenProfile.EAR, EAR, "submods/cpu0/ear.trustworthiness-vector/magic", 2),
    (TokenProfile.NRAS, NRAS, "x-nvidia-overall-att-result", False),
    (TokenProfile.NRAS, NRAS, "x-nvidia-overall-att-result", MISSING),
    (TokenProfile.NRAS, NRAS, "x-nvidia-ver", "2.0"),
    (TokenProfile.NRAS, NRAS, "sub", "x"),
]


@forgeries(
    "id, profile, claims, path, value",
    *(
        (f"{row[0].value} {row[2]} {'missing' if row[3] is MISSING else row[3]}", *row)
        for row in WRONG
    ),
)
def test_claims_that_are_not_what_they_must_be(profile, claims, path, value):
    judge(profile, claims)
    error = refused(profile, changed(claims, path, value))
    last = path.rpartition("/")[2]
    inside = {"gpu0": "ear.status", "ear.trustworthiness-vector": "hardware"}.get(last, last)
    if path != "x-ms-isolation-tee":
        assert inside in error.where or error.where.endswith("debug")


DEVICE = "x-nvidia-gpu-attestation-report"
WRONG_DEVICES: list[tuple[str, Any]] = [
    ("measres", "fail"),
    ("measres", MISSING),
    ("secboot", False),
    ("secboot", MISSING),
    ("dbgstat", "enabled"),
    ("dbgstat", MISSING),
    ("x-nvidia-attestation-warning", "old firmware"),
    ("x-nvidia-attestation-warning", MISSING),
    (f"{DEVICE}-nonce-match", False),
    (f"{DEVICE}-nonce-match", MISSING),
    (f"{DEVICE}-signature-verified", MISSING),
    (f"{DEVICE}-cert-chain-fwid-match", MISSING),
    (f"{DEVICE}-cert-chain", MISSING),
    (f"{DEVICE}-cert-chain/x-nvidia-cert-status", "expired"),
    (f"{DEVICE}-cert-chain/x-nvidia-cert-ocsp-status", "revoked"),
    ("x-nvidia-gpu-arch-check", False),
    ("x-nvidia-gpu-some-new-check", False),
    ("x-nvidia-gpu-driver-rim-cert-chain/x-nvidia-cert-status", "expired"),
    ("x-nvidia-gpu-driver-rim-cert-chain/x-nvidia-cert-ocsp-status", MISSING),
    ("x-nvidia-gpu-vbios-rim-cert-chain", "valid"),
    ("ueid", MISSING),
    ("ueid", ""),
    ("ueid", "0x12"),
    ("ueid", "\u0661"),
    ("ueid", "1" * 65),
    ("ueid", 7),
]


@forgeries("path, value", *WRONG_DEVICES)
def test_devices_that_are_not_what_they_must_be(path, value):
    claims = Claims(changed(device(), path, value), "token")
    error = vocabulary.refused(AttestationError, "ST-ATTS-809", nras_device, claims, "GPU-0")
    assert path.partition("/")[0] in error.where


def test_a_switch_needs_a_switchs_report():
    with pytest.raises(AttestationError, match="x-nvidia-switch-attestation-report"):
        nras_device(Claims(device("gpu"), "token"), "SWITCH-0")


def test_an_error_says_what_was_expected_and_found():
    error = refused(TokenProfile.GOOGLE, {**GOOGLE, "swname": "X\x1b"})
    assert error.what == "expected 'CONFIDENTIAL_SPACE' or 'GCE', found 'X\\x1b'"
    assert error.where == "token/swname"
