# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain catalogue init``: an empty catalogue, and who may sign for it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import click

from securetrain.cli.clock import now
from securetrain.cli.command import Option, verb
from securetrain.cli.options import OUT, Keys
from securetrain.report import Document


@dataclass(frozen=True, slots=True, kw_only=True)
class RootKeys(Keys):
    """The keys of the root."""

    keys: Annotated[tuple[str, ...], Option("--root-key", required=True)]
    """Private key of the root: it names the others. All that are given must sign."""


@verb(json="")
def init(
    *,
    folder: Path,
    root: RootKeys,
    signers: Annotated[
        tuple[str, ...], Option("--signer", "Public key of a signer.", required=True)
    ],
    threshold: Annotated[int, Option("--threshold", "Of the signers.", click.IntRange(min=1))] = 1,
    publishers: Annotated[
        tuple[str, ...],
        Option(
            "--publisher", "Public key that publishes what signers signed. Default: the signers."
        ),
    ],
    out: Annotated[Path, OUT.told("Where the first root is written, for readers.")],
) -> Document:
    """Make an empty catalogue in FOLDER."""
    from securetrain.artifacts.catalogue import editor
    from securetrain.core.files import write_atomic
    from securetrain.report import signatures

    data = editor.create(
        folder,
        roots=root.signers(),
        signers=root.public(signers),
        threshold=threshold,
        publishers=root.public(publishers or signers),
        now=now(),
    )
    write_atomic(out, data, replace=False)
    return signatures.begun(folder, out, threshold, len(signers))
