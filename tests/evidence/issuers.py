# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Issuers of attestation tokens whose keys the tests hold."""

import base64
import json
from typing import Any

import jwt
import msgspec
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from securetrain.evidence.jws import Algorithm, Jwk, Jwks, Signing
from tests.rsa_keys import rsa_key

KEYS: dict[str, Any] = {
    "ES256": ec.generate_private_key(ec.SECP256R1()),
    "ES384": ec.generate_private_key(ec.SECP384R1()),
    "ES512": ec.generate_private_key(ec.SECP521R1()),
    "RS256": rsa_key(2048, 0),
}
OTHERS: dict[str, Any] = {
    "ES256": ec.generate_private_key(ec.SECP256R1()),
    "ES384": ec.generate_private_key(ec.SECP384R1()),
    "RS256": rsa_key(2048, 1),
}


def jwk(key: Any, **changes: Any) -> Jwk:
    """The public part of a key, as an issuer publishes it."""
    algorithm = "RS256" if isinstance(key, rsa.RSAPrivateKey) else "ES256"
    numbers: dict[str, Any] = jwt.get_algorithm_by_name(algorithm).to_jwk(
        key.public_key(), as_dict=True
    )
    public = ("kty", "crv", "x", "y", "n", "e")
    fields: dict[str, Any] = {name: value for name, value in numbers.items() if name in public}
    document: dict[str, Any] = {"kid": "key-1", **fields, **changes}
    return msgspec.convert(document, Jwk)


def signing(algorithm: str = "ES256", **changes: Any) -> Signing:
    """What is pinned for an issuer with one key."""
    pinned = Signing(jwks=Jwks(keys=(jwk(KEYS[algorithm]),)), algorithms=(Algorithm(algorithm),))
    return msgspec.structs.replace(pinned, **changes)


def segment(data: bytes) -> str:
    """Base64url without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def token(
    claims: dict[str, Any] | bytes,
    algorithm: str = "ES256",
    *,
    key: Any = None,
    header: dict[str, Any] | None = None,
) -> str:
    """A signed token; `header` changes its header (None takes a parameter out)."""
    fields = {"alg": algorithm, "kid": "key-1", "typ": "JWT", **(header or {})}
    first = {name: value for name, value in fields.items() if value is not None}
    payload = claims if isinstance(claims, bytes) else json.dumps(claims).encode()
    return signed(json.dumps(first).encode(), payload, algorithm, key=key)


def signed(header: bytes, payload: bytes, algorithm: str = "ES256", *, key: Any = None) -> str:
    """A token of exactly these bytes."""
    message = f"{segment(header)}.{segment(payload)}"
    signer = jwt.get_algorithm_by_name(algorithm)
    signature = signer.sign(message.encode(), key or KEYS[algorithm])
    return f"{message}.{segment(signature)}"
