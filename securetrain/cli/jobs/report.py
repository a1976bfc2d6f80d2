# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain report``: show what a run did and proved, or what a pack proves."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click

from securetrain.cli.clock import now
from securetrain.cli.command import Option, Output, Printed, verb
from securetrain.cli.jobs.options import OfPack

if TYPE_CHECKING:
    from securetrain.report import Document


@verb("report", json="Print everything as JSON.")
def command(
    *,
    run_dir: Path,
    html: Annotated[
        Path | None,
        Option(
            "--html",
            "Write the self-contained HTML page there ('-' stands for RUN_DIR/report.html, and for"
            " a pack for its name with .html).",
        ),
    ],
    asked: OfPack,
    output: Output,
) -> Printed:
    """Show a run: boundaries, lineage, findings, drills, and what was not proven.

    Signatures are verified when the report is made. Ends with 0 when the run's trust root, ledger
    and statements verify and the run ended well, with 4 when one of them does not verify, and with
    1 when the run or one of its drills failed. Refusals on the way are shown in any case.

    RUN_DIR may also be a pack (securetrain pack): its links as one graph, and the evidence of each.
    The page is written in any case, and the exit code is that of 'securetrain verify'.
    """
    from securetrain.report import read_run, runs

    if run_dir.is_file():
        return _pack(run_dir, html, asked, output)
    page = runs.page(read_run(run_dir, now()))
    return _tell(page, html, run_dir / "report.html", output)


def _tell(page: "Document", out: Path | None, usual: Path, output: Output) -> Printed:
    from securetrain.report import html

    if out is not None:
        path = html.write(page, usual if str(out) == "-" else out)
        if output.format == "text":
            click.echo(str(path))
            return Printed(page.exit_code)
    return output.emit(page)


def _pack(path: Path, html: Path | None, asked: OfPack, output: Output) -> Printed:
    from securetrain.chain import Options, verify
    from securetrain.core.errors import IdentityError
    from securetrain.report import verification

    if asked.trust is None:
        raise IdentityError(
            "ST-IDEN-007",
            "no trust root was given, so nothing says whose signature counts",
            str(path),
        )
    options = Options(trust_data=asked.trust_data)
    found = verify(path, trust=asked.trust, policy=asked.policy, now=now(), options=options)
    return _tell(verification.verified(found), html, path.with_suffix(".html"), output)
