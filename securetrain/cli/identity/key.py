# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Keep signing keys: files, encrypted or not, and keys in PKCS#11 tokens.

Examples:
  securetrain key generate root-1.pem --encrypt
  securetrain key show root-1.pem.pub
  securetrain key show node-3.pem --name node-3.example --cosigner
  securetrain key show 'pkcs11:token=t;object=root?module-path=/usr/lib/softhsm/libsofthsm2.so'
  securetrain key passphrase root-1.pem --new-passphrase-file new.txt

A key is a file; a key in a PKCS#11 token by its URI (RFC 7512): token or serial, object or id, and
module-path; or a key of a cloud's key service: awskms:, gcpkms: or azurekms:. A token's PIN is
typed, or comes from --passphrase-file or pin-source=file:PATH. A passphrase goes through Argon2id;
the key is then sealed with AES-256-GCM.

Exit codes: 0 done; 2 the key, passphrase or token cannot be used, or the file exists already; 20 a
file cannot be read or written.
"""

from pathlib import Path
from typing import Annotated, Literal

import click

from securetrain.cli.command import Option, Output, Printed, VerbGroup, verb
from securetrain.cli.options import ENCRYPT, Secret
from securetrain.cli.passphrase import new_passphrase, read_passphrase
from securetrain.report import Document

command = VerbGroup(__name__, __doc__, {"": ("generate", "show", "passphrase")})


@verb()
def generate(
    *,
    path: Path,
    kind: Annotated[
        Literal["ed25519+ml-dsa-65", "ed25519+ml-dsa-44", "ed25519", "ecdsa-p256", "ml-dsa-44"],
        Option(
            "--kind",
            "A pair signs twice, so that its signatures outlive today's curves. For a log:"
            " ed25519+ml-dsa-44. For a witness: ml-dsa-44, or Ed25519.",
        ),
    ] = "ed25519+ml-dsa-65",
    encrypt: Annotated[bool, ENCRYPT],
    secret: Secret,
) -> Document:
    """Make a key: PATH (0600) and its public half, PATH.pub. Nothing is overwritten."""
    from securetrain.core.errors import UsageError
    from securetrain.core.files import write_atomic
    from securetrain.identity.keys import KeyKind, PrivateKey
    from securetrain.report import keys

    first, _, second = kind.partition("+")
    given = secret.new(encrypt=encrypt)
    public_path = path.with_name(f"{path.name}.pub")
    if public_path.exists():
        raise UsageError(
            "ST-USAG-005",
            "already exists and is never overwritten",
            str(public_path),
            "choose another name",
        )
    key = PrivateKey.create(path, KeyKind(first), given, KeyKind(second) if second else None)
    write_atomic(public_path, key.public.file_pem, replace=False)
    return keys.generated(key, path, public_path, encrypted=given is not None)


@verb()
def show(
    *,
    key: str,
    pem: Annotated[bool, Option("--pem", "Print the public key as PEM, and nothing else.")],
    name: Annotated[
        str, Option("--name", "Also its verifier key (C2SP vkey) under this name.")
    ] = "",
    cosigner: Annotated[bool, Option("--cosigner", "With --name: a witness's key, not a log's.")],
    secret: Secret,
    output: Output,
) -> Printed:
    """Show the id and the public half of KEY: a file (public or private) or a URI."""
    from securetrain.identity import read_public
    from securetrain.identity.log import vkey
    from securetrain.report import keys

    public = read_public(key, secret.ask)
    if pem:
        click.echo(public.file_pem.decode(), nl=False)
        return Printed(0)
    return output.emit(
        keys.public_half(public, vkey(name, public, cosigner=cosigner) if name else "")
    )


@verb()
def passphrase(
    *,
    path: Path,
    secret: Secret,
    new_passphrase_file: Annotated[
        Path | None,
        Option(
            "--new-passphrase-file",
            "File with the new passphrase; without it, it is asked for.",
        ),
    ],
    remove: Annotated[bool, Option("--remove", "Store the key without a passphrase.")],
) -> Document:
    """Change, set or remove the passphrase of the key file PATH.

    A key under PKCS#8's own encryption gets today's encryption with its new passphrase.
    """
    from securetrain.identity.keys import PrivateKey, is_encrypted
    from securetrain.report import keys

    if remove and new_passphrase_file:
        raise click.UsageError("give either --new-passphrase-file or --remove")
    old = secret.ask(f"passphrase of {path}") if is_encrypted(path) else None
    key = PrivateKey.load(path, old)
    new = None
    if not remove:
        new = read_passphrase(new_passphrase_file) if new_passphrase_file else new_passphrase(None)
    key.save(path, new)
    return keys.passphrase(key, encrypted=new is not None)
