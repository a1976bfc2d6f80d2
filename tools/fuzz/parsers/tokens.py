# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The parsers of attestation tokens, with valid inputs to start from."""

import json
from collections.abc import Callable
from typing import Any

from securetrain.core import canonical
from securetrain.evidence.token_profiles import JUDGES, Claims, TokenProfile, nras_device
from securetrain.evidence.tokens import TokenIssuer, TokenReference, appraise_token
from tests.evidence import honest_tokens as honest
from tests.evidence.issuers import token
from tools.fuzz.engine import Parser

_CLAIMS: dict[TokenProfile, list[dict[str, Any]]] = {
    TokenProfile.GOOGLE: [honest.GOOGLE],
    TokenProfile.AZURE: [honest.AZURE, honest.AZURE_TEE],
    TokenProfile.EAR: [honest.EAR],
    TokenProfile.NRAS: [honest.NRAS, honest.device()],
}


def tokens() -> list[Parser]:
    """All of them."""
    return [
        Parser(
            "attestation-token",
            lambda: [token(honest.CLOUD).encode()],
            _appraise(honest.ISSUER),
        ),
        Parser(
            "attestation-bundle",
            lambda: [honest.bundle(honest.HONEST).encode()],
            _appraise(honest.FLEET),
        ),
        # Behind the signature, so that mutations reach the claims.
        *(
            Parser(f"claims-{profile.value}", _seeds(profile), _judge(profile))
            for profile in TokenProfile
        ),
    ]


def _appraise(issuer: TokenIssuer) -> Callable[[bytes], object]:
    reference = TokenReference(issuers={honest.ISS: issuer})

    def parse(data: bytes) -> object:
        text = data.decode("utf-8", "surrogateescape")
        return appraise_token(text, nonce=honest.NONCE, reference=reference, now=honest.NOW)

    return parse


def _seeds(profile: TokenProfile) -> Callable[[], list[bytes]]:
    return lambda: [json.dumps(claims).encode() for claims in _CLAIMS[profile]]


def _judge(profile: TokenProfile) -> Callable[[bytes], object]:
    def parse(data: bytes) -> object:
        value = canonical.loads(data)
        claims = Claims(value if isinstance(value, dict) else {}, "token")
        if claims.get("ueid") is not None:
            return nras_device(claims, "GPU-0")
        return JUDGES[profile](claims)

    return parse
