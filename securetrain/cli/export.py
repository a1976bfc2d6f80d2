# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain export PACK --format F --out FILE``: what a pack proves, for other tools."""

import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click

from securetrain.cli.options import TRUST_VARIABLE, file_argument, file_option, json_option
from securetrain.report import emit

FORMATS: Final = ("cyclonedx-1.6", "cyclonedx-1.7", "spdx-3.0.1", "slsa-provenance-1")
"""Named here, so that ``--help`` loads nothing."""

EPILOG: Final = """\
\b
Examples:
  securetrain export model.stpack --trust trust.json --format cyclonedx-1.7 --out model.cdx.json
  securetrain export model.stpack --trust trust.json --format spdx-3.0.1 --files step-00000400 \\
      --license Apache-2.0 --out model.spdx.json
  securetrain export runs/r1/checkpoints/step-00000400 --trust runs/r1/trust.json \\
      --format slsa-provenance-1 --out model.provenance.json

\b
Subjects are files by the SHA-256 of their bytes. A pack has no weights: give --files, and they are
read, compared with what was signed, and hashed. What the pack's evidence does not show is marked
'declared'; what it contradicts, and a tier that nothing shows, is left out. The same pack gives
the same bytes: times and serial numbers are the statement's, not of the moment.
The document is signed by nobody.

\b
Exit codes: 0 written, and nothing is missing; 3 written, and evidence is missing: those facts are
declared; 17 written without what evidence contradicts; with --policy, a refused pack is not
written; 2 FILE is there, or cannot be written; 10 to 12 its statement does not verify; 13, 14
--files has other or fewer files.
"""


@click.command(name="export", epilog=EPILOG)
@file_argument("path")
@file_option(
    "--trust",
    "trust_file",
    required=True,
    envvar=TRUST_VARIABLE,
    show_envvar=True,
    help="The trust root, a file or a folder of 'trust update'.",
)
@click.option(
    "--format", "kind", type=click.Choice(FORMATS), required=True, help="The format to write."
)
@file_option("--out", required=True, help="The document's file, which must not exist.")
@file_option("--files", "weights", help="The checkpoint's directory. Default: PATH, if it is one.")
@click.option(
    "--license", "license_", default="", help="The model's licence (SPDX); marked as declared."
)
@click.option("--policy", "policy_name", help="A policy that the pack must meet. Default: none.")
@file_option(
    "--trust-data",
    help="The trust root of whoever made its dataset, where --trust does not name them.",
)
@click.option(
    "--at",
    type=click.Choice(["now", "witness"]),
    default="now",
    help="Judge at the time at which the log's witnesses had seen it.",
)
@json_option
def command(
    *,
    path: Path,
    trust_file: Path,
    kind: str,
    out: Path,
    weights: Path | None,
    license_: str,
    policy_name: str | None,
    trust_data: Path | None,
    at: str,
    output: str,
) -> int:
    """Write what the pack or checkpoint at PATH proves in a format that others read."""
    from securetrain.chain import ExportFormat, Pack, export, facts_of, pack
    from securetrain.cli.pack import judged
    from securetrain.core.files import write_atomic
    from securetrain.identity import load_trust
    from securetrain.policy.load import load_policy
    from securetrain.report import packs

    policy = None if policy_name is None else load_policy(policy_name)
    with tempfile.TemporaryDirectory(prefix="securetrain-export-") as folder:
        file = path
        if path.is_dir():
            now, file = datetime.now(UTC), Path(folder, "made.stpack")
            data = None if trust_data is None else load_trust(trust_data, now)
            pack(path, file, trust=load_trust(trust_file, now), data=data)
            weights = weights or path
        with Pack.open(file) as opened:
            result = judged(
                opened, trust_file=trust_file, trust_data=trust_data, policy=policy, at=at
            )
            if policy is not None and not result.ok:
                return emit(packs.verified(result, policy, trust_file), output)
            facts = facts_of(opened, result, weights=weights, license_=license_)
    written = export(facts, ExportFormat(kind))
    write_atomic(out, written, replace=False)
    return emit(packs.exported(facts, result, kind, out), output)
