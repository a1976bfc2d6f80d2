# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Certificate paths that must be searched: OpenSSL finds and verifies them (RFC 5280, section 6).

For certificates in any order, of which some may be missing or too many, and for keys and encodings
that the profile of `paths` refuses: names of TPM makers that are not DER, the dates of NVIDIA's
manifests, keys on Edwards curves. The system's store plays no part, and its clock only where a
caller says so.
"""

import hashlib
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple, TypeAlias

from cryptography.hazmat.primitives.asymmetric import ec, rsa
from OpenSSL import crypto

from securetrain.identity import paths

MAX_DEPTH: Final = 8
"""Most certificates of a path that is searched, leaf and root included."""

# OpenSSL's x509_vfy.h: X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED.
_OUT_OF_TIME: Final = {9: "NOT_YET", 10: "EXPIRED"}
# X509_V_FLAG_NO_CHECK_TIME (no name in pyOpenSSL), _CHECK_SS_SIGNATURE and _X509_STRICT.
_STRICT_WITHOUT_TIME: Final = 0x200000 | 0x4000 | 0x20
_SIGNATURES: Final = frozenset(
    {
        *("sha256WithRSAEncryption", "sha384WithRSAEncryption", "sha512WithRSAEncryption"),
        *("ecdsa-with-SHA256", "ecdsa-with-SHA384", "ecdsa-with-SHA512"),
    }
)
"""What OpenSSL calls the signature algorithms that a search accepts."""
_MIN_RSA: Final = 2048
_MIN_EC: Final = 256

NativeKey: TypeAlias = ec.EllipticCurvePublicKey | rsa.RSAPublicKey


class Validity(NamedTuple):
    """A span of time in which something holds."""

    begins: datetime
    ends: datetime

    def covers(self, now: datetime) -> bool:
        """Tell whether it holds at `now`."""
        return self.begins <= now <= self.ends


class Anchors:
    """Pinned CAs, at which the paths of a search end, whether or not they are their own issuers."""

    def __init__(self, pinned: Iterable[crypto.X509], between: Iterable[crypto.X509] = ()) -> None:
        """Remember the certificates.

        Args:
            pinned: where paths may end.
            between: CAs that may be on them; not trusted by themselves.
        """
        self._pinned = tuple(pinned)
        self._between = tuple(between)
        self._fingerprints = frozenset(map(fingerprint, self._pinned))

    def find(
        self, leaf: crypto.X509, sent: Iterable[crypto.X509], now: datetime
    ) -> Sequence[crypto.X509]:
        """The path that OpenSSL finds and verifies, leaf first, to the nearest pinned CA.

        Raises:
            paths.BadPathError: there is none, or it is too long or out of date.
        """
        path = openssl_path(leaf, [*self._between, *sent], self._pinned, now=now, partial=True)
        # OpenSSL may go on above a pinned CA, and also takes a leaf that is pinned itself.
        ends = [n for n, one in enumerate(path) if n and fingerprint(one) in self._fingerprints]
        if not ends:
            raise paths.untrusted("no pinned root above it", 0)
        if ends[0] >= MAX_DEPTH:
            raise paths.untrusted(f"a path of {ends[0] + 1}, the limit is {MAX_DEPTH}", 0)
        return path[: ends[0] + 1]


def openssl_path(
    leaf: crypto.X509,
    between: Sequence[crypto.X509],
    roots: Iterable[crypto.X509],
    *,
    now: datetime | None,
    partial: bool = False,
) -> Sequence[crypto.X509]:
    """The path that OpenSSL finds and verifies, leaf first.

    Args:
        leaf: where it begins.
        between: what may be on it.
        roots: where it may end; the system's store plays no part.
        now: the time of the check. Without one, dates are left to the caller and the rules are
            RFC 5280's to the letter (X509_STRICT), the root's own signature included.
        partial: whether a root need not be its own issuer.

    Raises:
        paths.BadPathError: there is none.
    """
    # Made anew each time: OpenSSL does not let the time of a store be set twice.
    store = crypto.X509Store()
    for root in roots:
        store.add_cert(root)
    store.set_flags(
        (_STRICT_WITHOUT_TIME if now is None else 0)
        | (crypto.X509StoreFlags.PARTIAL_CHAIN if partial else 0)
    )
    if now is not None:
        store.set_time(now.astimezone(UTC))
    try:
        return crypto.X509StoreContext(store, leaf, between).get_verified_chain()
    except crypto.X509StoreContextError as error:
        raise _broken(error) from error


def weigh(certificate: crypto.X509, position: int, *, is_root: bool) -> Validity:
    """The validity of one certificate of a path that was found, if it is strong enough.

    A CA's key has at least 2048 (RSA) or 256 (ECC) bits, and whatever another CA vouches for is
    signed over SHA-256 or better.

    Raises:
        paths.BadPathError: it is malformed or too weak.
    """
    if position:
        key = native_key(certificate, position)
        weakest = _MIN_RSA if isinstance(key, rsa.RSAPublicKey) else _MIN_EC
        if key.key_size < weakest:
            what = f"a key of {key.key_size} bits, at least {weakest} are asked for"
            raise paths.untrusted(what, position)
    if not is_root and (algorithm := _signature_algorithm(certificate)) not in _SIGNATURES:
        raise paths.untrusted(f"is signed by {algorithm}", position)
    try:
        return Validity(_time(certificate.get_notBefore()), _time(certificate.get_notAfter()))
    except (crypto.Error, ValueError) as error:
        what = f"its validity cannot be read: {error}"
        raise paths.BadPathError(paths.Flaw.MALFORMED, what, position) from error


def native_key(certificate: crypto.X509, position: int) -> NativeKey:
    """The key that a certificate is for, RSA or ECC.

    Raises:
        paths.BadPathError: it is of another kind, or cannot be read.
    """
    try:
        key = certificate.get_pubkey().to_cryptography_key()
    except (crypto.Error, *paths.UNREADABLE) as error:
        what = f"its key cannot be read: {error}"
        raise paths.BadPathError(paths.Flaw.MALFORMED, what, position) from error
    if not isinstance(key, rsa.RSAPublicKey | ec.EllipticCurvePublicKey):
        raise paths.BadPathError(paths.Flaw.MALFORMED, "its key is neither RSA nor ECC", position)
    return key


def encoded(certificate: crypto.X509) -> bytes:
    """DER."""
    return crypto.dump_certificate(crypto.FILETYPE_ASN1, certificate)


def fingerprint(certificate: crypto.X509) -> str:
    """SHA-256 of the DER, hex."""
    return hashlib.sha256(encoded(certificate)).hexdigest()


def _broken(error: crypto.X509StoreContextError) -> paths.BadPathError:
    """The reason why OpenSSL found no path."""
    code, depth, reason = error.errors
    flaw = paths.Flaw[_OUT_OF_TIME.get(code, "UNTRUSTED")]
    if flaw is not paths.Flaw.UNTRUSTED:
        begins, ends = error.certificate.get_notBefore(), error.certificate.get_notAfter()
        reason = f"{reason}: valid from {_shown(begins)} to {_shown(ends)}"
    try:
        found = fingerprint(error.certificate)
    except crypto.Error:
        found = ""  # a certificate whose key OpenSSL could not read: it cannot write it either
    return paths.BadPathError(flaw, reason, depth, found)


def _signature_algorithm(certificate: crypto.X509) -> str:
    try:
        return certificate.get_signature_algorithm().decode("ascii", "replace")
    except ValueError:
        return "an unknown algorithm"


def _time(text: bytes | None) -> datetime:
    """GeneralizedTime, which is ISO 8601 without its T."""
    shown = _shown(text)
    return datetime.fromisoformat(f"{shown[:8]}T{shown[8:]}")


def _shown(text: bytes | None) -> str:
    return (text or b"").decode("ascii", "replace")
