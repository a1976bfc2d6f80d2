# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Signing keys: Ed25519 for statements and ledgers, ECDSA P-256 for certificates, ML-DSA beside.

A key id is the SHA-256 of the key's SubjectPublicKeyInfo (DER), in hex: it says what the key is and
two spellings of one key have one id. Private key files have mode 0600; a key that others may read
is refused. They are PKCS#8 PEM, or under a passphrase the container of `identity.keyfile`. PKCS#8's
own encryption is still read, and `save` writes it no more.

A **pair** is a classical key and its companion, an ML-DSA key in the same file: two PEM blocks.
Its id, and what ledgers, ranks and nodes sign with it, are those of the classical key; an envelope
(`identity.dsse`) carries the signatures of both. Where the installed OpenSSL has no ML-DSA, a key
that needs it is refused (ST-IDEN-025), never used by half.

Whatever can sign is a `Signer`: a `PrivateKey` in memory, a key in a PKCS#11 token
(`identity.pkcs11`) or in a cloud's key service (`identity.kms`). What signs an envelope with more
than one key, or as a whole, is a `PairSigner` or an `EnvelopeSigner` too.
"""

import hashlib
import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Final, Protocol, TypeAlias, runtime_checkable

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, mldsa

from securetrain.core.errors import IdentityError, os_error
from securetrain.core.files import PRIVATE_FILE, read_file, write_atomic
from securetrain.identity import keyfile
from securetrain.identity.key_blocks import blocks, names_ml_dsa, sequences

KEY_FILE_LIMIT = 16 << 10

_ECDSA: Final = ec.ECDSA(hashes.SHA256())

_Private: TypeAlias = (
    ed25519.Ed25519PrivateKey
    | ec.EllipticCurvePrivateKey
    | mldsa.MLDSA44PrivateKey
    | mldsa.MLDSA65PrivateKey
)
_Public: TypeAlias = (
    ed25519.Ed25519PublicKey
    | ec.EllipticCurvePublicKey
    | mldsa.MLDSA44PublicKey
    | mldsa.MLDSA65PublicKey
)

_UNKNOWN_KIND: Final = "neither Ed25519, ECDSA P-256, ML-DSA-44 nor ML-DSA-65"


class KeyKind(StrEnum):
    """The kinds of keys that securetrain makes."""

    ED25519 = "ed25519"
    P256 = "ecdsa-p256"
    ML_DSA_44 = "ml-dsa-44"
    """For cosignatures of logs (C2SP): a witness's key, or the companion of a log's."""
    ML_DSA_65 = "ml-dsa-65"
    """The companion in a pair."""

    @property
    def is_classical(self) -> bool:
        """Return whether a large quantum computer would break it."""
        return self in {KeyKind.ED25519, KeyKind.P256}


@dataclass(frozen=True)
class PublicKey:
    """A verification key. How it is written and called is worked out once."""

    native: _Public
    companion: "PublicKey | None" = field(default=None, compare=False)
    """The ML-DSA key of the pair. Two keys are one when their classical halves are."""

    @classmethod
    def from_spki(cls, der: bytes) -> "PublicKey":
        """Parse SubjectPublicKeyInfo DER of one key.

        Raises:
            IdentityError: ST-IDEN-001; ST-IDEN-025 for ML-DSA that cannot be computed here.
        """
        try:
            return cls(_supported(serialization.load_der_public_key(der)))
        except UnsupportedAlgorithm as error:
            raise _unsupported(der, error) from error
        except ValueError as error:
            raise IdentityError("ST-IDEN-001", f"not a public key: {error}") from error

    @classmethod
    def from_pem(cls, pem: bytes, where: str = "") -> "PublicKey":
        """Parse SubjectPublicKeyInfo PEM of a key, or of a pair.

        Raises:
            IdentityError: ST-IDEN-001; ST-IDEN-025 for ML-DSA that cannot be computed here.
        """
        try:
            first, *others = blocks(pem)
            found = cls(_supported(serialization.load_pem_public_key(first)))
            for block in others:
                found = found.with_companion(cls.from_pem(block, where))
        except UnsupportedAlgorithm as error:
            raise _unsupported(pem, error, where) from error
        except ValueError as error:
            raise IdentityError(
                "ST-IDEN-001",
                f"not a public key: {error}",
                where,
                "give the output of 'securetrain key show FILE --pem'",
            ) from error
        return found

    def with_companion(self, companion: "PublicKey") -> "PublicKey":
        """The pair of this key and an ML-DSA key.

        Raises:
            ValueError: They are no pair.
        """
        if not self.kind.is_classical or companion.kind.is_classical:
            raise ValueError(f"{self.kind} and {companion.kind} are no pair")
        return PublicKey(self.native, companion)

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
    def file_pem(self) -> bytes:
        """PEM of the key, and after it of its companion: the contents of its file."""
        return self.pem + (b"" if self.companion is None else self.companion.pem)

    @property
    def kind(self) -> KeyKind:
        """The kind of the key; of a pair, that of its classical half."""
        match self.native:
            case ed25519.Ed25519PublicKey():
                return KeyKind.ED25519
            case ec.EllipticCurvePublicKey():
                return KeyKind.P256
            case mldsa.MLDSA44PublicKey():
                return KeyKind.ML_DSA_44
            case mldsa.MLDSA65PublicKey():
                return KeyKind.ML_DSA_65

    @property
    def curve(self) -> ed25519.Ed25519PublicKey | ec.EllipticCurvePublicKey:
        """The native key, for what knows elliptic curves alone (TLS, JWT).

        Raises:
            IdentityError: ST-IDEN-001 for ML-DSA.
        """
        if isinstance(self.native, ed25519.Ed25519PublicKey | ec.EllipticCurvePublicKey):
            return self.native
        raise IdentityError("ST-IDEN-001", f"a key on a curve is needed, and it is {self.kind}")

    @cached_property
    def key_id(self) -> str:
        """SHA-256 of the SPKI, hex."""
        return hashlib.sha256(self.spki).hexdigest()

    @cached_property
    def _check(self) -> Callable[[bytes, bytes], None]:
        """The native key's own check of a signature, which is looked for once."""
        match self.native:
            case ec.EllipticCurvePublicKey() as curve:
                return lambda signature, data: curve.verify(signature, data, _ECDSA)
            case _:
                return self.native.verify

    def verify(self, signature: bytes, data: bytes) -> None:
        """Check a signature over `data`.

        Raises:
            IdentityError: ST-IDEN-002.
        """
        try:
            self._check(signature, data)
        except InvalidSignature as error:
            raise IdentityError(
                "ST-IDEN-002", f"the signature does not verify under key {self.key_id[:16]}"
            ) from error


