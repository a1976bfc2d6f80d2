# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain log init``, ``append`` and ``checkpoint``: what a log says."""

from pathlib import Path
from typing import Annotated

from securetrain.cli.clock import now
from securetrain.cli.command import Argument, Option, verb
from securetrain.cli.identity.log.options import LogKey, LogTrust
from securetrain.report import Document


@verb()
def init(
    *,
    folder: Path,
    origin: Annotated[str, Option("--origin", "Its name, like a URL without a scheme.")],
    key: LogKey,
) -> Document:
    """Begin an empty log in FOLDER."""
    from securetrain.identity.log import Log, vkey
    from securetrain.report import keys

    signer = key.signer()
    Log.create(folder, origin, signer)
    return keys.begun(folder, origin, vkey(origin, signer.public))


@verb()
def append(
    *,
    folder: Path,
    envelopes: Annotated[tuple[Path, ...], Argument(required=True)],
    key: LogKey,
    trust: LogTrust,
) -> Document:
    """Log DSSE envelopes whose every signature verifies under a key of the trust root."""
    from securetrain.core.files import read_file
    from securetrain.identity.dsse import ENVELOPE_LIMIT
    from securetrain.identity.log import entry_of
    from securetrain.report import keys

    root = trust.root()
    log = trust.log(folder, root)
    entries = [
        entry_of(read_file(path, ENVELOPE_LIMIT), root.keys, str(path)) for path in envelopes
    ]
    return keys.appended(envelopes, log.append_entries(entries, key.signer()))


@verb()
def checkpoint(
    *,
    folder: Path,
    trust: LogTrust,
    whole: Annotated[bool, Option("--all", "Also read every entry and compare it.")],
    add: Annotated[
        Path | None,
        Option(
            "--add",
            "Add the cosignature lines in this file, if they are of the trust root's witnesses.",
        ),
    ],
) -> Document:
    """Show what the log in FOLDER says now, if it and enough witnesses signed it."""
    from securetrain.core.files import read_file
    from securetrain.identity.log import note, open_checkpoint
    from securetrain.report import keys

    log = trust.log(folder)
    if add is not None:
        lines = note.parse_lines(read_file(add, note.LIMIT).decode("utf-8", "replace"), str(add))
        log.add_cosignatures(log.state()[1].text, lines)
    if whole:
        log.verify_all()
    data = log.state()[1].encode()
    found = open_checkpoint(data, log.policy, now(), str(folder))
    return keys.checkpoint(found, data.decode())
