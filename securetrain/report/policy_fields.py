# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The pages of ``policy``: remarks on a policy, and its fields with their values in force."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.text import Text

from securetrain.core import ExitCode
from securetrain.policy import Level, Remark, Row
from securetrain.policy.load import LoadedPolicy
from securetrain.report.document import Document
from securetrain.report.pieces import bare_table, plain


def signed(file: Path, signature: Path, digest: str, by: str) -> Document:
    """A policy that is signed: by whom, and its digest."""
    data = {"policy": str(file), "signature": str(signature), "digest": digest, "signer": by}
    return Document(data=data, text=[f"{file}: signed by {by}", f"digest {digest}, in {signature}"])


def remarks(file: str, found: Sequence[Remark]) -> Document:
    """The errors in a policy, and what is worth a second look."""
    errors = sum(remark.level is Level.ERROR for remark in found)

    def text() -> None:
        for remark in found:
            colour = "red" if remark.level is Level.ERROR else "yellow"
            head = click.style(f"{remark.level}:", fg=colour, bold=True)
            code = f"{remark.code}: " if remark.code else ""
            click.echo(f"{head} {remark.field}: {code}{remark.what}\n  fix: {remark.fix}")
        click.echo(f"{errors} errors, {len(found) - errors} warnings in {file}")

    data = {"policy": file, "remarks": [asdict(remark) for remark in found]}
    return Document(data=data, text=text, exit_code=int(ExitCode.USAGE if errors else ExitCode.OK))


def fields(loaded: LoadedPolicy, rows: Sequence[Row]) -> Document:
    """Every field: its value, who set it, who enforces it, what it means."""
    meta = loaded.policy.metadata

    def text() -> None:
        click.echo(f"{meta.id} {meta.version}: {meta.title}\ndigest {loaded.digest}")
        table = bare_table("field", "value", "set by", "enforced by", "what it means")
        section = ""
        for row in rows:
            if row.section != section and row.field:
                section = row.section
                table.add_row(Text(f"\n{row.boundary}", style="bold"))
            source = row.source if row.source == "default" else Path(row.source).name
            table.add_row(
                f"  {row.field or row.section}",
                shown(row.value),
                Text(source, style="dim" if source == "default" else ""),
                ", ".join(row.enforced_by),
                row.description,
            )
        plain().print(table)

    data = {
        "policy": meta.id,
        "version": meta.version,
        "digest": loaded.digest,
        "fields": [asdict(row) for row in rows],
    }
    return Document(data=data, text=text)


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
