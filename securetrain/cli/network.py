# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain network gc``: remove what launchers that were killed left of their job networks."""

from pathlib import Path

import click

from securetrain.cli.options import LocalFile, json_option
from securetrain.report import emit

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
    type=LocalFile(path_type=Path, readable=False),
    help="The state folder, when it is not the usual one.",
)
@json_option
def gc(state: Path | None, output: str) -> int:
    """Remove the job networks whose owner is dead.

    A launcher takes its job network down itself, however it ends, unless it is killed with SIGKILL.
    Then its WireGuard engine, network namespace, packet filter and the processes inside are left;
    this ends and removes them, and the groups of cgroup v2 in which workers were limited. What
    belongs to an owner that runs is never touched.
    """
    from securetrain.launch import collect_groups
    from securetrain.network import STATE, collect
    from securetrain.report import machine

    return emit(machine.leftovers(collect(state or STATE), collect_groups()), output)
