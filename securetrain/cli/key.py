# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain key``: make signing keys, look at them, and change their passphrases."""

from pathlib import Path

import click

from securetrain.cli.options import file_argument, file_option, json_option, secret_option
from securetrain.cli.passphrase import asker, new_passphrase, read_passphrase
from securetrain.report import emit

EPILOG = """\
\b
Examples:
  securetrain key generate root-1.pem --encrypt
  securetrain key show root-1.pem.pub
  securetrain key show node-3.pem --name node-3.example --cosigner
  securetrain key show 'pkcs11:token=t;object=root?module-path=/usr/lib/softhsm/libsofthsm2.so'
  securetrain key passphrase root-1.pem --new-passphrase-file new.txt

\b
A key is a file; a key in a PKCS#11 token by its URI (RFC 7512): token or serial, object or id, and
module-path; or a key of a cloud's key service: awskms:, gcpkms: or azurekms:. A token's PIN is
typed, or comes from --passphrase-file or pin-source=file:PATH.
A passphrase goes through Argon2id; the key is then sealed with AES-256-GCM.

\b
Exit codes: 0 done; 2 the key, passphrase or token cannot be used, or the file exists already;
20 a file cannot be read or written.
"""

_PAIR = "ed25519+ml-dsa-65"
_LOG_PAIR = "ed25519+ml-dsa-44"
_KINDS = (_PAIR, _LOG_PAIR, "ed25519", "ecdsa-p256", "ml-dsa-44")


@click.group(name="key", epilog=EPILOG)
def command() -> None:
    """Keep signing keys: files, encrypted or not, and keys in PKCS#11 tokens."""


@command.command(name="generate", epilog=EPILOG)
@file_argument("path")
@click.option(
    "--kind",
    type=click.Choice(_KINDS),
    default=_KINDS[0],
    show_default=True,
    help="A pair signs twice, so that its signatures outlive today's curves. For a log:"
    " ed25519+ml-dsa-44. For a witness: ml-dsa-44, or Ed25519.",
)
@click.option("--encrypt", is_flag=True, help="Encrypt the key with a passphrase.")
@secret_option
@json_option
def generate(
    path: Path, kind: str, encrypt: bool, passphrase_file: Path | None, output: str
) -> int:
    """Make a key: PATH (0600) and its public half, PATH.pub. Nothing is overwritten."""
    from securetrain.core.errors import UsageError
    from securetrain.core.files import write_atomic
    from securetrain.identity.keys import KeyKind, PrivateKey
    from securetrain.report import keys

    first, _, second = kind.partition("+")
    secret = new_passphrase(passphrase_file) if encrypt or passphrase_file else None
    public_path = path.with_name(f"{path.name}.pub")
    if public_path.exists():
        raise UsageError(
            "ST-USAG-005",
            "already exists and is never overwritten",
            str(public_path),
            "choose another name",
        )
    key = PrivateKey.create(path, KeyKind(first), secret, KeyKind(second) if second else None)
    write_atomic(public_path, key.public.file_pem, replace=False)
    return emit(keys.generated(key, path, public_path, encrypted=secret is not None), output)


@command.command(name="show", epilog=EPILOG)
@click.argument("key")
@click.option("--pem", is_flag=True, help="Print the public key as PEM, and nothing else.")
@click.option("--name", default="", help="Also its verifier key (C2SP vkey) under this name.")
@click.option("--cosigner", is_flag=True, help="With --name: a witness's key, not a log's.")
@secret_option
@json_option
def show(  # noqa: PLR0917 - click passes options by name
    key: str, pem: bool, name: str, cosigner: bool, passphrase_file: Path | None, output: str
) -> int:
    """Show the id and the public half of KEY: a file (public or private) or a URI."""
    from securetrain.identity import read_public
    from securetrain.identity.log import vkey
    from securetrain.report import keys

    public = read_public(key, asker(passphrase_file))
    if pem:
        click.echo(public.file_pem.decode(), nl=False)
        return 0
    named = vkey(name, public, cosigner=cosigner) if name else ""
    return emit(keys.public_half(public, named), output)


@command.command(name="passphrase", epilog=EPILOG)
@file_argument("path")
@secret_option
@file_option(
    "--new-passphrase-file", help="File with the new passphrase; without it, it is asked for."
)
@click.option("--remove", is_flag=True, help="Store the key without a passphrase.")
@json_option
def passphrase(
    path: Path,
    passphrase_file: Path | None,
    new_passphrase_file: Path | None,
    remove: bool,
    output: str,
) -> int:
    """Change, set or remove the passphrase of the key file PATH.

    A key under PKCS#8's own encryption gets today's encryption with its new passphrase.
    """
    from securetrain.identity.keys import PrivateKey, is_encrypted
    from securetrain.report import keys

    if remove and new_passphrase_file:
        raise click.UsageError("give either --new-passphrase-file or --remove")
    old = asker(passphrase_file)(f"passphrase of {path}") if is_encrypted(path) else None
    key = PrivateKey.load(path, old)
    new = None
    if not remove:
        new = read_passphrase(new_passphrase_file) if new_passphrase_file else new_passphrase(None)
    key.save(path, new)
    return emit(keys.passphrase(key, encrypted=new is not None), output)
