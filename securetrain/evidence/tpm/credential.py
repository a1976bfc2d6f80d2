# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Credentials that only the TPM of an endorsement key can open: TPM2_MakeCredential in software.

Source: TCG TPM 2.0 Library, Part 1, 24 (Credential Protection), annex B.10.4 and C.6.4 (secret
sharing), 11.4.10 (KDFa and KDFe).

A secret is encrypted to the endorsement key and bound to the Name of the attestation key. A TPM
gives it out (TPM2_ActivateCredential) only when it holds both keys: the one proof that a key whose
public area anybody could write down is a key of the certified TPM. That an attestation key has the
attributes that its Name covers follows from the same step.

KDFa is the counter mode of NIST SP 800-108 with HMAC, KDFe the concatenation KDF of SP 800-56A.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from cryptography.hazmat.decrepit.ciphers.modes import CFB
from cryptography.hazmat.primitives import hmac
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.kdf.concatkdf import ConcatKDFHash
from cryptography.hazmat.primitives.kdf.kbkdf import KBKDFHMAC, CounterLocation, Mode

from securetrain.evidence.tpm.constants import Hash
from securetrain.evidence.tpm.structures import PublicArea, Symmetric, number, tpm2b

_IDENTITY: Final = b"IDENTITY"
_BLOCK: Final = 16


@dataclass(frozen=True, slots=True)
class Credential:
    """The arguments of TPM2_ActivateCredential."""

    id_object: bytes
    """TPM2B_ID_OBJECT."""
    encrypted_secret: bytes
    """TPM2B_ENCRYPTED_SECRET."""


def make_credential(
    ek: PublicArea, ak_name: bytes, secret: bytes, random: Callable[[int], bytes]
) -> Credential:
    """Encrypt a secret to a TPM that holds both keys.

    Args:
        ek: the endorsement key, judged by `keys.check_endorsement_key`.
        ak_name: the attestation key's Name.
        secret: at most as long as a digest of the endorsement key's nameAlg.
        random: gives as many random bytes as asked for.

    Raises:
        AttestationError: ST-ATTS-101 when the endorsement key is no key.
        ValueError: when the secret is too long, or `ek` is no storage key.
    """
    if len(secret) > ek.name_alg.size:
        raise ValueError(f"a secret of {len(secret)} bytes, at most {ek.name_alg.size} fit")
    if ek.symmetric is None:
        raise ValueError("not a storage key")
    seed, encrypted_secret = _share_seed(ek, random)
    identity = _encrypt(ek.name_alg, seed, ek.symmetric, ak_name, tpm2b(secret))
    integrity = hmac.HMAC(
        kdfa(ek.name_alg, seed, b"INTEGRITY", b"", ek.name_alg.size), ek.name_alg.primitive()
    )
    integrity.update(identity + ak_name)
    return Credential(tpm2b(tpm2b(integrity.finalize()) + identity), tpm2b(encrypted_secret))


def kdfa(algorithm: Hash, key: bytes, label: bytes, context: bytes, size: int) -> bytes:
    """KDFa (Part 1, 11.4.10.2) with one context, for `size` bytes."""
    return KBKDFHMAC(
        algorithm=algorithm.primitive(),
        mode=Mode.CounterMode,
        length=size,
        rlen=4,
        llen=4,
        location=CounterLocation.BeforeFixed,
        label=label,
        context=context,
        fixed=None,
    ).derive(key)


def kdfe(algorithm: Hash, shared: bytes, label: bytes, party_u: bytes, party_v: bytes) -> bytes:
    """KDFe (Part 1, 11.4.10.3) for as many bytes as a digest has."""
    info = label + b"\0" + party_u + party_v
    return ConcatKDFHash(algorithm.primitive(), algorithm.size, info).derive(shared)


def _share_seed(ek: PublicArea, random: Callable[[int], bytes]) -> tuple[bytes, bytes]:
    """A seed, and how the TPM comes by it."""
    match ek.key():
        case rsa.RSAPublicKey() as key:
            return _share_rsa(ek.name_alg, key, random(ek.name_alg.size))
        case ec.EllipticCurvePublicKey() as key:
            return _share_ecc(ek.name_alg, key)


def _share_rsa(algorithm: Hash, key: rsa.RSAPublicKey, seed: bytes) -> tuple[bytes, bytes]:
    digest = algorithm.primitive()
    # The label is a C string: its terminating zero is part of it (annex B.4).
    oaep = padding.OAEP(padding.MGF1(digest), digest, _IDENTITY + b"\0")
    return seed, key.encrypt(seed, oaep)


def _share_ecc(algorithm: Hash, key: ec.EllipticCurvePublicKey) -> tuple[bytes, bytes]:
    # The ephemeral key comes from the library's own generator: a scalar is more than random bytes.
    ephemeral = ec.generate_private_key(key.curve)
    size = (key.curve.key_size + 7) // 8
    ours, theirs = ephemeral.public_key().public_numbers(), key.public_numbers()
    x, y = number(ours.x, size), number(ours.y, size)
    shared = ephemeral.exchange(ec.ECDH(), key)
    seed = kdfe(algorithm, shared, _IDENTITY, x, number(theirs.x, size))
    return seed, tpm2b(x) + tpm2b(y)


def _encrypt(
    algorithm: Hash, seed: bytes, symmetric: Symmetric, name: bytes, plain: bytes
) -> bytes:
    key = kdfa(algorithm, seed, b"STORAGE", name, symmetric.bits // 8)
    # A zero IV: the key is derived from a fresh seed and used once.
    encryptor = Cipher(algorithms.AES(key), CFB(bytes(_BLOCK))).encryptor()
    return encryptor.update(plain) + encryptor.finalize()
