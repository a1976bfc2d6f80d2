# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The page of ``securetrain doctor``."""

import click

from securetrain.core import printable
from securetrain.launch import Diagnosis
from securetrain.report.document import Document


def page(found: Diagnosis) -> Document:
    """Everything that was looked at, by kind, with what to install."""

    def text() -> None:
        kind = ""
        for one in found.findings:
            if one.kind != kind:
                kind = one.kind
                click.echo(click.style(kind, bold=True))
            mark = click.style("yes", fg="green") if one.works else click.style("no ", fg="yellow")
            click.echo(f"  {mark}  {printable(one.name)}")
            if one.problem:
                click.echo(f"         {printable(one.problem)}")
                click.echo(f"         fix: {printable(one.fix)}")
        ends = "works" if found.exit_code == 0 else "does not work"
        click.echo(f"the policy {printable(found.asked)} {ends} on this machine")

    data = {
        "policy": found.asked,
        "findings": [
            {
                "kind": one.kind.value,
                "name": one.name,
                "works": one.works,
                "problem": one.problem,
                "fix": "" if one.works else one.fix,
            }
            for one in found.findings
        ],
        "exit": found.exit_code,
    }
    return Document(data=data, text=text, exit_code=found.exit_code)
