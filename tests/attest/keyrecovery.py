# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The P-384 key behind two ECDSA signatures (SEC 1, 4.1.6), to read real tokens in tests.

Whoever can compute a key from signatures knows nothing about who holds it: never a trust decision.
"""

import base64
import hashlib
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec

_P = 2**384 - 2**128 - 2**96 + 2**32 - 1
_N = 2**384 - 0x389CB27E0BC8D220A7E5F24DB74F58851313E695333AD68D
_B = int(
    "B3312FA7E23EE7E4988E056BE3F82D19181D9C6EFE814112"
    "0314088F5013875AC656398D8A2ED19D2A85C8EDD3EC2AEF",
    16,
)
_CURVE = ec.SECP384R1()


class Recovered:
    """Looks like a private key as far as its public part goes."""

    def __init__(self, public: ec.EllipticCurvePublicKey) -> None:
        self._public = public

    def public_key(self) -> ec.EllipticCurvePublicKey:
        return self._public


def recover_p384(first: str, second: str) -> Recovered:
    """The one key under which both tokens verify."""
    found = [key for key in _candidates(first) if _verifies(key, first) and _verifies(key, second)]
    assert len(found) == 1
    return Recovered(found[0])


def _candidates(token: str) -> list[ec.EllipticCurvePublicKey]:
    message, _, text = token.rpartition(".")
    raw = base64.urlsafe_b64decode(text + "==")
    r, s = int.from_bytes(raw[:48], "big"), int.from_bytes(raw[48:], "big")
    z = int.from_bytes(hashlib.sha384(message.encode()).digest(), "big")
    # Q = (s R - z G) / r, where R is one of the two points with x = r; so is s R for its own x.
    times_r = _times(s, r)
    minus_z = ec.derive_private_key(-z % _N, _CURVE).public_key().public_numbers()
    sums = [_add((times_r, y), (minus_z.x, minus_z.y)) for y in _roots(times_r)]
    xs = [_times(pow(r, -1, _N), x) for x, _ in sums]
    return [_point(x, y) for x in xs for y in _roots(x)]


def _times(factor: int, x: int) -> int:
    """The x of a multiple of the point with this x: what a key exchange computes."""
    secret = ec.derive_private_key(factor, _CURVE).exchange(ec.ECDH(), _point(x, _roots(x)[0]))
    return int.from_bytes(secret, "big")


def _roots(x: int) -> tuple[int, int]:
    y = pow(x**3 - 3 * x + _B, (_P + 1) // 4, _P)
    return y, _P - y


def _add(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    slope = (b[1] - a[1]) * pow(b[0] - a[0], -1, _P) % _P
    x = (slope * slope - a[0] - b[0]) % _P
    return x, (slope * (a[0] - x) - a[1]) % _P


def _point(x: int, y: int) -> ec.EllipticCurvePublicKey:
    return ec.EllipticCurvePublicNumbers(x, y, _CURVE).public_key()


def _verifies(key: Any, token: str) -> bool:
    try:
        jwt.PyJWS().decode(token, key, algorithms=["ES384"])
    except jwt.InvalidSignatureError:
        return False
    return True
