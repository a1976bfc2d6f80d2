# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain fleet join``: a machine proves itself with a one-time token."""

import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click

from securetrain.cli.options import file_option, json_option
from securetrain.report import emit

EPILOG: Final = """\
\b
Examples:
  securetrain fleet join sf1_eyJ...
  securetrain fleet join - --attester attester.json < token

The TPM and its logs are root's. Everything is in the token: where the desk is, and the key that
must answer there. A try that fails does not spend the token.

Exit codes: 0 proven, and kept by the desk; 1 refused, or the TPM does not do what is needed; 2 bad
command line, or a token that was not copied whole; 20 a file cannot be read or written.
"""


@click.command(name="join", epilog=EPILOG, short_help="Prove this machine with a token.")
@click.argument("text", metavar="TOKEN")
@click.option(
    "--attester",
    default="auto",
    show_default=True,
    help="Sources of evidence: 'auto' (what this machine has) or a settings file.",
)
@file_option(
    "--state",
    help="Private folder of the keys. Default: ~/.local/state/securetrain, for root"
    " /var/lib/securetrain.",
)
@json_option
def join(text: str, attester: str, state: Path | None, output: str) -> int:
    """Prove this machine to a fleet with TOKEN ('-' reads it from standard input)."""
    from securetrain.attest.fleet import default_state, parse_fleet_token
    from securetrain.identity import TEXT_LIMIT
    from securetrain.rendezvous.member import join_fleet
    from securetrain.report import fleet

    line = sys.stdin.read(TEXT_LIMIT + 1) if text == "-" else text
    joined = join_fleet(
        parse_fleet_token(line),
        state=state or default_state(Path.home(), os.geteuid()),
        attester=attester,
        environ=os.environ,
        clock=lambda: datetime.now(UTC),
    )
    return emit(fleet.joined_page(joined), output)
