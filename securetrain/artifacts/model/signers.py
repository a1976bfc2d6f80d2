# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The signer of a Model Signing bundle, and what a verifier trusts: a key, roots, an identity.

A key never verifies a bundle of certificates, nor the other way round. A signature is over DSSE's
pre-authentication encoding. Release 0.2 of the reference implementation had one of its own; a
bundle that was signed over that one is told apart (`Signed.is_old`), and counts for a statement of
that release only.

The signer of a model: a known key, or a certificate that leads to a known root.

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
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID

from securetrain.artifacts.model import bundle as bundle_file
from securetrain.artifacts.model.manifest import malformed
from securetrain.core.errors import IdentityError, IntegrityError, UsageError
from securetrain.core.files import read_file
from securetrain.identity import paths
from securetrain.identity.dsse import IN_TOTO, pae
from securetrain.identity.keys import EnvelopeSigner, Signer, is_encrypted, read_private

if TYPE_CHECKING:
    from securetrain.identity import Ask, KeylessPolicy


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


KEY_LIMIT: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class HeldKey:
    """A key that another program or device holds, such as a token's."""

    signer: Signer
    public: PublicKey

    @classmethod
    def of(cls, signer: Signer, where: str) -> "HeldKey":
        """Wrap a signer.

        Raises:
            IntegrityError: ST-OMSB-120 when Model Signing does not know its kind.
        """
        native = signer.public.native
        if not isinstance(native, ec.EllipticCurvePublicKey):
            raise IntegrityError(
                "ST-OMSB-120", "not an ECDSA key, and the format knows no other", where,
                "make an ECDSA P-256 key in the token",
            )  # fmt: skip
        return cls(signer, native)


SigningKey: TypeAlias = PrivateKey | HeldKey


def _public(key: SigningKey) -> PublicKey:
    return key.public if isinstance(key, HeldKey) else key.public_key()


def _sign(key: SigningKey, data: bytes) -> bytes:
    return key.signer.sign(data) if isinstance(key, HeldKey) else sign(key, data)


