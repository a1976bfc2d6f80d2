# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain drill``: attack the plain stack, then ours."""

from pathlib import Path

import click

from securetrain.cli.options import file_option, json_as
from securetrain.report import emit


@click.command()
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--list", "listing", is_flag=True, help="Name the drills and run none.")
@file_option(
    "--workdir", help="Keep the drills' files below this directory. Default: a temporary one."
)
@json_as("Print the results as JSON.")
def command(ids: tuple[str, ...], listing: bool, workdir: Path | None, output: str) -> int:
    """Run drills: each attack must succeed on the plain stack and be refused by ours.

    Without an ID all drills run. Ends with 0 when every drill holds, with 1 when one does not, and
    with 3 when one could not be run on this machine and the others hold.
    """
    import tempfile

    from rich.console import Console

    from securetrain.core.errors import UsageError
    from securetrain.drills import DRILLS, run_drill
    from securetrain.report import runs

    unknown = [name for name in ids if name not in DRILLS]
    if unknown:
        raise UsageError(
            "ST-USAG-001",
            f"there is no drill {unknown[0]!r}",
            "",
            f"name one of {', '.join(DRILLS)}",
        )
    if listing:
        return emit(runs.catalogue(list(DRILLS.values())), output)
    console = Console()
    results = []
    with tempfile.TemporaryDirectory(prefix="securetrain-drill-") as temporary:
        for name in ids or tuple(DRILLS):
            with console.status(f"{name}: {DRILLS[name].title}"):
                result = run_drill(name, (workdir or Path(temporary)) / name)
            results.append(result)
            if output == "text":
                emit(runs.drill(result, result.error()), output)
    problems = {result.problem for result in results if not result.ok}
    return emit(runs.results(results, problems), output)
