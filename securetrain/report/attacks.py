# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The pages of ``drill``: attacks, and what became of them."""

from collections.abc import Collection, Sequence

import click
import msgspec

from securetrain.core import CODES, ExitCode, printable
from securetrain.core.errors import SecureTrainError
from securetrain.core.vocabulary import Boundary
from securetrain.report.document import Document
from securetrain.report.model import DrillView, json_text


class Attack(msgspec.Struct):
    """An attack of the catalogue, as far as it is listed."""

    id: str
    title: str
    boundary: Boundary
    summary: str


def catalogue(drills: Sequence[object]) -> Document:
    """All drills, without a run."""

    def text() -> None:
        for drill in msgspec.convert(drills, list[Attack], from_attributes=True):
            click.echo(f"{drill.id:<18}{drill.boundary:<14}{drill.title}")
            click.echo(f"{'':<18}{drill.summary}\n")

    return Document(data=json_text(drills), text=text)


def results(found: Sequence[object], problems: Collection[str]) -> Document:
    """The results of a run; each one has been shown as it came.

    Args:
        found: The drills' results.
        problems: Their codes, without those that hold.
    """
    data = json_text({"ok": not problems, "drills": found})
    worst = min((CODES[problem].exit for problem in problems), default=ExitCode.OK)
    return Document(data=data, text=(), exit_code=worst)


def show(result: object, error: SecureTrainError | None) -> None:
    """One drill on the terminal; what the attacked side wrote is never markup."""
    drill = msgspec.convert(result, DrillView, from_attributes=True)
    plain, hardened = drill.plain, drill.hardened
    click.echo(click.style(f"{drill.id}  {drill.title}", bold=True))
    if error is not None and error.code == "ST-DRIL-004":
        click.echo(click.style(f"  not run       {printable(str(error))}\n", fg="yellow"))
        return
    outcome = (
        click.style("attack succeeded", fg="red")
        if plain.succeeded
        else click.style("attack did not succeed: proves nothing", fg="yellow")
    )
    click.echo(f"  plain stack   {outcome} ({plain.seconds:.1f} s)")
    click.echo(f"                {printable(plain.evidence)}")
    outcome = (
        click.style(f"refused {hardened.code}", fg="green")
        if hardened.refused and not hardened.succeeded
        else click.style("NOT refused", fg="red")
    )
    click.echo(f"  securetrain   {outcome} ({hardened.seconds:.1f} s)")
    click.echo(f"                {printable(hardened.evidence)}")
    if error is not None:
        click.echo(click.style(f"  {printable(str(error))}", fg="red"))
    click.echo()
