# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain key``: make signing keys, look at them, and change their passphrases."""

import json
from pathlib import Path

import click

from securetrain.cli.passphrase import asker, new_passphrase, read_passphrase, secret_option
from securetrain.core.text import printable

EPILOG = """\
\b
Examples:
  securetrain key generate root-1.pem --encrypt
  securetrain key show root-1.pem.pub
  securetrain key show node-3.pem --name node-3.example --cosigner
  securetrain key show 'pkcs11:token=t;object=root?module-path=/usr/lib/softhsm/libsofthsm2.so'
  securetrain key passphrase root-1.pem --new-passphrase-file new.txt

\b
A key is a file, or a key in a PKCS#11 token by its URI (RFC 7512): token or serial, object or id,
and module-path. A token's PIN is typed, or comes from --passphrase-file or pin-source=file:PATH.
A passphrase goes through Argon2id; the key is then sealed with AES-256-GCM.

\b
Exit codes: 0 done; 2 the key, passphrase or token cannot be used, or the file exists already;
20 a file cannot be read or written.
"""

_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_KINDS = ("ed25519", "ecdsa-p256")


@click.group(name="key", epilog=EPILOG)
def command() -> None:
    """Keep signing keys: files, encrypted or not, and keys in PKCS#11 tokens."""


@command.command(name="generate", epilog=EPILOG)
@click.argument("path", type=click.Path(path_type=Path))
@click.option(
    "--kind",
    type=click.Choice(_KINDS),
    default=_KINDS[0],
    show_default=True,
    help="Logs and witnesses need Ed25519.",
)
@click.option("--encrypt", is_flag=True, help="Encrypt the key with a passphrase.")
@secret_option
@_JSON
def generate(
    path: Path, kind: str, encrypt: bool, passphrase_file: Path | None, as_json: bool
) -> None:
    """Make a key: PATH (0600) and its public half, PATH.pub. Nothing is overwritten."""
    from securetrain.core.errors import UsageError
    from securetrain.core.files import write_atomic
    from securetrain.identity.keys import KeyKind, PrivateKey

    secret = new_passphrase(passphrase_file) if encrypt or passphrase_file else None
    public_path = path.with_name(f"{path.name}.pub")
    if public_path.exists():
        raise UsageError(
            "ST-USAG-005",
            "already exists and is never overwritten",
            str(public_path),
            "choose another name",
        )
    key = PrivateKey.create(path, KeyKind(kind), secret)
    write_atomic(public_path, key.public.pem, replace=False)
    facts = {
        "path": str(path),
        "public": str(public_path),
        "key_id": key.key_id,
        "kind": kind,
        "encrypted": secret is not None,
    }
    if as_json:
        click.echo(json.dumps(facts, indent=2, sort_keys=True))
        return
    click.echo(f"{kind} key {key.key_id}")
    click.echo(f"private: {printable(str(path))}, public: {printable(str(public_path))}")
    if secret is None:
        click.echo("it is not encrypted (--encrypt); only this user can read it")


@command.command(name="show", epilog=EPILOG)
@click.argument("key")
@click.option("--pem", is_flag=True, help="Print the public key as PEM, and nothing else.")
@click.option("--name", default="", help="Also its verifier key (C2SP vkey) under this name.")
@click.option("--cosigner", is_flag=True, help="With --name: that of a witness, not of a log.")
@secret_option
@_JSON
def show(  # noqa: PLR0917 - click passes options by name
    key: str, pem: bool, name: str, cosigner: bool, passphrase_file: Path | None, as_json: bool
) -> None:
    """Show the id and the public half of KEY: a file (public or private) or a pkcs11: URI."""
    from securetrain.identity.log.note import vkey
    from securetrain.identity.signers import read_public

    public = read_public(key, asker(passphrase_file))
    if pem:
        click.echo(public.pem.decode(), nl=False)
        return
    facts = {"key_id": public.key_id, "kind": str(public.kind), "pem": public.pem.decode()}
    if name:
        facts["vkey"] = vkey(name, public, cosigner=cosigner)
    if as_json:
        click.echo(json.dumps(facts, indent=2, sort_keys=True))
        return
    click.echo(f"{facts['kind']} key {facts['key_id']}")
    if name:
        click.echo(facts["vkey"])
    click.echo(facts["pem"], nl=False)


@command.command(name="passphrase", epilog=EPILOG)
@click.argument("path", type=click.Path(path_type=Path))
@secret_option
@click.option(
    "--new-passphrase-file",
    type=click.Path(path_type=Path),
    help="File with the new passphrase; without it, it is asked for.",
)
@click.option("--remove", is_flag=True, help="Store the key without a passphrase.")
@_JSON
def passphrase(
    path: Path,
    passphrase_file: Path | None,
    new_passphrase_file: Path | None,
    remove: bool,
    as_json: bool,
) -> None:
    """Change, set or remove the passphrase of the key file PATH.

    A key that PKCS#8's own encryption protects gets that of today with its new passphrase.
    """
    from securetrain.identity.keys import PrivateKey, is_encrypted

    if remove and new_passphrase_file:
        raise click.UsageError("give either --new-passphrase-file or --remove")
    old = asker(passphrase_file)(f"passphrase of {path}") if is_encrypted(path) else None
    key = PrivateKey.load(path, old)
    if remove:
        new = None
    elif new_passphrase_file is not None:
        new = read_passphrase(new_passphrase_file)
    else:
        new = new_passphrase(None)
    key.save(path, new)
    if as_json:
        facts = {"key_id": key.key_id, "encrypted": new is not None}
        click.echo(json.dumps(facts, indent=2, sort_keys=True))
        return
    click.echo(f"key {key.key_id}: {'encrypted' if new is not None else 'not encrypted'}")