@dataclass(frozen=True, slots=True, kw_only=True)
class Signed:
    """The proof of a signature."""

    by: str
    """Who signed, in words."""
    is_old: bool = False
    """Over the encoding of release 0.2, which only its own statements may be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySigner:
    """Signs with a bare key."""

    key: SigningKey

    def wrap(self, payload: bytes) -> bytes:
        """The bundle."""
        signature = _sign(self.key, pae(IN_TOTO, payload))
        return bundle_file.write(payload, signature, hint=hint_of(_public(self.key)))


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateSigner:
    """Signs with a key whose certificate travels along."""

    key: SigningKey
    chain: tuple[x509.Certificate, ...]
    """The signer's first, then what leads to the root; the root itself may be left out."""

    def wrap(self, payload: bytes) -> bytes:
        """The bundle.

        Raises:
            IntegrityError: ST-OMSB-120 when the certificate is not of this key.
        """
        if not self.chain or self.chain[0].public_key() != _public(self.key):
            raise IntegrityError(
                "ST-OMSB-120", "the certificate is not of this key", "", "give the key's own"
            )
        signature = _sign(self.key, pae(IN_TOTO, payload))
        der = tuple(one.public_bytes(Encoding.DER) for one in self.chain)
        return bundle_file.write(payload, signature, chain=der)


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentitySigner:
    """Signs by an identity, for which a Sigstore instance vouches."""

    signer: EnvelopeSigner

    def wrap(self, payload: bytes) -> bytes:
        """The bundle.

        Raises:
            IdentityError: ST-IDEN-026.
        """
        return self.signer.sign_envelope(payload, IN_TOTO)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustedKey:
    """A verifier's root: one key."""

    key: PublicKey

    def unwrap(self, bundle: bundle_file.Bundle, now: datetime, where: str) -> Signed:
        """Judge the material and the signature.

        Raises:
            IntegrityError: ST-OMSB-110, ST-OMSB-120.
        """
        del now
        if bundle.hint is None:
            raise _other_kind("a key", where)
        check_hint(self.key, bundle.hint, where)
        check_raw(self.key, bundle.raw_key, where)
        is_old = _check(self.key, bundle, where)
        return Signed(by=f"key {hint_of(self.key)[:16]}", is_old=is_old)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustedRoots:
    """A verifier's root: certificates of authorities."""

    roots: tuple[x509.Certificate, ...]

    def unwrap(self, bundle: bundle_file.Bundle, now: datetime, where: str) -> Signed:
        """Judge the material and the signature.

        Raises:
            IntegrityError: ST-OMSB-101, ST-OMSB-110, ST-OMSB-120, ST-OMSB-150.
        """
        if not bundle.chain:
            raise _other_kind("certificates", where)
        key, leaf = check_chain(bundle.chain, self.roots, now, where)
        is_old = _check(key, bundle, where)
        return Signed(
            by=f"certificate {leaf.subject.rfc4514_string() or '(no subject)'}", is_old=is_old
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustedIdentity:
    """A verifier's root: who signed, as a Sigstore instance vouches for it (keyless)."""

    policy: "KeylessPolicy"
    trusted_root: Path | None = None
    """The instance's trusted root; None for the public one."""

    def unwrap(self, bundle: bundle_file.Bundle, now: datetime, where: str) -> Signed:
        """Judge the material and the signature. Nothing is fetched.

        Raises:
            IntegrityError: ST-OMSB-110, ST-OMSB-120.
            UsageError: ST-USAG-004 without the extra ``[sigstore]``.
        """
        del now  # a log says when it was signed
        if not bundle.is_keyless:
            raise _other_kind("an identity", where)
        from securetrain.identity import verify_dsse  # noqa: PLC0415 - keys come without sigstore

        try:
            found = verify_dsse(bundle.raw, IN_TOTO, self.policy, self.trusted_root, where)
        except IdentityError as error:
            code = "ST-OMSB-120" if error.code == "ST-IDEN-022" else "ST-OMSB-110"
            raise IntegrityError(code, f"{error.code}: {error.what}", where, error.fix) from error
        if found.payload.data != bundle.payload:
            raise IntegrityError("ST-OMSB-110", "another payload was verified", where)
        return Signed(by=f"{found.identity} (vouched for by {found.issuer})")


ModelSigner: TypeAlias = KeySigner | CertificateSigner | IdentitySigner
ModelTrust: TypeAlias = TrustedKey | TrustedRoots | TrustedIdentity


def read_signer(
    name: str, certificate: Path | None, chain: Sequence[Path], ask: "Ask"
) -> ModelSigner:
    """A signer by its key: a file, or the URI of a key that is held elsewhere, or an identity.

    With the key's certificate, it and `chain` travel along in the bundle. `ask` is called only when
    a secret is needed.

    Raises:
        IntegrityError: ST-OMSB-120 when Model Signing does not know its kind.
        IdentityError: ST-IDEN-010 for a file that others may read, ST-IDEN-019 for a token.
        UsageError: ST-USAG-002, ST-USAG-004.
    """
    key: SigningKey
    if ":" in name and not Path(name).exists():
        from securetrain.identity import open_signer  # noqa: PLC0415 - keys elsewhere only

        signer = open_signer(name, ask)
        if isinstance(signer, EnvelopeSigner):
            if certificate is not None or chain:
                raise UsageError(
                    "ST-USAG-001",
                    "a keyless signature has a certificate of its own",
                    "--certificate",
                    "leave out --certificate and --chain",
                )
            return IdentitySigner(signer=signer)
        key = HeldKey.of(signer, name.partition(":")[0])
    else:
        secret = ask(f"passphrase of {name}") if is_encrypted(Path(name)) else None
        key = load_private(read_private(Path(name)), secret, name)
    if certificate is None:
        return KeySigner(key=key)
    files = (certificate, *chain)
    found = [one for file in files for one in _certificates(file)]
    return CertificateSigner(key=key, chain=tuple(found))


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRoots:
    """Files and names that a verifier's root is read from; exactly one kind."""

    public_key: Path | None = None
    ca: Path | None = None
    identity: str | None = None
    issuer: str | None = None
    trusted_root: Path | None = None

    def read(self, where: str) -> ModelTrust:
        """The root.

        Raises:
            UsageError: ST-USAG-001 when it is not exactly one kind.
        """
        keyless = self.identity or self.issuer or self.trusted_root
        if sum(map(bool, (self.public_key, self.ca, keyless))) != 1:
            raise UsageError(
                "ST-USAG-001",
                "a Model Signing bundle is verified with one root",
                where,
                "give one of --public-key, --ca, --identity with --issuer",
            )
        if self.public_key is not None:
            pem = read_file(self.public_key, KEY_LIMIT)
            return TrustedKey(key=load_public(pem, str(self.public_key)))
        if self.ca is not None:
            return TrustedRoots(roots=tuple(_certificates(self.ca)))
        from securetrain.identity import KeylessPolicy  # noqa: PLC0415 - as above

        policy = KeylessPolicy(identity=self.identity or "", issuer=self.issuer or "")
        return TrustedIdentity(policy=policy, trusted_root=self.trusted_root)


def _check(key: PublicKey, bundle: bundle_file.Bundle, where: str) -> bool:
    """Verify the signature; whether it is one of release 0.2.

    Raises:
        IntegrityError: ST-OMSB-110.
    """
    try:
        verify(key, bundle.signature, pae(IN_TOTO, bundle.payload), where)
    except IntegrityError:
        certified = bool(bundle.chain)
        if verify_old(key, bundle.signature, bundle.payload, certified=certified):
            return True
        raise
    return False


def _certificates(file: Path) -> list[x509.Certificate]:
    return list(load_certificates(read_file(file, KEY_LIMIT), str(file)))


def _other_kind(wanted: str, where: str) -> IntegrityError:
    return IntegrityError(
        "ST-OMSB-120",
        f"the bundle was not made with {wanted}, which is what was given to verify it",
        where,
        "give what verifies this kind of bundle",
    )
