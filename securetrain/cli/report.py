# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain report``: show what a run did and proved, or what a pack proves."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from securetrain.cli.options import TRUST_VARIABLE, file_argument, file_option, json_as
from securetrain.report import emit

if TYPE_CHECKING:
    from securetrain.report import Document


@click.command()
@file_argument("run_dir")
@file_option(
    "--html",
    "out",
    help="Write the self-contained HTML page there ('-' stands for RUN_DIR/report.html, and for a"
    " pack for its name with .html).",
)
@file_option(
    "--trust",
    "trust_file",
    envvar=TRUST_VARIABLE,
    show_envvar=True,
    help="Of a pack: the trust root. A run directory has its own.",
)
@click.option("--policy", "policy_name", help="Of a pack: a policy that it is asked for.")
@file_option("--trust-data", help="Of a pack: the trust root of whoever made its dataset.")
@json_as("Print everything as JSON.")
def command(
    *,
    run_dir: Path,
    out: Path | None,
    trust_file: Path | None,
    policy_name: str | None,
    trust_data: Path | None,
    output: str,
) -> int:
    """Show a run: boundaries, lineage, findings, drills, and what was not proven.

    Signatures are verified when the report is made. Ends with 0 when the run's trust root, ledger
    and statements verify and the run ended well, with 4 when one of them does not verify, and with
    1 when the run or one of its drills failed. Refusals on the way are shown in any case.

    RUN_DIR may also be a pack (securetrain pack): its links as one graph, and the evidence of each.
    The page is written in any case, and the exit code is that of 'securetrain verify'.
    """
    from datetime import UTC, datetime

    from securetrain.report import read_run, runs

    if run_dir.is_file():
        return _pack(
            run_dir,
            out=out,
            trust_file=trust_file,
            policy_name=policy_name,
            trust_data=trust_data,
            output=output,
        )
    page = runs.page(read_run(run_dir, datetime.now(UTC)))
    return _tell(page, out, run_dir / "report.html", output)


def _tell(page: "Document", out: Path | None, usual: Path, output: str) -> int:
    from securetrain.report import html

    if out is not None:
        path = html.write(page, usual if str(out) == "-" else out)
        if output == "text":
            click.echo(str(path))
            return page.exit_code
    return emit(page, output)


def _pack(
    path: Path,
    *,
    out: Path | None,
    trust_file: Path | None,
    policy_name: str | None,
    trust_data: Path | None,
    output: str,
) -> int:
    from securetrain.chain import Pack
    from securetrain.cli.pack import judged
    from securetrain.core.errors import IdentityError
    from securetrain.policy.load import load_policy
    from securetrain.report import packs

    if trust_file is None:
        raise IdentityError(
            "ST-IDEN-007",
            "no trust root was given, so nothing says whose signature counts",
            str(path),
        )
    policy = None if policy_name is None else load_policy(policy_name)
    with Pack.open(path) as opened:
        result = judged(
            opened, trust_file=trust_file, trust_data=trust_data, policy=policy, at="now"
        )
    page = packs.verified(result, policy, trust_file)
    return _tell(page, out, path.with_suffix(".html"), output)
