# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain catalogue``: keep a signed list of which artifact a name means."""

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from securetrain.cli.options import (
    CATALOGUE_ROOT_VARIABLE,
    TRUST_VARIABLE,
    Place,
    days_option,
    file_argument,
    file_option,
    json_option,
    secret_option,
)
from securetrain.cli.passphrase import asker
from securetrain.report import emit

if TYPE_CHECKING:
    from securetrain.artifacts.catalogue import Catalogue, Editor

EPILOG: Final = """\
\b
Examples:
  securetrain catalogue init models --root-key root.key --signer alice.pub.pem \\
      --signer bob.pub.pem --threshold 2 --publisher ci.pub.pem --out root.json
  securetrain catalogue add models prod-model models/llama-4000 --catalogue-root root.json \\
      --trust trust.json
  securetrain catalogue sign models --catalogue-root root.json --key alice.key
  securetrain catalogue sign models --catalogue-root root.json --key bob.key --key ci.key
  securetrain catalogue show models --catalogue-root root.json
  securetrain catalogue export models layout --catalogue-root root.json
  securetrain verify prod-model@models --catalogue-root root.json --trust trust.json

\b
The metadata lies in the folder 'catalogue' of FOLDER, in the form of TUF; the artifacts lie
anywhere else below FOLDER. Copy FOLDER to a web server's or object store's prefix as it is, or the
metadata into a registry ('export' writes an OCI layout). Readers are given root.json once, from
another place; each machine keeps what it has seen, and no catalogue goes back behind that.

\b
Exit codes: 0 done; 2 bad arguments, or a key that is not of this catalogue; 10 not a catalogue;
11 not signed by enough; 12 no such name; 14 an entry leads out of the folder; 15 expired, or older
than what was seen.
"""

_ROOT = file_option(
    "--catalogue-root",
    "root",
    required=True,
    envvar=CATALOGUE_ROOT_VARIABLE,
    show_envvar=True,
    help="The catalogue's first root, from another place than the catalogue.",
)
_FOLDER = file_argument("folder")
_KEYS = click.option(
    "--key",
    "keys",
    multiple=True,
    required=True,
    help="A private key: a file or a pkcs11: URI. May be given several times.",
)


@click.group(name="catalogue", epilog=EPILOG)
def command() -> None:
    """Keep a catalogue: names of artifacts, signed by several people, that never goes back."""


@command.command(name="init", epilog=EPILOG)
@_FOLDER
@click.option(
    "--root-key",
    "roots",
    multiple=True,
    required=True,
    help="Private key of the root: it names the others. All that are given must sign.",
)
@click.option("--signer", "signers", multiple=True, required=True, help="Public key of a signer.")
@click.option(
    "--threshold", type=click.IntRange(min=1), default=1, show_default=True, help="Of the signers."
)
@click.option(
    "--publisher",
    "publishers",
    multiple=True,
    help="Public key that publishes what signers signed. Default: the signers.",
)
@file_option("--out", required=True, help="Where the first root is written, for readers.")
@secret_option
def init(  # noqa: PLR0917 - click passes options by name
    folder: Path,
    roots: tuple[str, ...],
    signers: tuple[str, ...],
    threshold: int,
    publishers: tuple[str, ...],
    out: Path,
    passphrase_file: Path | None,
) -> int:
    """Make an empty catalogue in FOLDER."""
    from securetrain.artifacts.catalogue import create
    from securetrain.core.files import write_atomic
    from securetrain.identity import open_signer, read_public
    from securetrain.report import signatures

    ask = asker(passphrase_file)
    data = create(
        folder,
        roots=[open_signer(name, ask) for name in roots],
        signers=[read_public(name, ask) for name in signers],
        threshold=threshold,
        publishers=[read_public(name, ask) for name in publishers or signers],
        now=datetime.now(UTC),
    )
    write_atomic(out, data, replace=False)
    return emit(signatures.begun(folder, out, threshold, len(signers)), "text")


