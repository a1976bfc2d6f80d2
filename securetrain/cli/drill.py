# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain drill``: attack the plain stack, then ours."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from securetrain.core.text import printable

if TYPE_CHECKING:
    from securetrain.drills import DrillResult


@click.command()
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--list", "listing", is_flag=True, help="Name the drills and run none.")
@click.option(
    "--workdir",
    type=click.Path(path_type=Path),
    help="Keep the drills' files below this directory. Default: a temporary one.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON.")
def command(ids: tuple[str, ...], listing: bool, workdir: Path | None, as_json: bool) -> int:
    """Run drills: each attack must succeed on the plain stack and be refused by ours.

    Without an ID all drills run. Ends with 0 when every drill holds and with 1 when one does not.
    """
    import tempfile

    import msgspec
    from rich.console import Console

    from securetrain.core.errors import UsageError
    from securetrain.drills import DRILLS, run_drill

    unknown = [name for name in ids if name not in DRILLS]
    if unknown:
        raise UsageError(
            "ST-USAG-001",
            f"there is no drill {unknown[0]!r}",
            "",
            f"name one of {', '.join(DRILLS)}",
        )
    console = Console()
    if listing:
        drills = list(DRILLS.values())
        if as_json:
            click.echo(msgspec.json.format(msgspec.json.encode(drills)).decode())
        else:
            for drill in drills:
                click.echo(f"{drill.id:<18}{drill.boundary:<14}{drill.title}")
                click.echo(f"{'':<18}{drill.summary}\n")
        return 0

    results: list[DrillResult] = []
    with tempfile.TemporaryDirectory(prefix="securetrain-drill-") as temporary:
        for name in ids or tuple(DRILLS):
            with console.status(f"{name}: {DRILLS[name].title}"):
                result = run_drill(name, (workdir or Path(temporary)) / name)
            results.append(result)
            if not as_json:
                _show(result)
    if as_json:
        document = {"ok": all(r.ok for r in results), "drills": results}
        click.echo(msgspec.json.format(msgspec.json.encode(document)).decode())
    return 0 if all(result.ok for result in results) else 1


def _show(result: "DrillResult") -> None:
    """One drill on the terminal; what the attacked side wrote is never markup."""
    plain, hardened = result.plain, result.hardened
    click.echo(click.style(f"{result.id}  {result.title}", bold=True))
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
    if error := result.error():
        click.echo(click.style(f"  {printable(str(error))}", fg="red"))
    click.echo()
