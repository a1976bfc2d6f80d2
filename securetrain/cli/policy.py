# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain policy lint`` and ``securetrain policy explain``."""

import json
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from securetrain.core.codes import ExitCode

if TYPE_CHECKING:
    from securetrain.policy.explain import Row

EPILOG = """\
\b
Examples:
  securetrain policy explain baseline
  securetrain policy explain my-policy.yaml --section checkpoint
  securetrain policy lint my-policy.yaml
"""


@click.group(name="policy", epilog=EPILOG)
def command() -> None:
    """Lint and explain policies."""


@command.command(name="lint")
@click.argument("file")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def lint(ctx: click.Context, file: str, as_json: bool) -> None:
    """Say what in a policy is wrong (exit code 2) or worth a second look (exit code 0).

    FILE is a policy file or the name of a shipped one.
    """
    from securetrain.audit.catalogue import load_checks
    from securetrain.policy.lint import Level, lint_policy

    known = {check.id for check in load_checks()}
    remarks = lint_policy(file, today=datetime.now(UTC).date(), known_checks=known)
    errors = [remark for remark in remarks if remark.level is Level.ERROR]
    if as_json:
        document = {"policy": file, "remarks": [asdict(remark) for remark in remarks]}
        click.echo(json.dumps(document, indent=2, sort_keys=True))
    else:
        for remark in remarks:
            colour = "red" if remark.level is Level.ERROR else "yellow"
            head = click.style(f"{remark.level}:", fg=colour, bold=True)
            code = f"{remark.code}: " if remark.code else ""
            click.echo(f"{head} {remark.field}: {code}{remark.what}\n  fix: {remark.fix}")
        click.echo(f"{len(errors)} errors, {len(remarks) - len(errors)} warnings in {file}")
    ctx.exit(int(ExitCode.USAGE if errors else ExitCode.OK))


@command.command(name="explain")
@click.argument("name_or_file")
@click.option("--section", help="One section, such as checkpoint or supply-chain.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def explain(name_or_file: str, section: str | None, as_json: bool) -> None:
    """Show every field of a policy: its value, who set it, who enforces it, what it means."""
    from securetrain.policy import load_policy
    from securetrain.policy.explain import explain as rows_of

    loaded = load_policy(name_or_file)
    rows = rows_of(loaded, section)
    if as_json:
        document = {
            "policy": loaded.policy.metadata.id,
            "version": loaded.policy.metadata.version,
            "digest": loaded.digest,
            "fields": [asdict(row) for row in rows],
        }
        click.echo(json.dumps(document, indent=2, sort_keys=True))
        return
    meta = loaded.policy.metadata
    click.echo(f"{meta.id} {meta.version}: {meta.title}\ndigest {loaded.digest}")
    _table(rows)


def _table(rows: "list[Row]") -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(markup=False, highlight=False)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("field", "value", "set by", "enforced by", "what it means"):
        table.add_column(column, overflow="fold")
    section = ""
    for row in rows:
        if row.section != section:
            section = row.section
            table.add_row(Text(f"\n{row.boundary}", style="bold"))
        source = row.source if row.source == "default" else Path(row.source).name
        table.add_row(
            f"  {row.field}",
            shown(row.value),
            Text(source, style="dim" if source == "default" else ""),
            ", ".join(row.enforced_by),
            row.description,
        )
    console.print(table)


def shown(value: Any) -> str:
    """A value as it would stand in the file."""
    match value:
        case None:
            return "-"
        case bool():
            return "true" if value else "false"
        case list() | tuple():
            return "[" + ", ".join(map(str, value)) + "]"
        case dict():
            return "(below)"
        case _:
            return str(value)
