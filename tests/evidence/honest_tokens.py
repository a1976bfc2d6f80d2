# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What honest issuers say, in the words of their documentation, and tokens that say it."""

import hashlib
import json
from datetime import UTC, datetime
from typing import Any

from securetrain.evidence.token_profiles import TokenProfile
from securetrain.evidence.tokens import TokenIssuer
from tests.evidence.issuers import signing, token

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)
NONCE = hashlib.sha256(b"nonce").digest()
ISS = "https://issuer.example"


def seconds(offset: float = 0) -> int:
    return int(NOW.timestamp() + offset)


GOOGLE: dict[str, Any] = {
    "secboot": True,
    "swname": "CONFIDENTIAL_SPACE",
    "dbgstat": "disabled-since-boot",
    "hwmodel": "GCP_INTEL_TDX",
    "submods": {
        "container": {"image_digest": "sha256:abc"},
        "gce": {"instance_id": "7", "project_id": "p", "zone": "z"},
    },
}
AZURE_TEE: dict[str, Any] = {
    "x-ms-attestation-type": "sevsnpvm",
    "x-ms-compliance-status": "azure-compliant-cvm",
    "x-ms-sevsnpvm-is-debuggable": False,
    "x-ms-sevsnpvm-launchmeasurement": "ab",
}
AZURE: dict[str, Any] = {
    "secureboot": True,
    "x-ms-attestation-type": "azurevm",
    "x-ms-azurevm-bootdebug-enabled": False,
    "x-ms-azurevm-hypervisordebug-enabled": False,
    "x-ms-azurevm-kerneldebug-enabled": False,
    "x-ms-azurevm-testsigning-enabled": False,
    "x-ms-azurevm-vmid": "vm-7",
    "x-ms-policy-hash": "hash",
    "x-ms-isolation-tee": AZURE_TEE,
}
MODULE: dict[str, Any] = {
    "ear.status": "affirming",
    "ear.trustworthiness-vector": {
        "hardware": 2,
        "executables": 3,
        "configuration": 0,
        "runtime-opaque": 31,
    },
}
EAR: dict[str, Any] = {
    "eat_profile": "tag:github.com,2023:veraison/ear",
    "ear.verifier-id": {"developer": "a developer", "build": "1"},
    "submods": {"cpu0": MODULE},
}
NRAS: dict[str, Any] = {
    "sub": "NVIDIA-PLATFORM-ATTESTATION",
    "x-nvidia-ver": "3.0",
    "x-nvidia-overall-att-result": True,
}
CHAIN = {"x-nvidia-cert-status": "valid", "x-nvidia-cert-ocsp-status": "good"}


def device(kind: str = "gpu", **changes: Any) -> dict[str, Any]:
    prefix = f"x-nvidia-{kind}"
    return {
        "measres": "success",
        "secboot": True,
        "dbgstat": "disabled",
        "hwmodel": "GH100",
        "ueid": "478176",
        "x-nvidia-attestation-warning": None,
        f"{prefix}-attestation-report-nonce-match": True,
        f"{prefix}-attestation-report-signature-verified": True,
        f"{prefix}-attestation-report-cert-chain-fwid-match": True,
        f"{prefix}-attestation-report-cert-chain": CHAIN,
        f"{prefix}-arch-check": True,
        "x-nvidia-gpu-driver-rim-cert-chain": CHAIN,
        "x-nvidia-gpu-driver-version": "550",
        "x-nvidia-gpu-vbios-version": "96.00",
        "x-nvidia-switch-bios-version": "96.10",
        **changes,
    }


COMMON: dict[str, Any] = {
    "iss": ISS,
    "iat": seconds(-10),
    "nbf": seconds(-10),
    "exp": seconds(3000),
    "eat_nonce": NONCE.hex(),
}
CLOUD = {**GOOGLE, **COMMON, "aud": "our job"}
ISSUER = TokenIssuer(profile=TokenProfile.GOOGLE, signing=signing(), audience="our job")


FLEET = TokenIssuer(profile=TokenProfile.NRAS, signing=signing("ES384"), gpus=2, switches=1)


def devices(**changes: Any) -> dict[str, str]:
    names = {"GPU-0": ("gpu", "1"), "GPU-1": ("gpu", "2")}
    return {
        name: token({**device(kind, ueid=ueid), **COMMON, **changes}, "ES384")
        for name, (kind, ueid) in names.items()
    }


SWITCH = token({**device("switch", ueid="3"), **COMMON}, "ES384")


def digests(detached: dict[str, str]) -> dict[str, Any]:
    return {
        name: ["DIGEST", ["SHA-256", hashlib.sha256(text.encode()).hexdigest()]]
        for name, text in detached.items()
    }


def bundle(detached: dict[str, str], named: dict[str, Any] | None = None, **changes: Any) -> str:
    submods = digests(detached) if named is None else named
    overall = {**NRAS, **COMMON, "submods": submods, **changes}
    return json.dumps([["JWT", token(overall, "ES384")], detached])


HONEST = devices()
