# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain fleet show``, ``sign`` and ``reject``: what machines have proven, and a person."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click

from securetrain.cli.fleet_admit import open_intake
from securetrain.cli.fleet_memory import fleet_desk
from securetrain.cli.options import days_option, file_option, json_option
from securetrain.report import emit

EPILOG: Final = """\
\b
Examples:
  securetrain fleet show --reference-values fleet.json --signed-by MCowBQYD...
  securetrain fleet show node-17
  securetrain fleet sign --all --reference-values fleet.json --key operator.pem
  securetrain fleet sign node-17 --reference-values fleet.json \\
      --key operator.pem
  securetrain fleet reject node-17

--all signs machines that boot what their image group boots, and the boot of a group that has none,
if its machines all boot the same. What would add to a group must be named: look at it first.

Exit codes: 0 shown, or all of it signed; 1 refused; 2 bad command line; 3 something was not signed.
"""


@click.command(name="show", epilog=EPILOG, short_help="Show what machines have proven.")
@click.argument("nodes", nargs=-1)
@file_option("--reference-values", "values", help="The fleet's signed file, to compare with.")
@click.option("--signed-by", multiple=True, metavar="KEY", help="A key that may have signed it.")
@json_option
def show(
    nodes: tuple[str, ...], values: Path | None, signed_by: tuple[str, ...], output: str
) -> int:
    """Show what was proven and waits, and what signing it would add; of NODES or of all."""
    from securetrain.attest.fleet import CurrentValues, lesson
    from securetrain.report import fleet

    if (values is None) != (not signed_by):
        raise click.UsageError("name --reference-values and --signed-by, or neither")
    with fleet_desk() as (desk, state):
        known = CurrentValues(values, signed_by, state)() if values is not None else None
        to_come = [one.node for one in desk.tokens() if not one.used]
        now, roots = datetime.now(UTC), desk.roots
        lessons = [lesson(known, one, roots, now) for one in desk.waiting(nodes)]
    return emit(fleet.waiting_page(lessons, to_come, full=bool(nodes)), output)


@click.command(name="sign", epilog=EPILOG, short_help="Sign what machines have proven.")
@click.argument("nodes", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All that add nothing to their group.")
@file_option("--reference-values", "values", required=True, help="The file; made when missing.")
@file_option("--key", "key_file", required=True, help="The operator's key.")
@click.option(
    "--signed-by",
    multiple=True,
    metavar="KEY",
    help="A key that may have signed what is there; repeatable. Default: --key.",
)
@days_option(90, "Days that the edition lasts.")
@json_option
def sign(
    *,
    nodes: tuple[str, ...],
    everything: bool,
    values: Path,
    key_file: Path,
    signed_by: tuple[str, ...],
    days: int,
    output: str,
) -> int:
    """Sign what NODES have proven into the reference values."""
    from securetrain.attest.fleet import Rule, key_text
    from securetrain.report import fleet

    if everything == bool(nodes):
        raise click.UsageError("name nodes, or --all")
    with fleet_desk() as (desk, state):
        intake = open_intake(values, key_file, signed_by, state, days)
        if everything:
            taken = intake.sign_by_rule(desk, Rule.FIRST)
        else:
            waiting = desk.waiting(nodes)
            if missing := sorted(set(nodes) - {one.node for one in waiting}):
                raise click.UsageError(f"{missing[0]}: nothing of it waits")
            taken = intake.sign(desk, waiting)
    return emit(fleet.taken_page(taken, values, key_text(intake.key.public)), output)


@click.command(name="reject", epilog=EPILOG, short_help="Throw away what a machine has proven.")
@click.argument("nodes", nargs=-1, required=True)
def reject(nodes: tuple[str, ...]) -> None:
    """Throw away what NODES have proven, and their unused tokens."""
    with fleet_desk() as (desk, _):
        found = desk.cancel(nodes, datetime.now(UTC))
    if not found:
        raise click.UsageError("none of them has a token or a proof that waits")
    click.echo(f"thrown away: tokens and proofs of {found} of {len(nodes)}")
