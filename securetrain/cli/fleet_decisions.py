# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain fleet decisions``: the ledger of the desk."""

from typing import Final

import click

from securetrain.cli.fleet_memory import fleet_desk
from securetrain.cli.options import json_option
from securetrain.report import emit

EPILOG: Final = """\
\b
Examples:
  securetrain fleet decisions
  securetrain fleet decisions node-17
  securetrain fleet decisions --json | jq '.decisions[] | select(.code)'

Tokens, proofs, refusals of machines with a token, signings and rejections, in order. Each line is
signed by the desk's key and names the one before it. A ledger that was changed, cut off or deleted
is refused, also where its record was put back with it: the fleet's state knows the last entry.

Exit codes: 0 shown; 1 the ledger was changed, or cannot be read; 2 bad command line.
"""


@click.command(name="decisions", epilog=EPILOG, short_help="Show what the desk has decided.")
@click.argument("nodes", nargs=-1)
@json_option
def decisions(nodes: tuple[str, ...], output: str) -> int:
    """Verify the desk's ledger and show it; of NODES or of all."""
    from securetrain.report import fleet

    with fleet_desk() as (desk, _):
        found = desk.decisions()
    chosen = [one for one in found if not nodes or one.body.event.subject in nodes]
    return emit(fleet.decisions_page(chosen), output)
