# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain report``: show what a run did and proved."""

from pathlib import Path

import click

from securetrain.cli.options import file_argument, file_option, json_as
from securetrain.report import emit


@click.command()
@file_argument("run_dir")
@file_option(
    "--html",
    "out",
    help="Write the self-contained HTML page there ('-' stands for RUN_DIR/report.html).",
)
@json_as("Print everything as JSON.")
def command(run_dir: Path, out: Path | None, output: str) -> int:
    """Show a run: boundaries, lineage, findings, drills, and what was not proven.

    Signatures are verified when the report is made. Ends with 0 when the run's trust root, ledger
    and statements verify and the run ended well, with 4 when one of them does not verify, and with
    1 when the run or one of its drills failed. Refusals on the way are shown in any case.
    """
    from datetime import UTC, datetime

    from securetrain.report import exit_code_of, html, read_run, terminal

    record = read_run(run_dir, datetime.now(UTC))
    if out is not None:
        path = html.write_page(record, run_dir / "report.html" if str(out) == "-" else out)
        if output == "text":
            click.echo(str(path))
    if out is None or output == "json":
        emit(terminal.page(record), output)
    return int(exit_code_of(record))
