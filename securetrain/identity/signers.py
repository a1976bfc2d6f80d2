# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Open whatever can sign, by the one name that a person gives.

A file; ``pkcs11:``, a key in a token; ``awskms:``, ``gcpkms:``, ``azurekms:``, a key in a cloud's
key service; ``keyless:``, an identity that a Sigstore instance vouches for.
"""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TypeAlias

from securetrain.core.errors import IdentityError
from securetrain.core.files import read_file
from securetrain.identity import keyless_signer, kms
from securetrain.identity.keys import (
    KEY_FILE_LIMIT,
    PrivateKey,
    PublicKey,
    Signer,
    is_encrypted,
)
from securetrain.identity.pkcs11 import SCHEME, Pkcs11Key, parse_uri

Ask: TypeAlias = Callable[[str], bytes]
"""Gives a secret for what it is told (a file's passphrase, a token's PIN)."""


def open_signer(name: str, ask: Ask) -> Signer:
    """Open a signer; `ask` is called only when a secret is needed.

    Raises:
        IdentityError: ST-IDEN-001, ST-IDEN-010, ST-IDEN-019, ST-IDEN-025 to 027.
        UsageError: ST-USAG-001, ST-USAG-002, ST-USAG-004.
    """
    if name.startswith(SCHEME):
        return _open_token(name, ask)
    if name.startswith(keyless_signer.SCHEME):
        return keyless_signer.open_named(name)
    if kms.is_named(name):
        return kms.KmsKey.open(name)
    path = Path(name)
    return PrivateKey.load(path, ask(f"passphrase of {name}") if is_encrypted(path) else None)


def read_public(name: str, ask: Ask) -> PublicKey:
    """The public key of a PEM file (public, or a private one's), or of a key elsewhere.

    Raises:
        IdentityError: ST-IDEN-001, ST-IDEN-010, ST-IDEN-019, ST-IDEN-027.
        UsageError: ST-USAG-002, ST-USAG-004.
    """
    if name.startswith(SCHEME):
        with closing(_open_token(name, ask)) as key:
            return key.public
    if kms.is_named(name):
        return kms.KmsKey.open(name).public
    data = read_file(Path(name), KEY_FILE_LIMIT)
    if b"PRIVATE KEY" in data.split(b"\n", 1)[0]:
        return open_signer(name, ask).public
    try:
        return PublicKey.from_pem(data, name)
    except IdentityError as error:
        raise IdentityError(error.code, error.what, name, error.fix) from error


def _open_token(name: str, ask: Ask) -> Pkcs11Key:
    return Pkcs11Key.open(name, None if parse_uri(name).pin_file else ask("PIN of the token"))
