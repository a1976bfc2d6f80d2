# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The job CA: short-lived X.509-SVIDs with separated roles.

A run on one machine makes its own, self-signed and in memory. A cluster's is certified by the
cluster CA (`identity.cluster_ca`); to everybody in the job it is the trust anchor either way, and
the rules are the same.

Rules: the CA key signs nothing but certificates of one job; a node's certificate has EKU clientAuth
only and a coordinator's serverAuth only, so that neither can stand in for the other (admitted
members, who meet as equals, have both, under a name of their own); every certificate carries
exactly one SPIFFE id; keys are P-256; a leaf lives at most 24 hours.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from securetrain.core.errors import IdentityError
from securetrain.identity.keys import KeyKind, PrivateKey, PublicKey
from securetrain.identity.spiffe import Role, SpiffeId

MAX_LEAF_LIFETIME: Final = timedelta(hours=24)
CA_LIFETIME: Final = timedelta(days=7)
CLOCK_SKEW: Final = timedelta(minutes=5)

_EKU: Final = {
    Role.NODE: [ExtendedKeyUsageOID.CLIENT_AUTH],
    Role.COORDINATOR: [ExtendedKeyUsageOID.SERVER_AUTH],
    Role.MEMBER: [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH],
    Role.UNATTESTED: [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH],
}


@dataclass(frozen=True, slots=True)
class JobCA:
    """A certificate authority for one job."""

    key: PrivateKey
    certificate: x509.Certificate
    trust_domain: str
    job: str

    @classmethod
    def create(cls, trust_domain: str, job: str, now: datetime) -> "JobCA":
        """Make a CA with a new key. `now` is timezone-aware."""
        SpiffeId(trust_domain, job, Role.COORDINATOR)  # refuses bad names
        key = PrivateKey.generate(KeyKind.P256)
        name = ca_name(f"securetrain job CA {job}")
        certificate = ca_builder(
            name, key.public, now, path_length=0, ends=now + CA_LIFETIME, issuer=name
        ).sign(key.native, hashes.SHA256())
        return cls(key, certificate, trust_domain, job)

    def issue(
        self,
        role: Role,
        public_key: PublicKey,
        now: datetime,
        *,
        node: str = "",
        lifetime: timedelta,
    ) -> x509.Certificate:
        """Issue a leaf for one role.

        Raises:
            IdentityError: ST-IDEN-005 when the lifetime is too long, ST-IDEN-006 for a bad name.
        """
        if lifetime > MAX_LEAF_LIFETIME:
            raise IdentityError(
                "ST-IDEN-005",
                f"a lifetime of {lifetime}, the limit is {MAX_LEAF_LIFETIME}",
                "identity.certificate_lifetime_minutes",
                "use at most 1440",
            )
        spiffe = SpiffeId(self.trust_domain, self.job, role, node)
        return (
            x509.CertificateBuilder()
            .subject_name(x509.Name([]))
            .issuer_name(self.certificate.subject)
            .public_key(public_key.native)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - CLOCK_SKEW)
            .not_valid_after(min(now + lifetime, self.certificate.not_valid_after_utc))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(ca=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(_EKU[role]), critical=True)
            .add_extension(
                x509.SubjectAlternativeName([x509.UniformResourceIdentifier(str(spiffe))]),
                critical=True,
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.native.public_key()),
                critical=False,
            )
            .sign(self.key.native, hashes.SHA256())
        )


def check_leaf(
    certificate: x509.Certificate, ca: x509.Certificate, role: Role, now: datetime
) -> SpiffeId:
    """Check a leaf against the job CA for one role; returns its identity.

    Checks signature, validity at `now`, that it is no CA, key usage, exactly the role's EKU, and
    exactly one SPIFFE id of that role.

    Raises:
        IdentityError: ST-IDEN-005 or ST-IDEN-006.
    """
    try:
        certificate.verify_directly_issued_by(ca)
        constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
        usage = certificate.extensions.get_extension_for_class(x509.KeyUsage).value
        extended = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except Exception as error:  # cryptography raises many types here; any of them is a refusal
        raise IdentityError(
            "ST-IDEN-005",
            f"not issued by the job CA, or incomplete: {type(error).__name__} {error}",
            fix="enroll this node with the CA of this job",
        ) from error
    if not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc:
        raise IdentityError(
            "ST-IDEN-005",
            f"valid from {certificate.not_valid_before_utc} to {certificate.not_valid_after_utc},"
            f" and it is {now}",
        )
    if constraints.ca or usage.key_cert_sign or not usage.digital_signature:
        raise IdentityError("ST-IDEN-005", "not an end-entity certificate for signatures")
    if list(extended) != _EKU[role]:
        raise IdentityError("ST-IDEN-005", f"not a certificate for the role {role}")
    spiffe = SpiffeId.of_certificate(certificate)
    if spiffe.role is not role:
        raise IdentityError("ST-IDEN-006", f"{spiffe} is not a {role}")
    return spiffe


def public_key_of(certificate: x509.Certificate) -> PublicKey:
    """The key that a certificate is about.

    Raises:
        IdentityError: ST-IDEN-001 when it is neither Ed25519 nor P-256.
    """
    return PublicKey.from_spki(
        certificate.public_key().public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )


def ca_name(text: str) -> x509.Name:
    """The subject of a CA; its identity is its key, not this."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def ca_builder(
    name: x509.Name,
    key: PublicKey,
    now: datetime,
    *,
    path_length: int,
    ends: datetime,
    issuer: x509.Name,
) -> x509.CertificateBuilder:
    """Start a CA certificate with what all of ours have; `now` is timezone-aware."""
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer)
        .public_key(key.native)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(ends)
        .add_extension(x509.BasicConstraints(ca=True, path_length=path_length), critical=True)
        .add_extension(_key_usage(ca=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.native), critical=False)
    )


def certificate_pem(certificate: x509.Certificate) -> bytes:
    """PEM bytes."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def load_certificate(pem: bytes, where: str = "") -> x509.Certificate:
    """Parse exactly one PEM certificate.

    Raises:
        IdentityError: ST-IDEN-005.
    """
    try:
        (certificate,) = x509.load_pem_x509_certificates(pem)
    except (ValueError, x509.InvalidVersion) as error:
        raise IdentityError("ST-IDEN-005", f"not one certificate: {error}", where) from error
    return certificate


def _key_usage(*, ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=ca,
        crl_sign=ca,
        encipher_only=False,
        decipher_only=False,
    )
