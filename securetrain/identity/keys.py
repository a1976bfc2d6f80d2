# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Signing keys: Ed25519 for statements and ledgers, ECDSA P-256 for certificates.

A key id is the SHA-256 of the key's SubjectPublicKeyInfo (DER), in hex: it says what the key is and
two spellings of one key have one id. Private key files have mode 0600; a key that others may read
is refused. They are PKCS#8 PEM, or under a passphrase the container of `identity.keyfile`. PKCS#8's
own encryption is still read, and `save` writes it no more.

Whatever can sign is a `Signer`: a `PrivateKey` in memory, or a key in a PKCS#11 token
(`identity.pkcs11`).
"""

import hashlib
import os
import stat
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Final, Protocol, TypeAlias

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from securetrain.core.errors import IdentityError, os_error
from securetrain.core.files import PRIVATE_FILE, read_file, write_atomic
from securetrain.identity import keyfile

KEY_FILE_LIMIT = 16 << 10

_ECDSA: Final = ec.ECDSA(hashes.SHA256())

_Private: TypeAlias = ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey
_Public: TypeAlias = ed25519.Ed25519PublicKey | ec.EllipticCurvePublicKey


class KeyKind(StrEnum):
    """The two kinds of keys that securetrain makes."""

    ED25519 = "ed25519"
    P256 = "ecdsa-p256"


@dataclass(frozen=True)
class PublicKey:
    """A verification key. How it is written and called is worked out once."""

    native: _Public

    @classmethod
    def from_spki(cls, der: bytes) -> "PublicKey":
        """Parse SubjectPublicKeyInfo DER of an Ed25519 or P-256 key.

        Raises:
            IdentityError: ST-IDEN-001.
        """
        try:
            return cls(_supported(serialization.load_der_public_key(der)))
        except (ValueError, UnsupportedAlgorithm) as error:
            raise IdentityError("ST-IDEN-001", f"not a public key: {error}") from error

    @classmethod
    def from_pem(cls, pem: bytes, where: str = "") -> "PublicKey":
        """Parse SubjectPublicKeyInfo PEM of an Ed25519 or P-256 key.

        Raises:
            IdentityError: ST-IDEN-001.
        """
        try:
            return cls(_supported(serialization.load_pem_public_key(pem)))
        except (ValueError, UnsupportedAlgorithm) as error:
            raise IdentityError(
                "ST-IDEN-001",
                f"not a public key: {error}",
                where,
                "give the output of 'securetrain key show FILE --pem'",
            ) from error

    @cached_property
    def spki(self) -> bytes:
        """SubjectPublicKeyInfo, DER."""
        return self.native.public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )

    @cached_property
    def pem(self) -> bytes:
        """SubjectPublicKeyInfo, PEM."""
        return self.native.public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )

    @property
    def kind(self) -> KeyKind:
        """The kind of the key."""
        is_edwards = isinstance(self.native, ed25519.Ed25519PublicKey)
        return KeyKind.ED25519 if is_edwards else KeyKind.P256

    @cached_property
    def key_id(self) -> str:
        """SHA-256 of the SPKI, hex."""
        return hashlib.sha256(self.spki).hexdigest()

    def verify(self, signature: bytes, data: bytes) -> None:
        """Check a signature over `data`.

        Raises:
            IdentityError: ST-IDEN-002.
        """
        try:
            match self.native:
                case ec.EllipticCurvePublicKey():
                    self.native.verify(signature, data, _ECDSA)
                case ed25519.Ed25519PublicKey():
                    self.native.verify(signature, data)
        except InvalidSignature as error:
            raise IdentityError(
                "ST-IDEN-002", f"the signature does not verify under key {self.key_id[:16]}"
            ) from error


class Signer(Protocol):
    """Something that signs: Ed25519, or ECDSA P-256 with SHA-256 in DER."""

    @property
    def public(self) -> PublicKey:
        """The key that verifies what this signs."""

    @property
    def key_id(self) -> str:
        """The id of the public key."""

    def sign(self, data: bytes) -> bytes:
        """Sign `data`."""


@dataclass(frozen=True, slots=True)
class PrivateKey:
    """A signing key in memory."""

    native: _Private

    @classmethod
    def generate(cls, kind: KeyKind = KeyKind.ED25519) -> "PrivateKey":
        """Make a new key."""
        match kind:
            case KeyKind.ED25519:
                return cls(ed25519.Ed25519PrivateKey.generate())
            case KeyKind.P256:
                return cls(ec.generate_private_key(ec.SECP256R1()))
            case _:
                raise ValueError(f"unknown key kind {kind!r}")

    @classmethod
    def create(
        cls, path: Path, kind: KeyKind = KeyKind.ED25519, passphrase: bytes | None = None
    ) -> "PrivateKey":
        """Make a new key and its file with mode 0600. No file is ever overwritten.

        Raises:
            UsageError: ST-USAG-005 when the file exists, ST-USAG-002 when it cannot be written.
        """
        key = cls.generate(kind)
        write_atomic(path, key.file_bytes(passphrase), mode=PRIVATE_FILE, replace=False)
        return key

    @classmethod
    def load(cls, path: Path, passphrase: bytes | None = None) -> "PrivateKey":
        """Read a key file.

        Raises:
            IdentityError: ST-IDEN-010 when others may read it, ST-IDEN-001 when it is not a key or
                the passphrase is not its own.
        """
        data = read_private(path)
        if keyfile.is_sealed(data) and passphrase is not None:
            return cls.from_pkcs8(keyfile.unseal(data, passphrase, str(path)), str(path))
        try:
            if keyfile.is_sealed(data):
                raise TypeError("it is encrypted, and no passphrase was given")
            key = serialization.load_pem_private_key(data, passphrase)
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise IdentityError("ST-IDEN-001", f"not a private key: {error}", str(path)) from error
        return cls._of(key, str(path))

    @classmethod
    def from_pkcs8(cls, der: bytes, where: str = "") -> "PrivateKey":
        """Parse PKCS#8 DER that is not encrypted.

        Raises:
            IdentityError: ST-IDEN-001.
        """
        try:
            key = serialization.load_der_private_key(der, None)
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise IdentityError("ST-IDEN-001", f"not a private key: {error}", where) from error
        return cls._of(key, where)

    @classmethod
    def _of(cls, key: object, where: str) -> "PrivateKey":
        match key:
            case ed25519.Ed25519PrivateKey():
                return cls(key)
            case ec.EllipticCurvePrivateKey() if isinstance(key.curve, ec.SECP256R1):
                return cls(key)
            case _:
                raise IdentityError("ST-IDEN-001", "neither Ed25519 nor ECDSA P-256", where)

    def save(self, path: Path, passphrase: bytes | None = None) -> None:
        """Write the key with mode 0600, encrypted when a passphrase is given."""
        write_atomic(path, self.file_bytes(passphrase), mode=PRIVATE_FILE)
        os.chmod(path, PRIVATE_FILE)  # noqa: PTH101 - Path.chmod follows links on some systems

    def file_bytes(self, passphrase: bytes | None) -> bytes:
        """The contents of its file, encrypted when a passphrase is given."""
        plain = serialization.NoEncryption()
        if passphrase is None:
            return self.pem(plain)
        return keyfile.seal(
            self.native.private_bytes(
                serialization.Encoding.DER, serialization.PrivateFormat.PKCS8, plain
            ),
            passphrase,
        )

    def pem(self, protection: serialization.KeySerializationEncryption) -> bytes:
        """PKCS#8 PEM."""
        return self.native.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, protection
        )

    @property
    def public(self) -> PublicKey:
        """The verification key that belongs to this key."""
        return PublicKey(self.native.public_key())

    @property
    def kind(self) -> KeyKind:
        """The kind of the key."""
        return self.public.kind

    @property
    def key_id(self) -> str:
        """The id of the public key."""
        return self.public.key_id

    def sign(self, data: bytes) -> bytes:
        """Sign `data` (Ed25519, or ECDSA with SHA-256 in DER)."""
        match self.native:
            case ed25519.Ed25519PrivateKey():
                return self.native.sign(data)
            case ec.EllipticCurvePrivateKey():
                return self.native.sign(data, _ECDSA)


def read_private(path: Path) -> bytes:
    """The bytes of a private key's file, if nobody else may read them.

    Raises:
        IdentityError: ST-IDEN-010.
        UsageError: ST-USAG-002.
    """
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        raise os_error(error, str(path)) from error
    if mode & 0o077:
        raise IdentityError(
            "ST-IDEN-010",
            f"mode {mode:04o} lets other users read this private key",
            str(path),
            f"chmod 600 {path}",
        )
    return read_file(path, KEY_FILE_LIMIT)


def is_encrypted(path: Path) -> bool:
    """Return whether a key file needs a passphrase: the container's, or that of PKCS#8 itself."""
    return b"ENCRYPTED" in read_private(path).split(b"\n", 1)[0]


def _supported(key: object) -> _Public:
    if isinstance(key, ed25519.Ed25519PublicKey):
        return key
    if isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1):
        return key
    raise ValueError("neither Ed25519 nor ECDSA P-256")
