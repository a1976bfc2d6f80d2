# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Keyless signatures: Sigstore bundles, verified offline by sigstore-python (extra ``[sigstore]``).

The chain, the certificate's own log, the transparency log and the times are sigstore-python's to
judge. What is ours is whom to trust, in order:

1. a bundle is at most 32 MiB; the package is imported only when one is verified;
2. the trusted root is a file that a person names, bytes that a trust root carries, or the one that
   the package carries for the public instance. Nothing is fetched, ever;
3. the identity is one name and one issuer, both given, both compared whole. The certificate carries
   exactly that one name; where it names its issuer in both the old and the new extension, both are
   it. There is no way to ask for "anybody";
4. a DSSE payload is returned with its type checked, and only then parsed.

What sigstore-python does not look at: witnesses of the log, and whether it is consistent with what
was seen before. Logs of our own have both (`identity.log`).
"""

import hashlib
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from securetrain.core import install_hint
from securetrain.core.errors import IdentityError, UsageError
from securetrain.core.files import read_file
from securetrain.identity import dsse

BUNDLE_LIMIT: Final = 32 << 20
TRUSTED_ROOT_LIMIT: Final = 4 << 20
_PUBLIC_INSTANCE: Final = "https%3A%2F%2Ftuf-repo-cdn.sigstore.dev"
_ISSUER_V2: Final = x509.ObjectIdentifier("1.3.6.1.4.1.57264.1.8")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeylessPolicy:
    """The signer that is required."""

    identity: str
    """The certificate's one name: a URI or an e-mail address, in full."""
    issuer: str
    """The OIDC issuer that vouched for it: its URL, in full."""

    def __post_init__(self) -> None:
        for name, value in (("identity", self.identity), ("issuer", self.issuer)):
            if not value or len(value) > 2048 or not value.isprintable():
                raise UsageError(
                    "ST-USAG-001",
                    f"the {name} of a keyless signature must be given in full",
                    fix=f"give the exact {name}; patterns are not known",
                )

    def verify(self, certificate: x509.Certificate) -> None:
        """Check a certificate whose chain was judged; what sigstore-python calls a policy.

        Raises:
            IdentityError: ST-IDEN-022.
        """
        from sigstore.errors import VerificationError  # noqa: PLC0415 - an extra
        from sigstore.verify.policy import Identity  # noqa: PLC0415 - an extra

        try:
            names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
            Identity(identity=self.identity, issuer=self.issuer).verify(certificate)
        except (VerificationError, x509.ExtensionNotFound, ValueError) as error:
            raise _stranger(f"not {self.identity} of {self.issuer}: {error}") from error
        if len(list(names.value)) != 1:
            raise _stranger(f"the certificate carries {len(list(names.value))} names, not one")
        for extension in certificate.extensions:
            if extension.oid == _ISSUER_V2 and self.issuer.encode() != _utf8(extension.value):
                raise _stranger("the certificate names another issuer in its newer extension")


@dataclass(frozen=True, slots=True, kw_only=True)
class Keyless:
    """The proof in a keyless bundle."""

    payload: dsse.VerifiedPayload
    """Its key id is that of the certificate's key, which lived for minutes."""
    identity: str
    issuer: str


def verify_dsse(
    bundle: bytes,
    payload_type: str,
    policy: KeylessPolicy,
    trusted_root: Path | bytes | None = None,
    where: str = "",
) -> Keyless:
    """Verify a bundle around a DSSE envelope.

    Args:
        bundle: the bundle's JSON.
        payload_type: the only one that is accepted.
        policy: who must have signed.
        trusted_root: the instance's trusted root, or its file; None for the public one, as the
            package has it.
        where: for the refusal.

    Raises:
        IdentityError: ST-IDEN-020 malformed, ST-IDEN-021 it does not verify, ST-IDEN-022 by
            somebody else, ST-IDEN-004 another payload type.
        UsageError: ST-USAG-004 without the extra, ST-USAG-002 for the trusted root's file.
    """
    verifier, parsed = _prepare(bundle, trusted_root, where)
    try:
        found_type, payload = verifier.verify_dsse(parsed, policy)
        key_id = _key_id(parsed.signing_certificate)
    except IdentityError as error:
        raise IdentityError(error.code, error.what, where, error.fix) from error
    except Exception as error:  # sigstore and what it uses raise many types; all are refusals
        raise _unverified(error, where) from error
    if found_type != payload_type:
        raise IdentityError(
            "ST-IDEN-004", f"payload type {found_type!r}, expected {payload_type!r}", where
        )
    return Keyless(
        payload=dsse.VerifiedPayload(payload, found_type, frozenset({key_id})),
        identity=policy.identity,
        issuer=policy.issuer,
    )


