# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A certificate authority in the shape of NVIDIA's: root, product CA, issuing CA, signer, on P-384.

Nothing in it is checked: tests ask it for certificates that are wrong in one way.
"""

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID

from tests.identity import worlds

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)
DAY = timedelta(days=1)
YEAR = timedelta(days=365)

Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


@dataclass(frozen=True)
class Holder:
    """A certificate and its private key."""

    certificate: x509.Certificate
    key: Key

    @property
    def der(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.DER)

    @property
    def pin(self) -> str:
        """SHA-256 of the SubjectPublicKeyInfo, hex."""
        spki = self.key.public_key().public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        return hashlib.sha256(spki).hexdigest()


@dataclass(frozen=True)
class Authority:
    """A signer and everything above it."""

    signer: Holder
    issuer: Holder
    product: Holder
    root: Holder

    @property
    def chain(self) -> list[Holder]:
        return [self.signer, self.issuer, self.product, self.root]

    @property
    def roots(self) -> set[str]:
        return {self.root.pin}


def new_key(curve: ec.EllipticCurve | None = None) -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(curve or ec.SECP384R1())


def issue(
    subject: str,
    issuer: Holder | None = None,
    *,
    key: Key | None = None,
    sign_with: Key | None = None,
    ca: bool = True,
    path_length: int | None = None,
    cert_sign: bool | None = None,
    digital_signature: bool | None = None,
    constraints: bool = True,
    usage: bool = True,
    not_before: datetime = NOW - YEAR,
    not_after: datetime = NOW + YEAR,
    algorithm: Any = None,
    extra: tuple[tuple[x509.ExtensionType, bool], ...] = (),
) -> Holder:
    """One certificate; without an issuer it is self-signed."""
    key = key or new_key()
    above: Any = issuer.key if issuer else key
    may = {
        "digital_signature": not ca if digital_signature is None else digital_signature,
        "key_cert_sign": ca if cert_sign is None else cert_sign,
        "crl_sign": ca,
    }
    made = worlds.certificate(
        subject,
        issuer.certificate.subject if issuer else subject,
        key.public_key(),
        sign_with or above,
        (not_before, not_after),
        (x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(above.public_key()), False),
        worlds.limits(ca=ca, path_length=path_length) if constraints else None,
        (worlds.usage(*(bit for bit, on in may.items() if on)), True) if usage else None,
        *extra,
        digest=algorithm or hashes.SHA384(),
    )
    return Holder(made, key)


def make_authority(label: str = "Test", **signer: Any) -> Authority:
    """A whole chain; keyword arguments change the signer's certificate."""
    root = issue(f"{label} RIM Root CA", not_before=NOW - 3 * YEAR, not_after=NOW + 20 * YEAR)
    product = issue(f"{label} GH100 CA", root, not_before=NOW - 2 * YEAR, not_after=NOW + 9 * YEAR)
    issuer = issue(f"{label} L3 GH100", product, path_length=0, not_after=NOW + 2 * YEAR)
    return Authority(
        issue(f"{label} RIM Signer", issuer, **{"ca": False, **signer}), issuer, product, root
    )


OCSP_SIGNING = (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.OCSP_SIGNING]), False)
