# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The signer of a reference value: a chain of certificates to a pinned root of NVIDIA's.

Rules, in order:

1. two to `MAX_CHAIN` certificates, leaf first, root last;
2. the last one's SubjectPublicKeyInfo is pinned, and it is signed by its own key: what it says
   besides its key (name, constraints, dates) is then its owner's word;
3. every key is on P-384 and every signature ECDSA with SHA-384: the algorithms are the rule's;
4. the leaf is no CA and may make signatures;
5. OpenSSL builds and verifies the path (`identity.path_search`, without a time: signatures, names,
   key identifiers, basic constraints, path lengths, key usages, critical extensions) and it is the
   chain that was given;
6. where a status lookup is given, no certificate below the root is revoked, on hold or unknown.

Time is left to the caller, who must tell "expired" from everything else: `Chain` says when all of
its certificates are valid at once.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import SignatureAlgorithmOID
from OpenSSL import crypto

from securetrain.core.errors import AttestationError
from securetrain.evidence.gpu.certificates import CertificateStatus, StatusLookup
from securetrain.identity import path_search, paths

MAX_CHAIN: Final = 6

_UNTRUSTED: Final = "ST-ATTS-705"


@dataclass(frozen=True, slots=True)
class Chain:
    """A verified chain, leaf first, root last."""

    certificates: tuple[x509.Certificate, ...]
    key: ec.EllipticCurvePublicKey
    """The leaf's."""

    @property
    def valid_from(self) -> datetime:
        """The moment when the last of them became valid."""
        return max(certificate.not_valid_before_utc for certificate in self.certificates)

    @property
    def valid_until(self) -> datetime:
        """The moment when the first of them ends."""
        return min(certificate.not_valid_after_utc for certificate in self.certificates)


def verify_chain(chain: Sequence[bytes], roots: Collection[str], where: str) -> Chain:
    """Verify a chain, but for its validity in time and revocation.

    Args:
        chain: DER, leaf first, root last.
        roots: SPKI pins (SHA-256, hex) of the roots.
        where: names what the leaf signed in errors.

    Raises:
        AttestationError: ST-ATTS-705.
    """
    if not 2 <= len(chain) <= MAX_CHAIN:
        raise _untrusted(f"{len(chain)} certificates, expected 2 to {MAX_CHAIN}", where)
    try:
        loaded = [x509.load_der_x509_certificate(der) for der in chain]
        _check_root(loaded[-1], roots, where)
        keys = [_key(certificate, where) for certificate in loaded]
        _check_leaf(loaded[0], where)
        _check_path(loaded, where)
    except (crypto.Error, *paths.UNREADABLE) as error:
        raise _untrusted(f"a certificate that cannot be read: {error}", where) from error
    return Chain(tuple(loaded), keys[0])


def check_revocation(
    certificates: Sequence[x509.Certificate], status: StatusLookup, where: str
) -> None:
    """Ask about every certificate of a verified chain but the root.

    Raises:
        AttestationError: ST-ATTS-719 revoked, ST-ATTS-720 on hold, ST-ATTS-721 unknown; and what
            the lookup refuses by itself.
    """
    for certificate, issuer in pairwise(certificates):
        found = status(certificate, issuer)
        what = f"{_name(certificate)} is {found}"
        match found:
            case CertificateStatus.GOOD:
                pass
            case CertificateStatus.REVOKED:
                raise AttestationError("ST-ATTS-719", what, where)
            case CertificateStatus.HOLD:
                raise AttestationError("ST-ATTS-720", what, where)
            case CertificateStatus.UNKNOWN:
                raise AttestationError("ST-ATTS-721", what, where)
            case _:
                raise ValueError(f"unknown status {found!r}")


def _check_root(root: x509.Certificate, roots: Collection[str], where: str) -> None:
    pin = paths.spki_sha256(root)
    if pin not in roots:
        raise _untrusted(f"it ends at {_name(root)} with key {pin}, which is not pinned", where)


def _key(certificate: x509.Certificate, where: str) -> ec.EllipticCurvePublicKey:
    key = certificate.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP384R1):
        raise _untrusted(f"{_name(certificate)} has a key that is not on P-384", where)
    if certificate.signature_algorithm_oid != SignatureAlgorithmOID.ECDSA_WITH_SHA384:
        raise _untrusted(f"{_name(certificate)} is not signed with ECDSA and SHA-384", where)
    return key


def _check_leaf(leaf: x509.Certificate, where: str) -> None:
    try:
        constraints = leaf.extensions.get_extension_for_class(x509.BasicConstraints).value
        usage = leaf.extensions.get_extension_for_class(x509.KeyUsage).value
    except x509.ExtensionNotFound as error:
        raise _untrusted(f"{_name(leaf)}: {error}", where) from error
    if constraints.ca or not usage.digital_signature:
        raise _untrusted(f"{_name(leaf)} is a CA or may not make signatures", where)


def _check_path(chain: Sequence[x509.Certificate], where: str) -> None:
    leaf, *intermediates, root = (crypto.X509.from_cryptography(c) for c in chain)
    try:
        path = path_search.openssl_path(leaf, intermediates, [root], now=None)
    except paths.BadPathError as bad:
        raise _untrusted(f"no path to the root: {bad.what}", where) from bad
    if [certificate.to_cryptography() for certificate in path] != list(chain):
        raise _untrusted("the certificates are not one chain in its order", where)


def _name(certificate: x509.Certificate) -> str:
    return repr(certificate.subject.rfc4514_string())


def _untrusted(what: str, where: str) -> AttestationError:
    return AttestationError(_UNTRUSTED, what, where)
