# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Keys that sign files, and what they vouch for in a measurement list.

A file that bears an acceptable signature needs no digest in the runtime policy: packages that a
maker signs can be updated without a new list. Rules:

1. only keys of the signed reference values (and of the runtime policy's ``verification-keys``)
   count. A key that the kernel has loaded is never learned from the list that is being judged;
2. a signature is ``struct signature_v2_hdr``: type, version, hash, key id (u32), length (u16), big
   endian, with nothing behind it. Type 3 of version 2 signs the digest of a file, type 6 of version
   3 that of fs-verity, wrapped with its type (``struct ima_file_id``). All else is refused by name,
   SHA-1 too: two files with one SHA-1 digest can be made;
3. the hash that the header names is the one of the digest field. The signature is over that digest,
   so a signature of another file, or one that was made under another hash, does not verify;
4. a key may be good for some paths only: a signature says nothing about where a file lies;
5. a keyring that has keys here takes no others: the kernel measures what is loaded into it
   (``ima-buf``), and each key must be one of them, whatever else the runtime policy excludes.

Key ids are the last four bytes of the certificate's subject key identifier, or of the SHA-1 over
the key's bits; several keys may share one. Certificates' dates are not judged, as in the kernel:
files outlive certificates, and a key is retired by taking it out of the values.

Source: Linux ``security/integrity/integrity.h``, ``digsig_asymmetric.c``, ``ima/ima_appraise.c``;
Keylime ``keylime/ima/file_signatures.py`` for ``verification-keys``.
"""

import hashlib
import json
from base64 import b64decode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Annotated, Any, Final, TypeAlias

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.asymmetric.utils import Prehashed
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_der_public_key,
    load_pem_public_key,
)
from msgspec import Meta

from securetrain.core import canonical
from securetrain.core.errors import AttestationError, UsageError
from securetrain.evidence.tpm.path_patterns import PathPatterns

MAX_KEYS: Final = 256
KEYS_LIMIT: Final = 1 << 20
MIN_RSA_BITS: Final = 2048
DEFAULT_KEYRING: Final = ".ima"
_CURVES: Final = (ec.SECP256R1, ec.SECP384R1, ec.SECP521R1)
_UNREADABLE: Final = (ValueError, TypeError, UnsupportedAlgorithm, x509.InvalidVersion)
_HEADER: Final = Struct(">BBBIH")
_FILE: Final = (3, 2)
"""EVM_IMA_XATTR_DIGSIG: a signature of the file's digest."""
_VERITY: Final = (6, 3)
"""IMA_VERITY_DIGSIG: a signature of the digest that fs-verity keeps."""
_KINDS: Final = {
    2: "a hash for EVM's HMAC",
    5: "a portable EVM signature, which covers what the list does not show",
}
_ALGORITHMS: Final[dict[int, tuple[bytes, hashes.HashAlgorithm]]] = {
    4: (b"sha256", hashes.SHA256()),
    5: (b"sha384", hashes.SHA384()),
    6: (b"sha512", hashes.SHA512()),
}
"""enum hash_algo of ``include/uapi/linux/hash_info.h``."""
_NAMES: Final = {0: "md4", 1: "md5", 2: "sha1", 7: "sha224"}

_Key: TypeAlias = RSAPublicKey | ec.EllipticCurvePublicKey


class ImaKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A key of which signatures of files are accepted."""

    key: Annotated[str, Meta(min_length=1, max_length=16 << 10)]
    """PEM: a certificate or a public key (RSA of 2048 bits or more, P-256, P-384, P-521)."""
    keyring: Annotated[str, Meta(pattern=r"\A[A-Za-z0-9._-]{1,64}\Z")] = DEFAULT_KEYRING
    """The kernel's keyring that it is in."""
    paths: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=512)], ...], Meta(max_length=64)
    ] = ()
    """Patterns of the paths that it vouches for; empty for all."""


