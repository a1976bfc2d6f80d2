# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Processor seconds of one operation, against the bare cryptography that it cannot do without.

The reference is `cryptography` itself, called with keys that are ready: no parsing, no rules, no
memory of anything. Nobody who checks the same signatures can be faster, so the ratio says what all
the rest costs. Time is that of the process, not of the wall: a verifier that waits costs nothing.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa

from benchmarks.ab import Goal, Side

Sample: TypeAlias = Callable[[], float]
"""Seconds for one operation, by doing several."""

_REPEAT: Final = 20
_MESSAGE: Final = bytes(400)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """How many of each an operation cannot do without."""

    p256: int = 0
    """Verifications of ECDSA P-256."""
    p384: int = 0
    """Verifications of ECDSA P-384."""
    rsa4096: int = 0
    """Verifications of RSA-4096, PSS."""
    oaep: int = 0
    """Encryptions to an RSA-2048 key."""
    ecdh384: int = 0
    """Encryptions to a P-384 key: an ephemeral key and a shared secret."""
    signatures: int = 0
    """Signatures by ECDSA P-256."""

    def sample(self) -> Sample:
        """The bare cryptography, ready to be timed."""
        calls = [
            *(_ecdsa(ec.SECP256R1(), hashes.SHA256()) for _ in range(self.p256)),
            *(_ecdsa(ec.SECP384R1(), hashes.SHA384()) for _ in range(self.p384)),
            *(_pss() for _ in range(self.rsa4096)),
            *(_oaep() for _ in range(self.oaep)),
            *(_ecdh() for _ in range(self.ecdh384)),
            *(_signature() for _ in range(self.signatures)),
        ]

        def sample() -> float:
            start = time.process_time()
            for _ in range(_REPEAT):
                for call in calls:
                    call()
            return (time.process_time() - start) / _REPEAT

        return sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Cpu:
    """One operation, as an `ab.Benchmark`."""

    name: str
    title: str
    goal: Goal
    bound: Bound
    prepare: Callable[[int], AbstractContextManager[Sample]]
    """Makes what is needed for so many samples of ours."""
    pairs: int = 15

    def run(self, order: Sequence[Side]) -> list[float]:
        """Take the samples in this process."""
        plain = self.bound.sample()
        with self.prepare(order.count(Side.OURS)) as ours:
            return [ours() if side is Side.OURS else plain() for side in order]


def _ecdsa(curve: ec.EllipticCurve, digest: hashes.HashAlgorithm) -> Callable[[], object]:
    key, algorithm = ec.generate_private_key(curve), ec.ECDSA(digest)
    return partial(key.public_key().verify, key.sign(_MESSAGE, algorithm), _MESSAGE, algorithm)


def _pss() -> Callable[[], object]:
    key, digest = rsa.generate_private_key(65537, 4096), hashes.SHA384()
    pss = padding.PSS(padding.MGF1(digest), digest.digest_size)
    signature = key.sign(_MESSAGE, pss, digest)
    return partial(key.public_key().verify, signature, _MESSAGE, pss, digest)


def _oaep() -> Callable[[], object]:
    key, digest = rsa.generate_private_key(65537, 2048).public_key(), hashes.SHA256()
    return partial(key.encrypt, bytes(32), padding.OAEP(padding.MGF1(digest), digest, None))


def _ecdh() -> Callable[[], object]:
    key = ec.generate_private_key(ec.SECP384R1()).public_key()
    return lambda: ec.generate_private_key(key.curve).exchange(ec.ECDH(), key)


def _signature() -> Callable[[], object]:
    key = ec.generate_private_key(ec.SECP256R1())
    return partial(key.sign, _MESSAGE, ec.ECDSA(hashes.SHA256()))
