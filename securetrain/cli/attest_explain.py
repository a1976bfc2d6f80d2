# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain attest explain``: a refusal of evidence in words."""

from typing import Final

import click

from securetrain.cli.options import json_option
from securetrain.report import emit

EPILOG: Final = """\
\b
Examples:
  securetrain attest verify answer.json --policy fleet.yaml --json > result.json
  securetrain attest explain result.json
  securetrain attest explain runs/run-7-coordinator
  securetrain attest explain ST-ATTS-213

RESULT is the JSON of 'attest verify' or of a 'coordinator --json', the directory of a run, whose
ledger is verified, or a code.

Exit codes: 0 explained, or there is nothing to explain; 2 it is none of these; 4 a ledger is not
what was signed.
"""


@click.command(name="explain", epilog=EPILOG, short_help="Say why evidence was refused.")
@click.argument("result")
@json_option
def explain(result: str, output: str) -> int:
    """Say in words which rule RESULT broke, on which register and entry, and what to do."""
    from securetrain.attest.fleet import explain as explained
    from securetrain.report import evidence

    return emit(evidence.explained(explained(result)), output)
