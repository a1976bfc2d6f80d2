# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Makers of CPUs that do what a test tells them: roots, certificates and lists of our own.

`forge_amd.py` and `forge_intel.py` make whole worlds of them.
"""

from datetime import UTC, datetime, timedelta
from functools import cache

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

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


def name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


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
    builder = (
        x509.CertificateBuilder()
        .subject_name(name(subject))
        .issuer_name(name(issuer))
        .public_key(key.public_key())
        .serial_number(serial)
        .not_valid_before(start)
        .not_valid_after(end)
    )
    if ca:
        builder = builder.add_extension(x509.BasicConstraints(True, path_length), critical=True)
        usage = _usage(key_cert_sign=may_sign_certificates, crl_sign=may_sign_lists)
        builder = builder.add_extension(usage, critical=True)
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical)
    return builder.sign(signer, **_algorithm(signer, hash_algorithm, pss=pss))


def revocation_list(
    issuer, signer, serials=(), *, start=NOW - DAY, end=NOW + DAY, extensions=()
) -> bytes:
    """A list in DER."""
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(name(issuer))
        .last_update(start)
        .next_update(end)
    )
    for serial in serials:
        entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(start)
        builder = builder.add_revoked_certificate(entry.build())
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical)
    return builder.sign(signer, **_algorithm(signer, None, pss=True)).public_bytes(Encoding.DER)


def der(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(Encoding.DER)


def pem(*certificates: x509.Certificate) -> bytes:
    return b"".join(c.public_bytes(Encoding.PEM) for c in certificates)


def custom(oid: str, value: bytes) -> x509.UnrecognizedExtension:
    return x509.UnrecognizedExtension(x509.ObjectIdentifier(oid), value)


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


def flip(data: bytes, offset: int, mask: int = 1) -> bytes:
    changed = bytearray(data)
    changed[offset] ^= mask
    return bytes(changed)


def _usage(**on) -> x509.KeyUsage:
    names = (
        "digital_signature",
        "content_commitment",
        "key_encipherment",
        "data_encipherment",
        "key_agreement",
        "key_cert_sign",
        "crl_sign",
        "encipher_only",
        "decipher_only",
    )
    return x509.KeyUsage(**{name: on.get(name, False) for name in names})


SIGNING_USAGE = _usage(digital_signature=True)
CA_USAGE = _usage(key_cert_sign=True, crl_sign=True)
NO_USAGE = _usage(key_encipherment=True)


def _algorithm(signer, hash_algorithm, *, pss):
    if isinstance(signer, ed25519.Ed25519PrivateKey):
        return {"algorithm": None}
    if not isinstance(signer, rsa.RSAPrivateKey):
        return {"algorithm": hash_algorithm or hashes.SHA256()}
    digest = hash_algorithm or hashes.SHA384()
    scheme = padding.PSS(padding.MGF1(digest), padding.PSS.DIGEST_LENGTH)
    return {"algorithm": digest, "rsa_padding": scheme if pss else None}