class _Verification(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The text in Keylime's ``verification-keys``."""

    pubkeys: Annotated[tuple[Annotated[str, Meta(max_length=16 << 10)], ...], Meta(max_length=256)]
    keyids: Annotated[tuple[Annotated[int, Meta(ge=0, lt=1 << 32)], ...], Meta(max_length=256)] = ()
    meta: dict[str, Any] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Signer:
    """One key, ready to verify with."""

    native: _Key
    spki: bytes
    certificate: bytes
    """DER; empty for a bare key."""
    key_ids: frozenset[int]
    keyring: bytes
    """Empty for a key that is in no keyring that is named."""
    paths: PathPatterns | None

    def verifies(self, signature: bytes, digest: bytes, algorithm: hashes.HashAlgorithm) -> bool:
        """Verify a signature of a digest."""
        try:
            if isinstance(self.native, RSAPublicKey):
                self.native.verify(signature, digest, padding.PKCS1v15(), Prehashed(algorithm))
            else:
                self.native.verify(signature, digest, ec.ECDSA(Prehashed(algorithm)))
        except (InvalidSignature, ValueError):
            return False
        return True


class Signers:
    """The keys of one runtime policy."""

    __slots__ = ("_by_id", "_keyrings", "digest")

    def __init__(self, signers: Iterable[Signer], described: bytes = b"") -> None:
        """Sort the keys.

        Args:
            signers: all of them.
            described: what they were made of; `digest` is its SHA-256, empty without keys.
        """
        self._by_id: dict[int, list[Signer]] = {}
        self._keyrings: dict[bytes, list[Signer]] = {}
        for signer in signers:
            for key_id in signer.key_ids:
                self._by_id.setdefault(key_id, []).append(signer)
            if signer.keyring:
                self._keyrings.setdefault(signer.keyring, []).append(signer)
        self.digest = hashlib.sha256(described).hexdigest() if self._by_id else ""

    def __bool__(self) -> bool:
        """Tell whether there is a key."""
        return bool(self._by_id)

    def guards(self, keyring: bytes) -> bool:
        """Tell whether a keyring has keys here, so that it takes no others."""
        return keyring in self._keyrings

    def holds(self, keyring: bytes, payload: bytes) -> bool:
        """Tell whether what was loaded into a keyring is one of its keys.

        Args:
            keyring: its name.
            payload: what the kernel was given: a certificate, DER.
        """
        signers = self._keyrings.get(keyring, ())
        if any(signer.certificate == payload for signer in signers):
            return bool(payload)
        try:
            loaded = x509.load_der_x509_certificate(payload).public_key()
            spki = loaded.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        except _UNREADABLE:
            return False
        return any(signer.spki == spki for signer in signers)

    def problem(self, path: bytes, field: bytes, signature: bytes) -> str:
        """Say why a signature does not vouch for a file; empty when it does.

        Args:
            path: as measured.
            field: the digest field, ``algorithm ':' NUL digest``; ``verity:`` before it for
                fs-verity.
            signature: the whole of it, with its header.
        """
        if len(signature) < _HEADER.size:
            return f"its signature has {len(signature)} bytes, its header alone has {_HEADER.size}"
        kind, version, hashed, key_id, size = _HEADER.unpack_from(signature)
        if (kind, version) not in {_FILE, _VERITY}:
            named = f" ({_KINDS[kind]})" if kind in _KINDS else ""
            return f"its signature is of type {kind}{named}, version {version}"
        if size != len(signature) - _HEADER.size:
            left = len(signature) - _HEADER.size
            return f"its signature has {left} bytes, its header says {size}"
        if hashed not in _ALGORITHMS:
            return f"its signature is over a digest of {_NAMES.get(hashed, f'hash {hashed}')}"
        name, algorithm = _ALGORITHMS[hashed]
        prefix = (b"verity:" if kind == _VERITY[0] else b"") + name + b":\0"
        if not field.startswith(prefix):
            wanted = prefix[:-2].decode()
            return f"its signature is over a digest of {wanted}, the entry has another"
        digest = field[len(prefix) :]
        if kind == _VERITY[0]:
            digest = hashlib.new(name.decode(), bytes((kind, hashed)) + digest).digest()
        known = self._by_id.get(key_id)
        if known is None:
            return f"its signature is by key {key_id:08x}, which is not among the reference values"
        fitting = [one for one in known if one.paths is None or one.paths.matches(path)]
        if not fitting:
            return f"its signature is by key {key_id:08x}, which does not vouch for this path"
        body = signature[_HEADER.size :]
        if not any(signer.verifies(body, digest, algorithm) for signer in fitting):
            return f"its signature by key {key_id:08x} does not verify"
        return ""


def read_signers(keys: Sequence[ImaKey], verification_keys: str = "") -> Signers:
    """Read the keys of the reference values, and those of a runtime policy.

    Args:
        keys: of the reference values.
        verification_keys: Keylime's ``verification-keys``; empty for none.

    Raises:
        AttestationError: ST-ATTS-326, naming the key.
    """
    if len(keys) > MAX_KEYS:
        raise _unusable(f"{len(keys)} keys, the limit is {MAX_KEYS}", "ima.keys")
    signers = [_signer(key, f"ima.keys[{index}]") for index, key in enumerate(keys)]
    if verification_keys:
        signers += _keylime(verification_keys)
    return Signers(signers, canonical.encode([list(keys), verification_keys]))


def key_id_of(key: str) -> str:
    """Key id of a PEM certificate or public key, in hex as ``evmctl`` prints it.

    Raises:
        AttestationError: ST-ATTS-326.
    """
    signer = _signer(ImaKey(key=key), "key")
    return f"{min(signer.key_ids):08x}"


def _signer(key: ImaKey, where: str) -> Signer:
    data = key.key.encode()
    certificate, key_ids = b"", set[int]()
    native: object
    try:
        if b"BEGIN CERTIFICATE" in data:
            read = x509.load_pem_x509_certificate(data)
            certificate = read.public_bytes(Encoding.DER)
            native, key_ids = read.public_key(), _subject_key_id(read)
        else:
            native = load_pem_public_key(data)
    except _UNREADABLE as error:
        raise _unusable(f"neither a certificate nor a public key: {error}", where) from error
    checked = _check(native, where)
    paths = PathPatterns(key.paths, f"{where}.paths") if key.paths else None
    return Signer(
        native=checked,
        spki=checked.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
        certificate=certificate,
        key_ids=frozenset(key_ids or {_key_id(checked)}),
        keyring=key.keyring.encode(),
        paths=paths,
    )


def _keylime(text: str) -> list[Signer]:
    where = "verification-keys"
    try:
        read = canonical.decode(text.encode(), _Verification, limit=KEYS_LIMIT, where=where)
        ders = [b64decode(key, validate=True) for key in read.pubkeys]
        natives = [load_der_public_key(der) for der in ders]
    except (UsageError, *_UNREADABLE) as error:
        raise _unusable(f"not Keylime's keys: {error}", where) from error
    if read.meta not in ({}, {"version": 1}):
        raise _unusable(f"meta is {json.dumps(read.meta)[:80]}, only version 1 is known", where)
    if read.keyids and len(read.keyids) != len(ders):
        raise _unusable(f"{len(ders)} keys and {len(read.keyids)} key ids", where)
    signers = []
    for index, native in enumerate(natives):
        checked = _check(native, f"{where}[{index}]")
        given = read.keyids[index] if read.keyids else 0
        signers.append(
            Signer(
                native=checked,
                spki=checked.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
                certificate=b"",
                key_ids=frozenset({given or _key_id(checked)}),
                keyring=b"",
                paths=None,
            )
        )
    return signers


def _check(native: object, where: str) -> _Key:
    if isinstance(native, RSAPublicKey):
        if native.key_size < MIN_RSA_BITS:
            raise _unusable(f"RSA of {native.key_size} bits, {MIN_RSA_BITS} are needed", where)
        return native
    if isinstance(native, ec.EllipticCurvePublicKey) and isinstance(native.curve, _CURVES):
        return native
    raise _unusable(f"a key of another kind: {type(native).__name__}", where)


def _subject_key_id(certificate: x509.Certificate) -> set[int]:
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier)
    except x509.ExtensionNotFound:
        return set()
    return {int.from_bytes(found.value.digest[-4:], "big")}


def _key_id(key: _Key) -> int:
    return int.from_bytes(x509.SubjectKeyIdentifier.from_public_key(key).digest[-4:], "big")


def _unusable(what: str, where: str) -> AttestationError:
    return AttestationError("ST-ATTS-326", what, where)


NO_SIGNERS: Final = Signers(())
