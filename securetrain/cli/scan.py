# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain scan PATH``: what would the pickles in there do?

Never imports torch and never loads what it looks at.
"""

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from securetrain.cli.output import format_options, show
from securetrain.cli.progress import progress_bar

if TYPE_CHECKING:
    from securetrain.artifacts.scan.findings import ScanResult

MAX_SHOWN: Final = 50

EPILOG: Final = """\
\b
Examples:
  securetrain scan model.pt
  securetrain scan checkpoints/step-100 --opcodes
  securetrain scan ./downloaded-model --format sarif > scan.sarif

\b
What is looked at: pickles, torch.save files old and new, torch.distributed.checkpoint's .metadata
and every item at the place that it names, numpy arrays of objects, and all of that in zip, tar,
gzip, bzip2 and xz files. A global passes when it is on the allow-list of names
that only build values. It is not a verdict on who made a file: 'securetrain verify' is.

\b
Exit codes: 0 something was scanned and nothing found; 3 nothing could be scanned, or something
could not be judged; 14 a link or special file; 19 unsafe content; 20 unreadable.
"""


@click.command(name="scan", epilog=EPILOG)
@click.argument(
    "paths", nargs=-1, required=True, metavar="PATH...", type=click.Path(path_type=Path)
)
@format_options
@click.option("--opcodes", is_flag=True, help="Also list every global and count every opcode.")
def command(*, paths: tuple[Path, ...], output: str, opcodes: bool) -> int:
    """Look for pickles in the files or directories PATH, and for what they would run."""
    from securetrain.artifacts.scan.findings import merge
    from securetrain.artifacts.scan.scanner import scan_path
    from securetrain.report import problems

    with progress_bar("scanning") as progress:
        result = merge([scan_path(path, progress=progress) for path in paths])
    text = functools.partial(_print, result, opcodes=opcodes)
    return show(output, problems.of_scan(result), result.to_dict(), text)


def _print(result: "ScanResult", *, opcodes: bool) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from securetrain.core.text import printable

    console = Console(highlight=False, soft_wrap=True)
    verdict = Text("CLEAN", "bold green") if result.ok else Text("NOT CLEAN", "bold red")
    console.print(Text.assemble(verdict, printable(f"  {result.path}", keep="")))
    pickles = [one for one in result.judged if one.format == "pickle"]
    names = {name for one in pickles for name in one.globals}
    console.print(
        f"scanned    {len(result.judged)} files and members, {len(pickles)} of them pickles,"
        f" {result.num_bytes:,} bytes"
    )
    console.print(f"globals    {len(names)} different ones")
    if result.passed_over:
        console.print(f"passed by  {len(result.passed_over)} files without weights or objects")
    if opcodes:
        for one in pickles:
            console.print(Text(f"\n{printable(one.name, keep='')}", "bold"))
            for name in sorted(one.globals):
                console.print(Text(f"  {printable(name, keep='')}"))
            counted = "  ".join(f"{name} {count}" for name, count in one.opcodes.most_common())
            console.print(Text(f"  opcodes: {counted}", "dim"))
    if not result.findings:
        return
    count = len(result.findings)
    table = Table(title=f"{count} finding{'s' if count != 1 else ''}", title_justify="left")
    for heading in ("code", "where", "what"):
        table.add_column(heading, overflow="fold")
    for finding in result.findings[:MAX_SHOWN]:
        place, what = printable(finding.place, keep=""), printable(finding.what, keep="")
        table.add_row(Text(finding.code, "red"), Text(place), Text(what))
    console.print(table)
    if count > MAX_SHOWN or result.truncated:
        console.print(f"There are more; the first {min(count, MAX_SHOWN)} are listed.")
    for fix in dict.fromkeys(f"{finding.code}: {finding.fix}" for finding in result.findings):
        console.print(Text(f"fix: {fix}"))


def print_briefly(scanned: "ScanResult") -> None:
    """What a scan adds to a verdict; that there was nothing to scan adds nothing."""
    from securetrain.artifacts.scan.findings import NOTHING
    from securetrain.core.text import printable

    findings = [one for one in scanned.findings if one.code != NOTHING]
    click.echo(f"scan     {len(scanned.judged)} files and members hold objects or weights")
    for finding in findings:
        click.echo(printable(f"{finding.code}  {finding.place}: {finding.what}", keep=""))
    if not findings:
        click.echo("scan     nothing that a loader would run")
