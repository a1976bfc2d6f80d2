# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain report``: show what a run did and proved."""

from pathlib import Path

import click


@click.command()
@click.argument("run_dir", type=click.Path(path_type=Path))
@click.option(
    "--html",
    "out",
    type=click.Path(path_type=Path),
    help="Write the self-contained HTML page there ('-' stands for RUN_DIR/report.html).",
)
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def command(run_dir: Path, out: Path | None, as_json: bool) -> int:
    """Show a run: boundaries, lineage, findings, drills, and what was not proven.

    Signatures are verified when the report is made. Ends with 0 when the run's trust root, ledger
    and statements verify and the run ended well, with 4 when one of them does not verify, and with
    1 when the run or one of its drills failed. What was refused on the way is shown either way.
    """
    from datetime import UTC, datetime

    import msgspec
    from rich.console import Console

    from securetrain.report import html, terminal
    from securetrain.report.run_record import exit_code_of, read_run

    now = datetime.now(UTC)
    record = read_run(run_dir, now)
    if out is not None:
        path = html.write_page(record, run_dir / "report.html" if str(out) == "-" else out)
        if not as_json:
            click.echo(str(path))
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(record)).decode())
    elif out is None:
        terminal.show(record, Console())
    return int(exit_code_of(record))
