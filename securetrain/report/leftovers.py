# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The page of ``network gc``: what dead launchers left behind."""

import click

from securetrain.core import ExitCode, printable
from securetrain.network import Collected
from securetrain.report.document import Document


def collected(found: Collected, groups: Collected) -> Document:
    """The networks and groups that were removed, are in use, or could not be removed.

    Args:
        found: The job networks.
        groups: Of cgroup v2.
    """
    problems = {**found.problems, **groups.problems}

    def text() -> None:
        for name in (*found.removed, *groups.removed):
            click.echo(f"removed  {printable(name)}: its owner is dead")
        for name in (*found.alive, *groups.alive):
            click.echo(f"in use   {printable(name)}")
        for name, problem in problems.items():
            click.echo(click.style(f"left     {printable(name)}: {printable(problem)}", fg="red"))
        if found == groups == Collected():
            click.echo("no job networks on this machine")

    code = int(ExitCode.FAILURE if problems else ExitCode.OK)
    data = {
        "removed": [*found.removed, *groups.removed],
        "alive": [*found.alive, *groups.alive],
        "problems": problems,
        "exit": code,
    }
    return Document(data=data, text=text, exit_code=code)
