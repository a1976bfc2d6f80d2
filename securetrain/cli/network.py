# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain network gc``: remove what launchers that were killed left of their job networks."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from securetrain.core.codes import ExitCode
from securetrain.core.text import printable

if TYPE_CHECKING:
    from securetrain.network.leftovers import Collected

EPILOG = """\
\b
Examples:
  securetrain network gc
  securetrain network gc --json

\b
Exit codes: 0 nothing of a dead owner is left; 1 something could not be removed or read; 20 the
state folder may not be read (it takes root, as job networks do).
"""


@click.group(name="network", epilog=EPILOG)
def command() -> None:
    """Look after the networks of jobs on this machine."""


@command.command(name="gc", epilog=EPILOG)
@click.option(
    "--state",
    type=click.Path(path_type=Path, readable=False),
    help="The state folder, when it is not the usual.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def gc(ctx: click.Context, state: Path | None, as_json: bool) -> None:
    """Remove the job networks whose owner is dead.

    A launcher takes its job network down itself, however it ends, unless it is killed with SIGKILL.
    Then its WireGuard engine, network namespace, packet filter and the processes inside are left;
    this ends and removes them. Job networks whose owner runs are never touched.
    """
    from securetrain.network.leftovers import collect
    from securetrain.network.record import STATE

    found = collect(state or STATE)
    code = ExitCode.FAILURE if found.problems else ExitCode.OK
    if as_json:
        click.echo(json.dumps(_document(found, code), indent=2, sort_keys=True))
    else:
        _show(found)
    ctx.exit(int(code))


def _document(found: "Collected", code: ExitCode) -> dict[str, object]:
    return {
        "removed": list(found.removed),
        "alive": list(found.alive),
        "problems": dict(found.problems),
        "exit": int(code),
    }


def _show(found: "Collected") -> None:
    for name in found.removed:
        click.echo(f"removed  {printable(name)}: its owner is dead")
    for name in found.alive:
        click.echo(f"in use   {printable(name)}")
    for name, problem in found.problems.items():
        click.echo(click.style(f"left     {printable(name)}: {printable(problem)}", fg="red"))
    if not (found.removed or found.alive or found.problems):
        click.echo("no job networks on this machine")
