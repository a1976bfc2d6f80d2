# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain unpack PACK --out DIR``: the weights and rows that a pack holds."""

from pathlib import Path
from typing import Annotated

from securetrain.cli.command import verb
from securetrain.cli.options import OUT, PackTrust
from securetrain.report import Document


@verb("unpack")
def command(
    *, path: Path, asked: PackTrust, out: Annotated[Path, OUT.told("The new directory.")]
) -> Document:
    """Write the weights and rows that the pack at PATH holds.

    Examples:
      securetrain unpack model.stpack --trust trust.json --policy release.yaml --out model
      securetrain unpack replay.stpack --trust trust.json --out replay --json

    The pack is verified first; one that is refused is not unpacked. Every byte is compared with
    what was signed once more while it is written. DIR has the folders 'step-00000016', one for each
    checkpoint, and 'dataset'. Of a dataset of which the pack holds some rows, the rest of the files
    are holes: readers of signed datasets refuse those bytes.

    Exit codes: 0 unpacked; 1 the pack holds no weights and no rows; 2 DIR is there, or cannot be
    written; else those of 'securetrain verify'.
    """
    from securetrain.chain import Pack, unpack
    from securetrain.core.errors import UsageError
    from securetrain.core.files import staged_dir
    from securetrain.report import packs, verification

    with Pack.open(path) as opened:
        result = asked.verify(opened)
        if result.problems:
            return verification.verified(result)
        if not result.pack.held:
            raise UsageError(
                "ST-USAG-001",
                "the pack holds no weights and no rows",
                str(path),
                "have it packed with --weights, --rows or --dataset",
            )
        with staged_dir(out) as staging:
            for one in result.pack.held:
                unpack(opened, one, staging / one.name)
    return packs.unpacked(result, out)
