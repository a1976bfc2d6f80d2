# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The page of ``network gc``: what dead launchers left behind."""

import click

from securetrain.core import ExitCode, printable
from securetrain.network import Collected
from securetrain.report.document import Document


def collected(found: Collected) -> Document:
    """The networks that were removed, are in use, or could not be removed."""

    def text() -> None:
        for name in found.removed:
            click.echo(f"removed  {printable(name)}: its owner is dead")
        for name in found.alive:
            click.echo(f"in use   {printable(name)}")
        for name, problem in found.problems.items():
            click.echo(click.style(f"left     {printable(name)}: {printable(problem)}", fg="red"))
        if not (found.removed or found.alive or found.problems):
            click.echo("no job networks on this machine")

    code = int(ExitCode.FAILURE if found.problems else ExitCode.OK)
    data = {
        "removed": list(found.removed),
        "alive": list(found.alive),
        "problems": dict(found.problems),
        "exit": code,
    }
    return Document(data=data, text=text, exit_code=code)
