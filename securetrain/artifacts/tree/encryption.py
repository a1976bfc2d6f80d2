# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A checkpoint's tensors encrypted at rest. The hash trees cover the ciphertext, so that verifying
needs no key.

Rules, in order:

1. every file has a key of its own, drawn by the rank that writes it and wrapped for each recipient
   (X25519 sealed boxes of libsodium). What gets signed names the recipients and their wrapped keys;
2. a file is a stream of chunks (AES-256-GCM), each as large as a leaf of the tree with its tag. The
   nonce is the chunk's number and whether it is the last one; the associated data names run, save
   and file. So chunks cannot be exchanged, dropped, cut off or brought from another file (STREAM,
   https://eprint.iacr.org/2015/189);
3. the leaf is verified before it is decrypted, and what does not decrypt is refused.

Names, shapes, dtypes and plain values stay readable: they are in the index. libsodium is the
extra ``encryption``, needed only to save and load encrypted files.
"""

import base64
import binascii
import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from cryptography.exceptions import InvalidTag, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import x25519
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from msgspec import Meta

from securetrain.artifacts.tree.layout import Count, Hex32, Problem
from securetrain.core import canonical, install_hint
from securetrain.core.errors import IdentityError, UsageError
from securetrain.identity.keys import read_private

KEY_SIZE: Final = 32
TAG: Final = 16
MAX_RECIPIENTS: Final = 64
_WRAPPED: Final = 4 * 27  # 80 bytes in base64: a public key, a tag and the file's key


class Sealed(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, rename="camel"):
    """The record of an encrypted file: how much is in it, and its key for each recipient."""

    size: Count
    """Bytes before encryption."""
    keys: Annotated[
        dict[Hex32, Annotated[str, Meta(min_length=_WRAPPED, max_length=_WRAPPED)]],
        Meta(min_length=1, max_length=MAX_RECIPIENTS),
    ]
    """The wrapped key in base64, by the recipient's id (SHA-256 of its public key, hex)."""


@dataclass(frozen=True, slots=True)
class Recipient:
    """A holder of a key that decrypts: an X25519 public key (32 bytes)."""

    public: bytes

    def __post_init__(self) -> None:
        if len(self.public) != KEY_SIZE:
            raise ValueError(f"an X25519 key has {KEY_SIZE} bytes, not {len(self.public)}")

    @property
    def id(self) -> str:
        """SHA-256 of the key, hex."""
        return hashlib.sha256(self.public).hexdigest()

    @classmethod
    def parse(cls, text: str) -> "Recipient":
        """A public key in hex.

        Raises:
            UsageError: ST-USAG-001.
        """
        try:
            return cls(bytes.fromhex(text))
        except ValueError as error:
            raise UsageError(
                "ST-USAG-001", f"not a recipient: {error}", text[:80], "give 64 hex digits"
            ) from error


@dataclass(frozen=True, slots=True)
class DecryptionKey:
    """An X25519 private key."""

    native: x25519.X25519PrivateKey

    @classmethod
    def generate(cls) -> "DecryptionKey":
        """A new key."""
        return cls(x25519.X25519PrivateKey.generate())

    @classmethod
    def load(cls, path: Path) -> "DecryptionKey":
        """Read PKCS#8 PEM.

        Raises:
            IdentityError: ST-IDEN-010 when others may read it, ST-IDEN-001 when it is no such key.
        """
        return cls.parse(read_private(path), str(path))

    @classmethod
    def parse(cls, pem: bytes, where: str) -> "DecryptionKey":
        """Read PKCS#8 PEM that is in memory.

        Raises:
            IdentityError: ST-IDEN-001 when it is no such key.
        """
        try:
            key = serialization.load_pem_private_key(pem, None)
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            # Without the parser's words: they may quote what it was given.
            raise IdentityError("ST-IDEN-001", "not a private key", where) from error
        if not isinstance(key, x25519.X25519PrivateKey):
            raise IdentityError(
                "ST-IDEN-001",
                "not an X25519 key",
                where,
                "openssl genpkey -algorithm x25519 -out FILE",
            )
        return cls(key)

    @property
    def recipient(self) -> Recipient:
        """The public part."""
        return Recipient(
            self.native.public_key().public_bytes(
                serialization.Encoding.Raw, serialization.PublicFormat.Raw
            )
        )

    def unwrap(self, wrapped: bytes) -> bytes:
        """Open a sealed box.

        Raises:
            ValueError: it was not made for this key.
        """
        nacl = _nacl()
        raw = self.native.private_bytes(
            serialization.Encoding.Raw,
            serialization.PrivateFormat.Raw,
            serialization.NoEncryption(),
        )
        box = nacl.public.SealedBox(nacl.public.PrivateKey(raw))
        try:
            return bytes(box.decrypt(wrapped))
        except nacl.exceptions.CryptoError as error:
            raise ValueError(str(error)) from error


@dataclass(frozen=True, slots=True)
class FileCipher:
    """Encrypts and decrypts the chunks of one file."""

    cipher: AESGCM
    header: bytes
    chunk: int
    """Bytes of ciphertext in a chunk, tag included: a leaf of the tree."""

    @classmethod
    def of(cls, key: bytes, *, run_id: str, save_id: str, file: str, chunk: int) -> "FileCipher":
        """The cipher of a file whose key is known."""
        header = canonical.encode(["securetrain/encryption/1", run_id, save_id, file, chunk])
        derived = HKDF(hashes.SHA256(), KEY_SIZE, salt=None, info=header).derive(key)
        return cls(AESGCM(derived), header, chunk)

    @property
    def room(self) -> int:
        """Bytes of plaintext in a full chunk."""
        return self.chunk - TAG

    def num_chunks(self, size: int) -> int:
        """Chunks of `size` bytes of plaintext."""
        return max(1, -(-size // self.room))

    def seal(self, number: int, data: bytes | bytearray | memoryview, *, last: bool) -> bytes:
        """One chunk."""
        return self.cipher.encrypt(_nonce(number, last=last), bytes(data), self.header)

    def open(self, number: int, data: bytes | bytearray | memoryview, *, last: bool) -> bytes:
        """Decrypt one chunk.

        Raises:
            ValueError: it is not this chunk of this file, or the key is another one.
        """
        try:
            return self.cipher.decrypt(_nonce(number, last=last), bytes(data), self.header)
        except InvalidTag as error:
            raise ValueError("it does not decrypt") from error


def new_key(recipients: Sequence[Recipient], size: int = 0) -> tuple[bytes, Sealed]:
    """A file's key, and its wrapped form.

    Raises:
        UsageError: ST-USAG-004 when libsodium's package is missing, ST-USAG-001 too many
            recipients, or none.
    """
    if not 1 <= len({one.id for one in recipients}) <= MAX_RECIPIENTS:
        raise UsageError(
            "ST-USAG-001",
            f"{len(recipients)} recipients",
            "recipients",
            f"name 1 to {MAX_RECIPIENTS}",
        )
    nacl = _nacl()
    key = secrets.token_bytes(KEY_SIZE)
    keys = {
        one.id: base64.b64encode(
            nacl.public.SealedBox(nacl.public.PublicKey(one.public)).encrypt(key)
        ).decode()
        for one in recipients
    }
    return key, Sealed(size=size, keys=keys)


def open_key(sealed: Sealed, keys: Sequence[DecryptionKey], file: str, where: str) -> bytes:
    """A file's key.

    Raises:
        IntegrityError: ST-CKPT-124 when no given key is a recipient's, ST-CKPT-133 when the wrapped
            key does not open.
    """
    for one in keys:
        wrapped = sealed.keys.get(one.recipient.id)
        if wrapped is None:
            continue
        try:
            key = one.unwrap(base64.b64decode(wrapped, validate=True))
        except (ValueError, binascii.Error) as error:
            raise undecryptable(file, f"its wrapped key does not open: {error}").error(
                where
            ) from error
        if len(key) == KEY_SIZE:
            return key
        raise undecryptable(file, "its wrapped key has another size").error(where)
    names = ", ".join(sorted(name[:16] for name in sealed.keys))
    raise Problem(
        "ST-CKPT-124",
        f"it is encrypted for {names}, and none of {len(keys)} given keys is theirs",
        file,
    ).error(where)


def undecryptable(file: str, what: str) -> Problem:
    """A verified file that does not decrypt: who signed it wrote it wrong."""
    return Problem("ST-CKPT-133", what, file)


def _nonce(number: int, *, last: bool) -> bytes:
    return number.to_bytes(11, "big") + (b"\x01" if last else b"\x00")


def _nacl() -> Any:
    try:
        import nacl.exceptions  # noqa: PLC0415 - an extra's package
        import nacl.public  # noqa: PLC0415
    except ImportError as error:
        raise UsageError(
            "ST-USAG-004",
            "encrypted checkpoints need PyNaCl, which is not installed",
            "",
            install_hint("encryption"),
        ) from error
    return nacl
