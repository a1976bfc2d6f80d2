# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain catalogue add`` and ``remove``: what a name is to mean."""

from pathlib import Path
from typing import Annotated

from securetrain.cli.artifacts.names import Root, open_editor
from securetrain.cli.clock import now
from securetrain.cli.command import verb
from securetrain.cli.options import TRUST
from securetrain.report import Document


@verb()
def add(
    *,
    folder: Path,
    name: str,
    path: Path,
    root: Root,
    trust: Annotated[Path, TRUST.told("The trust root that verifies PATH.")],
) -> Document:
    """Draft that NAME means the checkpoint or dataset at PATH, which is verified and lies below
    FOLDER.
    """
    from securetrain.artifacts import add_name
    from securetrain.identity import load_trust
    from securetrain.report import signatures

    editor, at = open_editor(folder, root), now()
    add_name(editor, name, path, load_trust(trust, at), at)
    return signatures.drafted(editor, folder)


@verb()
def remove(*, folder: Path, name: str, root: Root) -> Document:
    """Draft that NAME means nothing any more."""
    from securetrain.report import signatures

    editor = open_editor(folder, root)
    editor.drop(name)
    return signatures.drafted(editor, folder)
