# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain unpack PACK --out DIR``: the weights and rows that a pack holds."""

from pathlib import Path
from typing import Final

import click

from securetrain.cli.options import TRUST_VARIABLE, file_argument, file_option, json_option
from securetrain.report import emit

EPILOG: Final = """\
\b
Examples:
  securetrain unpack model.stpack --trust trust.json --policy release.yaml --out model
  securetrain unpack replay.stpack --trust trust.json --out replay --json

\b
The pack is verified first; one that is refused is not unpacked. Every byte is compared with what
was signed once more while it is written. DIR has the folders 'step-00000016', one for each
checkpoint, and 'dataset'. Of a dataset of which the pack holds some rows, the rest of the files are
holes: readers of signed datasets refuse those bytes.

\b
Exit codes: 0 unpacked; 1 the pack holds no weights and no rows; 2 DIR is there, or cannot be
written; else those of 'securetrain verify'.
"""


@click.command(name="unpack", epilog=EPILOG)
@file_argument("path")
@file_option(
    "--trust",
    "trust_file",
    required=True,
    envvar=TRUST_VARIABLE,
    show_envvar=True,
    help="The trust root, a file or a folder of 'trust update'.",
)
@file_option("--out", required=True, help="The new directory.")
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
    out: Path,
    policy_name: str | None,
    trust_data: Path | None,
    at: str,
    output: str,
) -> int:
    """Write the weights and rows that the pack at PATH holds."""
    from securetrain.chain import Pack, unpack
    from securetrain.cli.pack import judged
    from securetrain.core.errors import UsageError
    from securetrain.core.files import staged_dir
    from securetrain.policy.load import load_policy
    from securetrain.report import packs

    policy = None if policy_name is None else load_policy(policy_name)
    with Pack.open(path) as opened:
        result = judged(opened, trust_file=trust_file, trust_data=trust_data, policy=policy, at=at)
        if result.problems:
            return emit(packs.verified(result, policy, trust_file), output)
        if not result.held:
            raise UsageError(
                "ST-USAG-001",
                "the pack holds no weights and no rows",
                str(path),
                "have it packed with --weights, --rows or --dataset",
            )
        with staged_dir(out) as staging:
            for one in result.held:
                unpack(opened, one, staging / one.name)
    return emit(packs.unpacked(result, out), output)
