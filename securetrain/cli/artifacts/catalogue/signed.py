# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain catalogue sign``, ``show`` and ``export``: what names mean."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from securetrain.cli.artifacts.names import Root, open_catalogue, open_editor
from securetrain.cli.clock import now
from securetrain.cli.command import Argument, verb
from securetrain.cli.kinds import Place
from securetrain.cli.options import DAYS, KEY, Keys
from securetrain.report import Document


@dataclass(frozen=True, slots=True, kw_only=True)
class SigningKeys(Keys):
    """The keys of signers and publishers."""

    keys: Annotated[tuple[str, ...], KEY.told(required=True)]
    """A private key: a file or a pkcs11: URI. May be given several times."""


@verb()
def sign(
    *,
    folder: Path,
    root: Root,
    keys: SigningKeys,
    days: Annotated[int, DAYS.told("Days that what is signed now counts.")] = 90,
) -> Document:
    """Sign the draft and print what it changes; with enough signatures and a publisher's key,
    publish it. Without a draft, sign what is published for another term.
    """
    from securetrain.artifacts.catalogue import editor as catalogue_editor
    from securetrain.report import signatures

    editor = open_editor(folder, root)
    changes = signatures.changes(editor)
    published = editor.sign(keys.signers(), catalogue_editor.Term(now=now(), days=days))
    return signatures.signed(editor, folder, changes, published=published)


@verb()
def show(*, folder: Annotated[Path | str, Argument(type=Place())], root: Root) -> Document:
    """Print what the catalogue in FOLDER (or at a URL, or in an OCI layout) names, verified."""
    from securetrain.report import signatures

    return signatures.shown(open_catalogue(folder, root).entries(), folder)


@verb(json="")
def export(*, folder: Path, layout: Path, root: Root) -> Document:
    """Write the published metadata as the new OCI layout LAYOUT."""
    from securetrain.report import signatures

    open_editor(folder, root).export(layout)
    return signatures.exported(layout)
