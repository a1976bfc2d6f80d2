# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The signer of a model: a known key, or a certificate that leads to a known root.

Model Signing knows ECDSA on P-256, P-384 and P-521, each with its own SHA-2. Rules for
certificates, in order:

1. the chain leads to one of the given roots **now**: there is no trusted time in a bundle of this
   kind, so an expired certificate proves nothing any more; a certificate that signed itself counts
   when it is one of the roots;
2. the signer's certificate may make signatures and may not issue certificates, and is for signing
   code where it says what it is for. Many tools mark every certificate as an authority's: that of
   a signer is one when its key usage lets it sign certificates too.
"""

import hashlib
from collections.abc import Sequence
from datetime import datetime
from typing import Final, TypeAlias

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from securetrain.artifacts.model.oms.manifest import malformed
from securetrain.core.errors import IntegrityError
from securetrain.identity import paths
from securetrain.identity.dsse import IN_TOTO

PublicKey: TypeAlias = ec.EllipticCurvePublicKey
PrivateKey: TypeAlias = ec.EllipticCurvePrivateKey

CODE_SIGNING: Final = ExtendedKeyUsageOID.CODE_SIGNING

_HASHES: Final[dict[str, hashes.HashAlgorithm]] = {
    "secp256r1": hashes.SHA256(),
    "secp384r1": hashes.SHA384(),
    "secp521r1": hashes.SHA512(),
}


def load_public(pem: bytes, where: str) -> PublicKey:
    """A public key in PEM.

    Raises:
        IntegrityError: ST-OMSB-120 when Model Signing does not know its kind.
    """
    try:
        return _known(serialization.load_pem_public_key(pem))
    except (ValueError, UnsupportedAlgorithm) as error:
        raise _untrusted(f"not a key for Model Signing: {error}", where) from error


def load_private(pem: bytes, passphrase: bytes | None, where: str) -> PrivateKey:
    """A private key in PEM.

    Raises:
        IntegrityError: ST-OMSB-120 when Model Signing does not know its kind.
    """
    try:
        key = serialization.load_pem_private_key(pem, passphrase)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise TypeError(
                "not an ECDSA key (securetrain key generate --kind ecdsa-p256 makes one)"
            )
        _known(key.public_key())
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise _untrusted(f"not a key for Model Signing: {error}", where) from error
    return key


def load_certificates(pem: bytes, where: str) -> list[x509.Certificate]:
    """Certificates in PEM, at least one.

    Raises:
        IntegrityError: ST-OMSB-120 when it is anything else.
    """
    try:
        return x509.load_pem_x509_certificates(pem)
    except (ValueError, x509.InvalidVersion) as error:
        raise IntegrityError(
            "ST-OMSB-120", f"not certificates: {error}", where, "give PEM certificates"
        ) from error


def hint_of(key: PublicKey) -> str:
    """The name of a key in a bundle: SHA-256 of its PEM, hex."""
    pem = key.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return hashlib.sha256(pem).hexdigest()


def sign(key: PrivateKey, data: bytes) -> bytes:
    """A signature in DER."""
    return key.sign(data, ec.ECDSA(_HASHES[key.curve.name]))


def verify(key: PublicKey, signature: bytes, data: bytes, where: str) -> None:
    """Check a signature.

    Raises:
        IntegrityError: ST-OMSB-110.
    """
    try:
        key.verify(signature, data, ec.ECDSA(_HASHES[key.curve.name]))
    except InvalidSignature as error:
        raise IntegrityError("ST-OMSB-110", "the signature does not verify", where) from error


def verify_old(key: PublicKey, signature: bytes, payload: bytes, *, certified: bool) -> bool:
    """Tell whether release 0.2 of the reference implementation has signed a payload.

    It spelled the payload as Python text, and hashed for every certificate with SHA-256.
    """
    spelled = f"DSSEV1 {len(IN_TOTO)} {IN_TOTO} {len(payload)} {payload!r}".encode()
    algorithm = hashes.SHA256() if certified else _HASHES[key.curve.name]
    try:
        key.verify(signature, spelled, ec.ECDSA(algorithm))
    except InvalidSignature:
        return False
    return True


def check_raw(key: PublicKey, raw: bytes, where: str) -> None:
    """Refuse a bundle of a release before 1.1 that holds another key.

    Raises:
        IntegrityError: ST-OMSB-120.
    """
    subject = serialization.PublicFormat.SubjectPublicKeyInfo
    pem = key.public_bytes(serialization.Encoding.PEM, subject)
    der = key.public_bytes(serialization.Encoding.DER, subject)
    if raw and raw.strip() not in {pem.strip(), der.strip()}:
        raise _untrusted(f"signed by another key than {hint_of(key)[:16]}", where)


def check_hint(key: PublicKey, hint: str, where: str) -> None:
    """Refuse a bundle that names another key.

    Raises:
        IntegrityError: ST-OMSB-120.
    """
    if hint and hint != hint_of(key):
        raise _untrusted(f"signed by key {hint[:16]}, not by {hint_of(key)[:16]}", where)


def check_chain(
    chain: Sequence[bytes], roots: Sequence[x509.Certificate], now: datetime, where: str
) -> tuple[PublicKey, x509.Certificate]:
    """Rules 1 and 2; the signer's key and certificate.

    Args:
        chain: DER, the signer's first.
        roots: the trusted keys and authorities.
        now: the time of the check, with a time zone.
        where: for the refusal.

    Raises:
        IntegrityError: ST-OMSB-101 not certificates, ST-OMSB-120 untrusted or not for signing,
            ST-OMSB-150 expired or not yet valid.
    """
    try:
        leaf, *between = (x509.load_der_x509_certificate(der) for der in chain)
    except (ValueError, x509.InvalidVersion) as error:
        raise malformed(f"not a certificate: {error}", where) from error
    if not leaf.not_valid_before_utc <= now <= leaf.not_valid_after_utc:
        raise IntegrityError(
            "ST-OMSB-150",
            f"the signer's certificate is valid from {leaf.not_valid_before_utc} to"
            f" {leaf.not_valid_after_utc}, now {now}",
            where,
        )
    _check_purpose(leaf, where)
    _check_path(leaf, between, roots, now, where)
    try:
        return _known(leaf.public_key()), leaf
    except (ValueError, UnsupportedAlgorithm) as error:
        raise _untrusted(f"not a key for Model Signing: {error}", where) from error


def _check_path(
    leaf: x509.Certificate,
    between: Sequence[x509.Certificate],
    roots: Sequence[x509.Certificate],
    now: datetime,
    where: str,
) -> None:
    from OpenSSL import crypto  # noqa: PLC0415 - keys come without certificates

    from securetrain.identity import path_search  # noqa: PLC0415 - as above

    try:
        path_search.openssl_path(
            crypto.X509.from_cryptography(leaf),
            [crypto.X509.from_cryptography(one) for one in between],
            [crypto.X509.from_cryptography(root) for root in roots],
            now=now,
        )
    except paths.BadPathError as bad:
        raise _untrusted(
            f"the signer's certificate leads to no given root: {bad.what}", where
        ) from bad


def _check_purpose(leaf: x509.Certificate, where: str) -> None:
    """Rule 2."""
    try:
        extensions = leaf.extensions
        usage = extensions.get_extension_for_class(x509.KeyUsage).value
    except (ValueError, x509.ExtensionNotFound) as error:
        what = f"the signer's certificate does not say its use: {error}"
        raise _untrusted(what, where) from error
    values = [extension.value for extension in extensions]
    is_marked = any(isinstance(value, x509.BasicConstraints) and value.ca for value in values)
    if is_marked and usage.key_cert_sign:
        raise _untrusted("the signer's certificate is an authority's", where)
    purposes = [value for value in values if isinstance(value, x509.ExtendedKeyUsage)]
    if not usage.digital_signature or any(CODE_SIGNING not in one for one in purposes):
        raise _untrusted("the signer's certificate is not for signing", where)


def _known(key: object) -> PublicKey:
    if isinstance(key, ec.EllipticCurvePublicKey) and key.curve.name in _HASHES:
        return key
    raise ValueError("neither P-256, P-384 nor P-521")


def _untrusted(what: str, where: str) -> IntegrityError:
    return IntegrityError("ST-OMSB-120", what, where)