@command.command(name="add", epilog=EPILOG)
@_FOLDER
@click.argument("name")
@file_argument("path")
@_ROOT
@file_option(
    "--trust",
    "trust_file",
    required=True,
    envvar=TRUST_VARIABLE,
    show_envvar=True,
    help="The trust root that verifies PATH.",
)
@json_option
def add(  # noqa: PLR0917 - click passes options by name
    folder: Path, name: str, path: Path, root: Path, trust_file: Path, output: str
) -> int:
    """Draft that NAME means the checkpoint or dataset at PATH, which is verified and lies below
    FOLDER.
    """
    from securetrain.artifacts import Expectation, verify_path
    from securetrain.artifacts.catalogue import Entry, read_signed
    from securetrain.core.errors import UsageError
    from securetrain.identity import load_trust
    from securetrain.report import signatures

    editor, now = _editor(folder, root), datetime.now(UTC)
    place, base = path.resolve(), folder.resolve()
    if not place.is_relative_to(base) or place == base:
        raise UsageError(
            "ST-USAG-001", f"it does not lie below {folder}", str(path), "move or copy it there"
        )
    trust = load_trust(trust_file, now)
    opened = read_signed(place, trust)
    meant = Expectation(digest=opened.digest, statement=opened.statement)
    found = verify_path(place, trust=trust, policy=None, now=now, expect=meant)
    for problem in found.problems:
        raise problem.error(str(path))
    entry = Entry(
        digest=opened.digest,
        statement=opened.statement,
        location=place.relative_to(base).as_posix(),
        kind=str(found.kind),
    )
    editor.put(name, entry, opened.statement_size)
    return emit(signatures.drafted(editor, folder), output)


@command.command(name="remove", epilog=EPILOG)
@_FOLDER
@click.argument("name")
@_ROOT
@json_option
def remove(folder: Path, name: str, root: Path, output: str) -> int:
    """Draft that NAME means nothing any more."""
    from securetrain.report import signatures

    editor = _editor(folder, root)
    editor.drop(name)
    return emit(signatures.drafted(editor, folder), output)


@command.command(name="sign", epilog=EPILOG)
@_FOLDER
@_ROOT
@_KEYS
@days_option(90, "Days that what is signed now counts.")
@secret_option
@json_option
def sign(  # noqa: PLR0917 - click passes options by name
    folder: Path,
    root: Path,
    keys: tuple[str, ...],
    days: int,
    passphrase_file: Path | None,
    output: str,
) -> int:
    """Sign the draft and print what it changes; with enough signatures and a publisher's key,
    publish it. Without a draft, sign what is published for another term.
    """
    from securetrain.artifacts.catalogue import Term
    from securetrain.identity import open_signer
    from securetrain.report import signatures

    editor, ask = _editor(folder, root), asker(passphrase_file)
    changes = signatures.changes(editor)
    signers = [open_signer(name, ask) for name in keys]
    published = editor.sign(signers, Term(now=datetime.now(UTC), days=days))
    page = signatures.signed(editor, folder, changes, published=published)
    return emit(page, output)


@command.command(name="show", epilog=EPILOG)
@click.argument("folder", type=Place())
@_ROOT
@json_option
def show(folder: Path | str, root: Path, output: str) -> int:
    """Print what the catalogue in FOLDER (or at a URL, or in an OCI layout) names, verified."""
    from securetrain.report import signatures

    return emit(signatures.shown(open_catalogue(folder, root).entries(), folder), output)


@command.command(name="export", epilog=EPILOG)
@_FOLDER
@file_argument("layout")
@_ROOT
def export(folder: Path, layout: Path, root: Path) -> int:
    """Write the published metadata as the new OCI layout LAYOUT."""
    from securetrain.report import signatures

    _editor(folder, root).export(layout)
    return emit(signatures.exported(layout), "text")


def open_catalogue(place: Path | str, root: Path) -> "Catalogue":
    """The catalogue at a place, with what this machine has seen of it."""
    from securetrain.artifacts.catalogue import Catalogue
    from securetrain.launch import this_node

    return Catalogue(place=place, root=root, state=this_node(os.environ).catalogues)


def _editor(folder: Path, root: Path) -> "Editor":
    from securetrain.artifacts.catalogue import Editor

    return Editor(folder, open_catalogue(folder, root))
