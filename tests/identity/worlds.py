# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Certificates of anybody, right or wrong: nothing in them is checked."""

from datetime import datetime
from typing import Any, TypeAlias

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

Extension: TypeAlias = tuple[x509.ExtensionType, bool]
"""An extension, and whether it is critical."""


def named(name: str | x509.Name) -> x509.Name:
    """A name of one common name; the empty text is the empty name."""
    if isinstance(name, x509.Name):
        return name
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)] if name else [])


def usage(*names: str) -> x509.KeyUsage:
    """A key usage with the named bits."""
    bits = (
        *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment"),
        *("key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
    )
    return x509.KeyUsage(**{bit: bit in names for bit in bits})


def limits(*, ca: bool, path_length: int | None = None, critical: bool = True) -> Extension:
    return x509.BasicConstraints(ca, path_length), critical


def custom(oid: str, value: bytes) -> x509.UnrecognizedExtension:
    return x509.UnrecognizedExtension(x509.ObjectIdentifier(oid), value)


def private_pem(key: Any, encryption: Any = None) -> bytes:
    """A private key as files have it."""
    encryption = encryption or serialization.NoEncryption()
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
    text: bytes = key.private_bytes(*form)
    return text


def public_pem(key: Any) -> bytes:
    """The public half of a key, or a public key."""
    public = key.public_key() if hasattr(key, "public_key") else key
    form = (serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    text: bytes = public.public_bytes(*form)
    return text


def certificate(
    subject: str | x509.Name,
    issuer: str | x509.Name,
    public: Any,
    signer: Any,
    valid: tuple[datetime, datetime],
    *extensions: Extension | None,
    serial: int | None = None,
    **how: Any,
) -> x509.Certificate:
    """A certificate; extensions that are None are left out.

    Args:
        valid: The first and the last moment.
        how: `digest` (SHA-256), and what signing takes beside it.
    """
    serial = x509.random_serial_number() if serial is None else serial
    builder = x509.CertificateBuilder(named(issuer), named(subject), public, serial, *valid)
    for extension in filter(None, extensions):
        builder = builder.add_extension(*extension)
    return builder.sign(signer, how.pop("digest", hashes.SHA256()), **how)


def revocation_list(
    issuer: str | x509.Name,
    signer: Any,
    valid: tuple[datetime, datetime],
    *entries: x509.RevokedCertificate,
    extensions: tuple[Extension, ...] = (),
    **how: Any,
) -> x509.CertificateRevocationList:
    """A list; `how` as above."""
    builder = x509.CertificateRevocationListBuilder(named(issuer), *valid)
    for entry in entries:
        builder = builder.add_revoked_certificate(entry)
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical)
    return builder.sign(signer, how.pop("digest", hashes.SHA256()), **how)
