# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain trust show`` and ``update``: the trust root that a machine has."""

from pathlib import Path
from typing import Annotated

import click

from securetrain.cli.clock import now
from securetrain.cli.command import Option, verb
from securetrain.report import Document


@verb()
def show(*, path: Path) -> Document:
    """Show the trust root in PATH: a file, or a folder that 'trust update' keeps."""
    from securetrain.identity import load_trust
    from securetrain.report import keys

    return keys.root(load_trust(path, now()).document)


@verb()
def update(
    *,
    folder: Path,
    pin: Annotated[Path | None, Option("--pin", "Trust this file, on your word.")],
    source: Annotated[
        Path | None, Option("--from", "Follow the published versions in this folder.")
    ],
) -> Document:
    """Keep in FOLDER what this machine trusts: begin with --pin, then follow with --from."""
    from securetrain.core.files import read_file
    from securetrain.identity import TrustStore
    from securetrain.identity.trust import LIMIT
    from securetrain.report import keys

    if pin is None and source is None:
        raise click.UsageError("give --pin FILE, --from FOLDER, or both")
    at, store = now(), TrustStore(folder)
    if pin is not None:
        store.pin(read_file(pin, LIMIT), at, str(pin))
    root = store.current(at) if source is None else store.update_from(source, at)
    return keys.followed(root.document)