def verify_bytes(
    bundle: bytes,
    data: bytes,
    policy: KeylessPolicy,
    trusted_root: Path | bytes | None = None,
    where: str = "",
) -> str:
    """Verify a bundle around a signature over bytes; returns the id of the certificate's key.

    Raises:
        IdentityError: ST-IDEN-020, ST-IDEN-021, ST-IDEN-022.
        UsageError: ST-USAG-004, ST-USAG-002.
    """
    verifier, parsed = _prepare(bundle, trusted_root, where)
    try:
        verifier.verify_artifact(data, parsed, policy)
        return _key_id(parsed.signing_certificate)
    except IdentityError as error:
        raise IdentityError(error.code, error.what, where, error.fix) from error
    except Exception as error:  # sigstore and what it uses raise many types; all are refusals
        raise _unverified(error, where) from error


def claimed_name(bundle: bytes, where: str = "") -> str:
    """The one name of a bundle's certificate, before anything was verified.

    Raises:
        IdentityError: ST-IDEN-020 malformed, ST-IDEN-022 not exactly one name.
        UsageError: ST-USAG-004 without the extra.
    """
    certificate = _parsed(bundle, where).signing_certificate
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except (x509.ExtensionNotFound, ValueError) as error:
        raise _malformed(f"the certificate carries no name: {error}", where) from error
    names = [str(name.value) for name in found.value]
    if len(names) != 1:
        raise IdentityError(
            "ST-IDEN-022", f"the certificate carries {len(names)} names, not one", where
        )
    return names[0]


def public_root() -> bytes:
    """The public instance's trusted root, as the installed package carries it.

    Raises:
        UsageError: ST-USAG-004 without the extra.
    """
    _need("")
    return read_file(_public_root(), TRUSTED_ROOT_LIMIT)


def _need(where: str) -> None:
    try:
        import sigstore.models  # noqa: F401, PLC0415 - an extra
    except ImportError as error:
        raise UsageError(
            "ST-USAG-004",
            f"keyless signatures need the package sigstore: {error}",
            where,
            install_hint("sigstore"),
        ) from error


def _prepare(bundle: bytes, trusted_root: Path | bytes | None, where: str) -> tuple[Any, Any]:
    """A verifier that fetches nothing, and the bundle, of which nothing is verified yet."""
    _check_size(bundle, where)
    _need(where)
    from sigstore.models import TrustedRoot  # noqa: PLC0415 - an extra
    from sigstore.verify import Verifier  # noqa: PLC0415 - an extra
    from sigstore_models.trustroot import v1  # noqa: PLC0415 - an extra

    path = _public_root() if trusted_root is None else trusted_root
    data = path if isinstance(path, bytes) else read_file(path, TRUSTED_ROOT_LIMIT)
    try:
        verifier = Verifier(trusted_root=TrustedRoot(v1.TrustedRoot.from_json(data)))
    except Exception as error:  # sigstore and what it uses raise many types; all are refusals
        raise IdentityError(
            "ST-IDEN-021",
            f"the trusted root cannot be used: {type(error).__name__} {error}"[:500],
            where if isinstance(path, bytes) else str(path),
            "give the trusted_root.json of the Sigstore instance",
        ) from error
    return verifier, _parsed(bundle, where)


def _check_size(bundle: bytes, where: str) -> None:
    if len(bundle) > BUNDLE_LIMIT:
        raise _malformed(f"{len(bundle)} bytes, the limit is {BUNDLE_LIMIT}", where)


def _parsed(bundle: bytes, where: str) -> Any:
    _check_size(bundle, where)
    _need(where)
    from sigstore.models import Bundle  # noqa: PLC0415 - an extra

    try:
        return Bundle.from_json(bundle)
    except Exception as error:  # sigstore and what it uses raise many types; all are refusals
        raise _malformed(f"{type(error).__name__} {error}"[:500], where) from error


def _public_root() -> Path:
    """The public instance's trusted root, as the installed package carries it.

    ``Verifier.production(offline=True)`` would prefer a cache in the user's home.
    """
    package = Path(str(resources.files("sigstore")))
    return package / "_store" / _PUBLIC_INSTANCE / "trusted_root.json"


def _key_id(certificate: x509.Certificate) -> str:
    spki = certificate.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return hashlib.sha256(spki).hexdigest()


def _utf8(value: x509.ExtensionType) -> bytes:
    """The bytes of a DER UTF8String shorter than 128 or 256 bytes; empty for anything else."""
    data = value.value if isinstance(value, x509.UnrecognizedExtension) else b""
    if len(data) >= 2 and data[0] == 0x0C and data[1] == len(data) - 2 < 128:
        return data[2:]
    if len(data) >= 3 and data[:2] == b"\x0c\x81" and data[2] == len(data) - 3:
        return data[3:]
    return b""


def _unverified(error: Exception, where: str) -> IdentityError:
    return IdentityError("ST-IDEN-021", f"{type(error).__name__}: {error}"[:500], where)


def _stranger(what: str) -> IdentityError:
    return IdentityError("ST-IDEN-022", what[:500])


def _malformed(what: str, where: str) -> IdentityError:
    return IdentityError("ST-IDEN-020", what, where)
