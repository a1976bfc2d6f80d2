# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Private keys at rest under a passphrase: AES-256-GCM under Argon2id (RFC 9106).

PKCS#8's own encryption (PBES2) stretches a passphrase with PBKDF2 or scrypt. This small container
does it with Argon2id, which costs a guesser memory too. It is PEM with a label of its own; the body
is, all integers big-endian::

    version    1 byte    0x01
    memory     4 bytes   KiB
    passes     4 bytes
    lanes      1 byte
    salt       16 bytes
    nonce      12 bytes
    sealed     the PKCS#8 DER and the 16 bytes of the tag

A reader checks, in order:

1. the label, and a body of bounded size;
2. the parameters are bounded both ways before anything is derived: too high would eat the machine,
   too low would be a key that is easy to guess;
3. the tag covers the label and everything before the sealed bytes, so that neither the parameters
   nor the salt can be changed. A wrong passphrase and a changed file cannot be told apart.
"""

import base64
import os
import struct
from dataclasses import dataclass
from typing import Final

from cryptography.exceptions import InvalidTag, UnsupportedAlgorithm
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.argon2 import Argon2id

from securetrain.core.errors import IdentityError, UsageError

LABEL: Final = "SECURETRAIN ENCRYPTED PRIVATE KEY"
_BEGIN: Final = f"-----BEGIN {LABEL}-----"
_END: Final = f"-----END {LABEL}-----"
_HEADER: Final = struct.Struct(">BIIB16s12s")
_VERSION: Final = 1
_TAG: Final = 16
_BODY_LIMIT: Final = 8 << 10
_WIDTH: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The cost of trying one passphrase; by default the second choice of RFC 9106, section 4."""

    memory_kib: int = 64 << 10
    passes: int = 3
    lanes: int = 4

    def check(self) -> None:
        """Refuse what is too cheap (OWASP's least is 19 MiB and two passes) or too dear.

        Raises:
            ValueError: Which of them, and its bounds.
        """
        for name, value, least, most in (
            ("memory", self.memory_kib, 19 << 10, 1 << 20),
            ("passes", self.passes, 2, 16),
            ("lanes", self.lanes, 1, 16),
        ):
            if not least <= value <= most:
                raise ValueError(f"Argon2id {name} {value}, allowed are {least} to {most}")


def is_sealed(data: bytes) -> bool:
    """Return whether a file is such a container."""
    return data.startswith(_BEGIN.encode())


def seal(pkcs8: bytes, passphrase: bytes, cost: Cost | None = None) -> bytes:
    """The container's bytes.

    Raises:
        ValueError: The cost is out of bounds.
        UsageError: ST-USAG-004 when this build of OpenSSL has no Argon2id.
    """
    cost = cost or Cost()
    cost.check()
    salt, nonce = os.urandom(16), os.urandom(12)
    header = _HEADER.pack(_VERSION, cost.memory_kib, cost.passes, cost.lanes, salt, nonce)
    sealed = AESGCM(_derive(passphrase, salt, cost)).encrypt(nonce, pkcs8, _bound(header))
    text = base64.b64encode(header + sealed).decode()
    lines = (text[i : i + _WIDTH] for i in range(0, len(text), _WIDTH))
    return "\n".join([_BEGIN, *lines, _END, ""]).encode()


@dataclass(frozen=True, slots=True)
class Container:
    """A container that was read, and not opened."""

    cost: Cost
    salt: bytes
    nonce: bytes
    sealed: bytes
    header: bytes


def unseal(data: bytes, passphrase: bytes, where: str = "") -> bytes:
    """The PKCS#8 DER inside.

    Raises:
        IdentityError: ST-IDEN-001 malformed, parameters out of bounds, or not this passphrase.
        UsageError: ST-USAG-004 when this build of OpenSSL has no Argon2id.
    """
    found = parse(data, where)
    key = _derive(passphrase, found.salt, found.cost)
    try:
        return AESGCM(key).decrypt(found.nonce, found.sealed, _bound(found.header))
    except InvalidTag as error:
        raise _bad("another passphrase, or the file was changed", where) from error


def parse(data: bytes, where: str = "") -> Container:
    """Read a container: steps 1 and 2.

    Raises:
        IdentityError: ST-IDEN-001.
    """
    if len(data) > 2 * _BODY_LIMIT:
        raise _bad(f"{len(data)} bytes", where)
    try:
        lines = data.decode("ascii").splitlines()
        if lines[0] != _BEGIN or lines[-1] != _END:
            raise ValueError("its first or last line is not the label's")
        body = base64.b64decode("".join(lines[1:-1]), validate=True)
        if not _HEADER.size + _TAG < len(body) <= _BODY_LIMIT:
            raise ValueError(f"a body of {len(body)} bytes")
        header = body[: _HEADER.size]
        version, memory, passes, lanes, salt, nonce = _HEADER.unpack(header)
        if version != _VERSION:
            raise ValueError(f"version {version} of the container")
        cost = Cost(memory_kib=memory, passes=passes, lanes=lanes)
        cost.check()
    except (ValueError, IndexError) as error:
        raise _bad(str(error), where) from error
    return Container(cost, salt, nonce, body[_HEADER.size :], header)


def _derive(passphrase: bytes, salt: bytes, cost: Cost) -> bytes:
    try:
        kdf = Argon2id(
            salt=salt,
            length=32,
            iterations=cost.passes,
            lanes=cost.lanes,
            memory_cost=cost.memory_kib,
        )
    except UnsupportedAlgorithm as error:
        raise UsageError(
            "ST-USAG-004",
            "the OpenSSL of the installed cryptography has no Argon2id",
            fix="install cryptography from its wheels (OpenSSL 3.2 or later)",
        ) from error
    return kdf.derive(passphrase)


def _bound(header: bytes) -> bytes:
    return LABEL.encode() + b"\x00" + header


def _bad(what: str, where: str) -> IdentityError:
    return IdentityError(
        "ST-IDEN-001",
        f"the encrypted key cannot be opened: {what}",
        where,
        "give the passphrase that it was encrypted with, or restore the file",
    )
