# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Makers of CPUs that do what a test tells them: roots, certificates and lists of our own.

`forge_amd.py` and `forge_intel.py` make whole worlds of them.
"""

import random
from datetime import UTC, datetime, timedelta
from functools import cache

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding

from tests.identity import worlds
from tests.rsa_keys import named_rsa_key

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)
START = datetime(2020, 1, 1, tzinfo=UTC)
END = datetime(2040, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)


@cache
def rsa_key(name: str) -> rsa.RSAPrivateKey:
    """A key by name, so that it is made once."""
    return named_rsa_key(4096, name)


@cache
def short_rsa_key(name: str) -> rsa.RSAPrivateKey:
    return named_rsa_key(3072, name)


@cache
def ed25519_key(name: str) -> ed25519.Ed25519PrivateKey:
    return ed25519.Ed25519PrivateKey.generate()


@cache
def p256_key(name: str) -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


@cache
def p384_key(name: str) -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP384R1())


def label(value: object) -> str:
    """The id of a parameter: options by their names, for a key has no text that stays."""
    return "-".join(value) if isinstance(value, dict) else str(value)


def certificate(
    subject,
    issuer,
    key,
    signer,
    *,
    ca=False,
    path_length=None,
    may_sign_certificates=True,
    may_sign_lists=True,
    start=START,
    end=END,
    serial=7,
    extensions=(),
    hash_algorithm=None,
    pss=True,
) -> x509.Certificate:
    """A certificate of `key` as `subject`, signed by `signer` as `issuer`.

    Args:
        extensions: pairs of an extension and whether it is critical.
    """
    signs = {"key_cert_sign": may_sign_certificates, "crl_sign": may_sign_lists}
    may = worlds.usage(*(one for one, does in signs.items() if does))
    limited = (worlds.limits(ca=True, path_length=path_length), (may, True)) if ca else ()
    how = _algorithm(signer, hash_algorithm, pss=pss)
    return worlds.certificate(
        *(subject, issuer, key.public_key(), signer, (start, end), *limited, *extensions),
        serial=serial,
        **how,
    )


def revocation_list(
    issuer, signer, serials=(), *, start=NOW - DAY, end=NOW + DAY, extensions=()
) -> bytes:
    """A list in DER."""
    entries = (x509.RevokedCertificateBuilder(one, start).build() for one in serials)
    how = {"extensions": extensions, **_algorithm(signer, None, pss=True)}
    made = worlds.revocation_list(issuer, signer, (start, end), *entries, **how)
    return made.public_bytes(Encoding.DER)


def der(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(Encoding.DER)


def pem(*certificates: x509.Certificate) -> bytes:
    return b"".join(c.public_bytes(Encoding.PEM) for c in certificates)


def tlv(tag: int, *parts: bytes) -> bytes:
    """One DER value."""
    body = b"".join(parts)
    size = len(body)
    if size < 0x80:
        return bytes([tag, size]) + body
    long = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes([tag, 0x80 | len(long)]) + long + body


def der_int(value: int) -> bytes:
    return tlv(2, value.to_bytes(value.bit_length() // 8 + 1, "big"))


def turned(data: bytes, source: random.Random, size: int = 0) -> bytes:
    """The data with one bit turned, anywhere in its first `size` bytes (all)."""
    return flip(data, source.randrange(size or len(data)), 1 << source.randrange(8))


def flip(data: bytes, offset: int, mask: int = 1) -> bytes:
    changed = bytearray(data)
    changed[offset] ^= mask
    return bytes(changed)


SIGNING_USAGE = worlds.usage("digital_signature")
CA_USAGE = worlds.usage("key_cert_sign", "crl_sign")
NO_USAGE = worlds.usage("key_encipherment")


def _algorithm(signer, hash_algorithm, *, pss):
    if isinstance(signer, ed25519.Ed25519PrivateKey):
        return {"digest": None}
    if not isinstance(signer, rsa.RSAPrivateKey):
        return {"digest": hash_algorithm or hashes.SHA256()}
    digest = hash_algorithm or hashes.SHA384()
    scheme = padding.PSS(padding.MGF1(digest), padding.PSS.DIGEST_LENGTH)
    return {"digest": digest, "rsa_padding": scheme if pss else None}
