# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Certificate paths of Google's: of attestation keys, and of the signers of launch endorsements.

Rules: a path that OpenSSL finds and verifies leads to a pinned certificate (`path_search`), at an
explicit time; every link is as strong as `path_search.weigh` asks; the leaf is no CA, and the only
use of its key that it names is signing.
"""

import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.x509.oid import ExtensionOID, SignatureAlgorithmOID
from OpenSSL import crypto

from securetrain.core.errors import AttestationError
from securetrain.identity import path_search, paths

CERTIFICATE_LIMIT: Final = 8 << 10
MAX_PINNED: Final = 16
_PEM: Final = re.compile(rb"-----BEGIN CERTIFICATE-----[A-Za-z0-9+/=\s]+-----END CERTIFICATE-----")
_STRONG: Final = (hashes.SHA256, hashes.SHA384, hashes.SHA512)
_UNDERSTOOD: Final = frozenset(
    {
        ExtensionOID.BASIC_CONSTRAINTS,
        ExtensionOID.KEY_USAGE,
        ExtensionOID.EXTENDED_KEY_USAGE,
        # Of older attestation keys: the TPM's maker and model, which no rule here asks for.
        ExtensionOID.SUBJECT_ALTERNATIVE_NAME,
    }
)


def load(data: bytes, code: str, where: str) -> crypto.X509:
    """One certificate, DER, and nothing behind it.

    Raises:
        AttestationError: `code`.
    """
    if len(data) > CERTIFICATE_LIMIT:
        raise AttestationError(code, f"{len(data)} bytes, limit {CERTIFICATE_LIMIT}", where)
    try:
        loaded = crypto.load_certificate(crypto.FILETYPE_ASN1, data)
    except crypto.Error as error:
        raise AttestationError(code, f"not a certificate: {error}", where) from error
    if path_search.encoded(loaded) != data:
        raise AttestationError(code, "other bytes follow the certificate, or it is no DER", where)
    return loaded


def certificates_of(
    data: bytes, code: str, where: str, limit: int = MAX_PINNED
) -> list[crypto.X509]:
    """The certificates of a PEM text, at least one.

    Raises:
        AttestationError: `code`.
    """
    found = _PEM.findall(data)
    if not 0 < len(found) <= limit:
        raise AttestationError(code, f"{len(found)} PEM certificates, 1 to {limit} fit", where)
    try:
        return [crypto.load_certificate(crypto.FILETYPE_PEM, pem) for pem in found]
    except crypto.Error as error:
        raise AttestationError(code, f"not a certificate: {error}", where) from error


def pinned(texts: Iterable[str], field: str) -> list[crypto.X509]:
    """Certificates that reference values pin.

    Raises:
        AttestationError: ST-ATTS-009.
    """
    return [
        one
        for number, text in enumerate(texts)
        for one in certificates_of(text.encode(), "ST-ATTS-009", f"google.{field}[{number}]")
    ]


def check_signer(leaf: crypto.X509, code: str, where: str) -> x509.Certificate:
    """Judge what a leaf says about itself; gives it, read.

    Raises:
        AttestationError: `code`.
    """
    try:
        with paths.no_warnings():
            read = x509.load_der_x509_certificate(path_search.encoded(leaf))
            found = {extension.oid: extension for extension in read.extensions}
    except paths.UNREADABLE as error:
        raise AttestationError(code, f"not a certificate: {error}", where) from error
    unknown = [
        oid.dotted_string for oid, e in found.items() if e.critical and oid not in _UNDERSTOOD
    ]
    if unknown:
        raise AttestationError(code, f"unknown critical extensions {unknown}", where)
    basic = found.get(ExtensionOID.BASIC_CONSTRAINTS)
    usage = found.get(ExtensionOID.KEY_USAGE)
    if basic is not None and isinstance(basic.value, x509.BasicConstraints) and basic.value.ca:
        raise AttestationError(code, "it is a CA's certificate", where)
    uses = usage.value if usage is not None else None
    if not isinstance(uses, x509.KeyUsage) or not uses.digital_signature or uses.key_cert_sign:
        raise AttestationError(code, "its key usage is not digitalSignature", where)
    if uses.key_encipherment or uses.key_agreement:
        raise AttestationError(code, "its key may be used to encrypt", where)
    return read


def find_path(
    leaf: crypto.X509,
    between: Sequence[crypto.X509],
    roots: Sequence[crypto.X509],
    now: datetime,
    *,
    code: str,
    where: str,
) -> Sequence[crypto.X509]:
    """The path from a leaf to a pinned certificate.

    Raises:
        AttestationError: `code`.
    """
    if not roots:
        raise AttestationError(code, "no root is pinned", where)
    try:
        return path_search.Anchors(roots).find(leaf, between, now)
    except paths.BadPathError as bad:
        what = f"no path to a pinned root: {bad.what}"
        raise AttestationError(code, f"{what} (certificate {bad.position})", where) from bad


def validity_of(path: Sequence[crypto.X509], code: str, where: str) -> path_search.Validity:
    """The span in which all certificates of a path are good, each of which is strong enough.

    Raises:
        AttestationError: `code`.
    """
    last = len(path) - 1
    try:
        times = [
            # Google signs its signers' certificates under RSASSA-PSS, which says its hash apart.
            path_search.weigh(one, n, is_root=n == last or _is_strong_pss(one))
            for n, one in enumerate(path)
        ]
    except paths.BadPathError as bad:
        raise AttestationError(code, f"{bad.what} (certificate {bad.position})", where) from bad
    return path_search.Validity(max(t.begins for t in times), min(t.ends for t in times))


def _is_strong_pss(certificate: crypto.X509) -> bool:
    """Tell a certificate that is signed under RSASSA-PSS over SHA-256 or better."""
    try:
        with paths.no_warnings():
            read = certificate.to_cryptography()
            strong = isinstance(read.signature_hash_algorithm, _STRONG)
    except paths.UNREADABLE:
        return False  # `path_search.weigh` says what it is
    return strong and read.signature_algorithm_oid == SignatureAlgorithmOID.RSASSA_PSS
