# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Signing keys: Ed25519 for statements and ledgers, ECDSA P-256 for certificates.

A key id is the SHA-256 of the key's SubjectPublicKeyInfo (DER), in hex: it says what the key is and
two spellings of one key have one id. Private key files are PKCS#8 PEM with mode 0600; a key that
others may read is refused.
"""

import hashlib
import os
import stat
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Final, TypeAlias

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from securetrain.core.errors import IdentityError, os_error
from securetrain.core.files import PRIVATE_FILE, read_file, write_atomic

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

    @cached_property
    def spki(self) -> bytes:
        """SubjectPublicKeyInfo, DER."""
        return self.native.public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )

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
                "ST-IDEN-002",
                f"the signature does not verify under key {self.key_id[:16]}",
                fix="get the artifact again from where it was signed",
            ) from error


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
    def create(cls, path: Path, kind: KeyKind = KeyKind.ED25519) -> "PrivateKey":
        """Make a new key and its file, PKCS#8 PEM with mode 0600. No file is ever overwritten.

        Raises:
            UsageError: ST-USAG-005 when the file exists, ST-USAG-002 when it cannot be written.
        """
        key = cls.generate(kind)
        pem = key.pem(serialization.NoEncryption())
        write_atomic(path, pem, mode=PRIVATE_FILE, replace=False)
        return key

    @classmethod
    def load(cls, path: Path, passphrase: bytes | None = None) -> "PrivateKey":
        """Read a PKCS#8 PEM file.

        Raises:
            IdentityError: ST-IDEN-010 when others may read it, ST-IDEN-001 when it is not a key.
        """
        try:
            mode = path.stat().st_mode
        except OSError as error:
            raise os_error(error, str(path)) from error
        if stat.S_IMODE(mode) & 0o077:
            raise IdentityError(
                "ST-IDEN-010",
                f"mode {stat.S_IMODE(mode):04o} lets other users read this private key",
                str(path),
                f"chmod 600 {path}",
            )
        try:
            key = serialization.load_pem_private_key(read_file(path, KEY_FILE_LIMIT), passphrase)
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise IdentityError(
                "ST-IDEN-001", f"not a private key: {error}", str(path), "is it PKCS#8 PEM?"
            ) from error
        match key:
            case ed25519.Ed25519PrivateKey():
                return cls(key)
            case ec.EllipticCurvePrivateKey() if isinstance(key.curve, ec.SECP256R1):
                return cls(key)
            case _:
                raise IdentityError(
                    "ST-IDEN-001", "neither Ed25519 nor ECDSA P-256", str(path), "make a new key"
                )

    def save(self, path: Path, passphrase: bytes | None = None) -> None:
        """Write PKCS#8 PEM with mode 0600, encrypted when a passphrase is given."""
        protection: serialization.KeySerializationEncryption = serialization.NoEncryption()
        if passphrase is not None:
            protection = serialization.BestAvailableEncryption(passphrase)
        write_atomic(path, self.pem(protection), mode=PRIVATE_FILE)
        os.chmod(path, PRIVATE_FILE)  # noqa: PTH101 - Path.chmod follows links on some systems

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
        """Which of the two kinds."""
        is_edwards = isinstance(self.native, ed25519.Ed25519PrivateKey)
        return KeyKind.ED25519 if is_edwards else KeyKind.P256

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


def _supported(key: object) -> _Public:
    if isinstance(key, ed25519.Ed25519PublicKey):
        return key
    if isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1):
        return key
    raise ValueError("neither Ed25519 nor ECDSA P-256")
