# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain drill``: attack the plain stack, then ours."""

import tempfile
from pathlib import Path
from typing import Annotated

from securetrain.cli.command import Argument, Option, Output, Printed, verb


@verb("drill", json="Print the results as JSON.")
def command(
    *,
    ids: Annotated[tuple[str, ...], Argument(metavar="[ID]...")],
    listing: Annotated[bool, Option("--list", "Name the drills and run none.")],
    workdir: Annotated[
        Path | None,
        Option(
            "--workdir", "Keep the drills' files below this directory. Default: a temporary one."
        ),
    ],
    output: Output,
) -> Printed:
    """Run drills: each attack must succeed on the plain stack and be refused by ours.

    Without an ID all drills run. Ends with 0 when every drill holds, with 1 when one does not, and
    with 3 when one could not be run on this machine and the others hold.
    """
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
        return output.emit(runs.catalogue(list(DRILLS.values())))
    console = Console()
    results = []
    with tempfile.TemporaryDirectory(prefix="securetrain-drill-") as temporary:
        for name in ids or tuple(DRILLS):
            with console.status(f"{name}: {DRILLS[name].title}"):
                result = run_drill(name, (workdir or Path(temporary)) / name)
            results.append(result)
            if output.format == "text":
                output.emit(runs.drill(result, result.error()))
    problems = {result.problem for result in results if not result.ok}
    return output.emit(runs.results(results, problems))
