# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain export PACK --format F --out FILE``: what a pack proves, for other tools."""

import tempfile
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from securetrain.cli.clock import now
from securetrain.cli.command import Option, verb
from securetrain.cli.options import OUT, PackTrust
from securetrain.report import Document

Format: TypeAlias = Literal["cyclonedx-1.6", "cyclonedx-1.7", "spdx-3.0.1", "slsa-provenance-1"]
"""Named here, so that ``--help`` loads nothing."""


@verb("export")
def command(
    *,
    path: Path,
    asked: PackTrust,
    kind: Annotated[Format, Option("--format", "The format to write.")],
    out: Annotated[Path, OUT.told("The document's file, which must not exist.")],
    weights: Annotated[
        Path | None,
        Option("--files", "The checkpoint's directory. Default: PATH, if it is one."),
    ],
    license_: Annotated[
        str, Option("--license", "The model's licence (SPDX); marked as declared.")
    ] = "",
) -> Document:
    r"""Write what the pack or checkpoint at PATH proves in a format that others read.

    Examples:
      securetrain export model.stpack --trust trust.json --format cyclonedx-1.7 --out model.cdx.json
      securetrain export model.stpack --trust trust.json --format spdx-3.0.1 --files step-00000400 \
          --license Apache-2.0 --out model.spdx.json
      securetrain export runs/r1/checkpoints/step-00000400 --trust runs/r1/trust.json \
          --format slsa-provenance-1 --out model.provenance.json

    Subjects are files by the SHA-256 of their bytes. A pack has no weights: give --files, and they
    are read, compared with what was signed, and hashed. What the pack's evidence does not show is
    marked 'declared'; what it contradicts, and a tier that nothing shows, is left out. The same
    pack gives the same bytes: times and serial numbers are the statement's, not of the moment. The
    document is signed by nobody.

    Exit codes: 0 written, and nothing is missing; 3 written, and evidence is missing: those facts
    are declared; 17 written without what evidence contradicts; with --policy, a refused pack is not
    written; 2 FILE is there, or cannot be written; 10 to 12 its statement does not verify; 13, 14
    --files has other or fewer files.
    """
    from securetrain.chain import ExportFormat, Pack, export, facts_of, pack
    from securetrain.core.files import write_atomic
    from securetrain.identity import load_trust
    from securetrain.report import packs, verification

    file = path
    with tempfile.TemporaryDirectory(prefix="securetrain-export-") as folder:
        if path.is_dir():
            at, file = now(), Path(folder, "made.stpack")
            data = None if asked.trust_data is None else load_trust(asked.trust_data, at)
            pack(path, file, trust=load_trust(asked.trust, at), data=data)
            weights = weights or path
        with Pack.open(file) as opened:
            result = asked.verify(opened)
            if asked.policy is not None and not result.ok:
                return verification.verified(result)
            facts = facts_of(opened, result, weights=weights, license_=license_)
    write_atomic(out, export(facts, ExportFormat(kind)), replace=False)
    return packs.exported(facts, result, kind, out)
