# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""RSA keys for tests, made once and kept: making one of 4096 bits takes up to seconds.

Their primes are in `rsa_primes.json` for all to read: no key here protects anything.
"""

import json
import math
from functools import cache
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import rsa

EXPONENT = 65537


@cache
def rsa_key(bits: int, number: int = 0) -> rsa.RSAPrivateKey:
    """The key of that size and number; a new one where none is kept."""
    primes = _primes().get(str(bits), [])
    if number >= len(primes):
        return rsa.generate_private_key(EXPONENT, bits)
    p, q = map(int, primes[number])
    d = pow(EXPONENT, -1, math.lcm(p - 1, q - 1))
    numbers = rsa.RSAPrivateNumbers(
        p=p,
        q=q,
        d=d,
        dmp1=rsa.rsa_crt_dmp1(d, p),
        dmq1=rsa.rsa_crt_dmq1(d, q),
        iqmp=rsa.rsa_crt_iqmp(p, q),
        public_numbers=rsa.RSAPublicNumbers(EXPONENT, p * q),
    )
    # The check of primes is what takes long, and these were made as primes.
    return numbers.private_key(unsafe_skip_rsa_key_validation=True)


@cache
def _primes() -> dict[str, list[list[str]]]:
    primes: dict[str, list[list[str]]] = json.loads(
        (Path(__file__).parent / "rsa_primes.json").read_text()
    )
    return primes


@cache
def named_rsa_key(bits: int, name: str) -> rsa.RSAPrivateKey:
    """A key by a name of the test's own; two names have two keys."""
    names = _names.setdefault(bits, [])
    names.append(name)
    return rsa_key(bits, len(names) - 1)


_names: dict[int, list[str]] = {}