@runtime_checkable
class Signer(Protocol):
    """Something that signs: Ed25519, ML-DSA, or ECDSA P-256 with SHA-256 in DER.

    Its algorithm is ``public.kind``.
    """

    @property
    def public(self) -> PublicKey:
        """The key that verifies what this signs."""

    @property
    def key_id(self) -> str:
        """The id of the public key."""

    def sign(self, data: bytes) -> bytes:
        """Sign `data`."""


@runtime_checkable
class PairSigner(Protocol):
    """A `Signer` that may have a companion."""

    def sign_all(self, data: bytes) -> tuple[tuple[str, bytes], ...]:
        """Sign `data` with the key and its companion: ids of keys, and signatures."""


@runtime_checkable
class EnvelopeSigner(Protocol):
    """A `Signer` that makes whole envelopes, and signs nothing else: a keyless one."""

    def sign_envelope(self, payload: bytes, payload_type: str) -> bytes:
        """Sign a payload; the file's bytes."""


@dataclass(frozen=True, slots=True)
class PrivateKey:
    """A signing key in memory, or a pair."""

    native: _Private
    companion: "PrivateKey | None" = None
    """The ML-DSA-65 key of the pair."""

    @classmethod
    def generate(cls, kind: KeyKind = KeyKind.ED25519) -> "PrivateKey":
        """Make a new key.

        Raises:
            IdentityError: ST-IDEN-025 for ML-DSA that cannot be computed here.
        """
        try:
            match kind:
                case KeyKind.ED25519:
                    return cls(ed25519.Ed25519PrivateKey.generate())
                case KeyKind.P256:
                    return cls(ec.generate_private_key(ec.SECP256R1()))
                case KeyKind.ML_DSA_44:
                    return cls(mldsa.MLDSA44PrivateKey.generate())
                case KeyKind.ML_DSA_65:
                    return cls(mldsa.MLDSA65PrivateKey.generate())
                case _:
                    raise ValueError(f"unknown key kind {kind!r}")
        except UnsupportedAlgorithm as error:
            raise _no_ml_dsa(error) from error

    @classmethod
    def generate_pair(cls, companion: KeyKind = KeyKind.ML_DSA_65) -> "PrivateKey":
        """Make an Ed25519 key with its companion; a log's is ML-DSA-44.

        Raises:
            IdentityError: ST-IDEN-025.
        """
        return cls(cls.generate().native, cls.generate(companion))

    @classmethod
    def create(
        cls,
        path: Path,
        kind: KeyKind = KeyKind.ED25519,
        passphrase: bytes | None = None,
        companion: KeyKind | None = None,
    ) -> "PrivateKey":
        """Make a new key (with `companion` an Ed25519 pair) and its file with mode 0600.

        No file is ever overwritten.

        Raises:
            UsageError: ST-USAG-005 when the file exists, ST-USAG-002 when it cannot be written.
            IdentityError: ST-IDEN-025 for ML-DSA that cannot be computed here.
        """
        key = cls.generate(kind) if companion is None else cls.generate_pair(companion)
        write_atomic(path, key.file_bytes(passphrase), mode=PRIVATE_FILE, replace=False)
        return key

    @classmethod
    def load(cls, path: Path, passphrase: bytes | None = None) -> "PrivateKey":
        """Read a key file.

        Raises:
            IdentityError: ST-IDEN-010 when others may read it, ST-IDEN-001 when it is not a key or
                the passphrase is not its own, ST-IDEN-025.
        """
        data = read_private(path)
        where = str(path)
        if keyfile.is_sealed(data) and passphrase is not None:
            return cls.from_pkcs8(keyfile.unseal(data, passphrase, where), where)
        try:
            if keyfile.is_sealed(data):
                raise TypeError("it is encrypted, and no passphrase was given")
            keys = [serialization.load_pem_private_key(b, passphrase) for b in blocks(data)]
        except UnsupportedAlgorithm as error:
            raise _unsupported(data, error, where) from error
        except (ValueError, TypeError) as error:
            raise IdentityError("ST-IDEN-001", f"not a private key: {error}", where) from error
        return cls._of(keys, where)

    @classmethod
    def from_pkcs8(cls, der: bytes, where: str = "") -> "PrivateKey":
        """Parse PKCS#8 DER that is not encrypted: of one key, or of a pair's two one after another.

        Raises:
            IdentityError: ST-IDEN-001, ST-IDEN-025.
        """
        try:
            keys = [serialization.load_der_private_key(part, None) for part in sequences(der)]
        except UnsupportedAlgorithm as error:
            raise _unsupported(der, error, where) from error
        except (ValueError, TypeError) as error:
            raise IdentityError("ST-IDEN-001", f"not a private key: {error}", where) from error
        return cls._of(keys, where)

    @classmethod
    def _of(cls, keys: Sequence[object], where: str) -> "PrivateKey":
        found = [cls._one(key, where) for key in keys]
        if len(found) == 1:
            return found[0]
        key, companion = found
        try:
            key.public.with_companion(companion.public)
        except ValueError as error:
            raise IdentityError("ST-IDEN-001", str(error), where) from error
        return cls(key.native, companion)

    @classmethod
    def _one(cls, key: object, where: str) -> "PrivateKey":
        match key:
            case ed25519.Ed25519PrivateKey():
                return cls(key)
            case ec.EllipticCurvePrivateKey() if isinstance(key.curve, ec.SECP256R1):
                return cls(key)
            case mldsa.MLDSA44PrivateKey() | mldsa.MLDSA65PrivateKey():
                return cls(key)
            case _:
                raise IdentityError("ST-IDEN-001", _UNKNOWN_KIND, where)

    def save(self, path: Path, passphrase: bytes | None = None) -> None:
        """Write the key with mode 0600, encrypted when a passphrase is given."""
        write_atomic(path, self.file_bytes(passphrase), mode=PRIVATE_FILE)
        os.chmod(path, PRIVATE_FILE)  # noqa: PTH101 - Path.chmod follows links on some systems

    def file_bytes(self, passphrase: bytes | None) -> bytes:
        """The contents of its file, encrypted when a passphrase is given."""
        plain = serialization.NoEncryption()
        keys = [self] if self.companion is None else [self, self.companion]
        if passphrase is None:
            return b"".join(key.pem(plain) for key in keys)
        der = (
            key.native.private_bytes(
                serialization.Encoding.DER, serialization.PrivateFormat.PKCS8, plain
            )
            for key in keys
        )
        return keyfile.seal(b"".join(der), passphrase)

    def pem(self, protection: serialization.KeySerializationEncryption) -> bytes:
        """PKCS#8 PEM; of a pair, that of its classical half."""
        return self.native.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, protection
        )

    @property
    def curve(self) -> ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey:
        """See `PublicKey.curve`."""
        if isinstance(self.native, ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey):
            return self.native
        raise IdentityError("ST-IDEN-001", f"a key on a curve is needed, and it is {self.kind}")

    @property
    def public(self) -> PublicKey:
        """The verification key that belongs to this key."""
        companion = None if self.companion is None else self.companion.public
        return PublicKey(self.native.public_key(), companion)

    @property
    def kind(self) -> KeyKind:
        """The kind of the key."""
        return self.public.kind

    @property
    def key_id(self) -> str:
        """The id of the public key."""
        return self.public.key_id

    def sign(self, data: bytes) -> bytes:
        """Sign `data`, with a pair's classical half (ECDSA with SHA-256 in DER)."""
        match self.native:
            case ec.EllipticCurvePrivateKey():
                return self.native.sign(data, _ECDSA)
            case _:
                return self.native.sign(data)

    def sign_all(self, data: bytes) -> tuple[tuple[str, bytes], ...]:
        """See `PairSigner`."""
        keys = (self,) if self.companion is None else (self, self.companion)
        return tuple((key.key_id, key.sign(data)) for key in keys)


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
    match key:
        case ed25519.Ed25519PublicKey() | mldsa.MLDSA44PublicKey() | mldsa.MLDSA65PublicKey():
            return key
        case ec.EllipticCurvePublicKey() if isinstance(key.curve, ec.SECP256R1):
            return key
        case _:
            raise ValueError(_UNKNOWN_KIND)


def _unsupported(data: bytes, error: UnsupportedAlgorithm, where: str = "") -> IdentityError:
    """The refusal of a key: of ML-DSA that OpenSSL has not, or of any other algorithm."""
    if names_ml_dsa(data):
        return _no_ml_dsa(error, where)
    return IdentityError("ST-IDEN-001", f"a key of no known kind: {error}", where)


def _no_ml_dsa(error: UnsupportedAlgorithm, where: str = "") -> IdentityError:
    return IdentityError("ST-IDEN-025", f"the installed OpenSSL has no ML-DSA: {error}", where)
