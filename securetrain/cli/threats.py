# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain threats verify``: whether what the threat models claim is there."""

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from securetrain.threats.resolve import Report
    from securetrain.threats.threat_model import ThreatModel

EPILOG = """\
\b
Examples:
  securetrain threats verify
  securetrain threats verify training-cluster --json
  securetrain threats verify our-site.yaml

\b
Exit codes: 0 everything that the models refer to exists; 1 something dangles; 2 a model is
malformed; 3 nothing dangles, but the tests are not installed here and were not looked at.
"""


@click.group(name="threats", epilog=EPILOG)
def command() -> None:
    """Check that threat models are backed by checks, code, drills and tests."""


@command.command(name="verify")
@click.argument("models", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def verify(ctx: click.Context, models: tuple[str, ...], as_json: bool) -> None:
    """Follow every threat to its controls, checks, codes, enforcing code, drills and tests.

    MODELS are files or names of shipped models. Without any, all shipped models are verified, and
    refusal codes, checks and drills that none of them cites are problems too.
    """
    import securetrain
    from securetrain.audit.catalogue import load_checks
    from securetrain.drills.registry import DRILLS
    from securetrain.threats.resolve import verify as verify_models
    from securetrain.threats.source import SourceTree
    from securetrain.threats.threat_model import load_model, locate, shipped_models

    paths = [locate(name) for name in models] or list(shipped_models())
    report = verify_models(
        [load_model(path) for path in paths],
        load_checks(),
        DRILLS,
        SourceTree.of(Path(securetrain.__file__).parent),
        datetime.now(UTC).date(),
        complete=not models,
    )
    if as_json:
        click.echo(json.dumps(_document(report), indent=2, sort_keys=True))
    else:
        _show(report)
    ctx.exit(int(report.exit_code))


def _document(report: "Report") -> dict[str, Any]:
    return {
        "models": [_summary(model) for model in report.models],
        "problems": [
            {"code": "ST-THRT-002", "model": p.model, "where": p.where, "what": p.what}
            for p in report.problems
        ],
        "unchecked": list(report.unchecked),
        "exit": int(report.exit_code),
    }


def _summary(model: "ThreatModel") -> dict[str, Any]:
    controls = [control for threat in model.threats for control in threat.controls]
    return {
        "id": model.id,
        "version": model.version,
        "boundaries": [crossing.id.value for crossing in model.boundaries],
        "threats": len(model.threats),
        "controls": len(controls),
        "checks": _distinct(c.checks for c in controls),
        "codes": _distinct(c.codes for c in controls),
        "drills": _distinct(c.drills for c in controls),
        "tests": _distinct(c.tests for c in controls),
    }


def _distinct(groups: Iterable[tuple[str, ...]]) -> int:
    return len({name for group in groups for name in group})


def _show(report: "Report") -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(markup=False, highlight=False)
    for model in report.models:
        console.print(f"{model.id} {model.version}: {model.title}", style="bold")
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for column in ("threat", "boundary", "controls", "drill", "residual", "what"):
            table.add_column(column, no_wrap=column != "what")
        boundaries = {flow.id: flow.crosses.value for flow in model.flows}
        for threat in model.threats:
            table.add_row(
                threat.id,
                boundaries.get(threat.flow, "?"),
                str(sum(control.status.value == "active" for control in threat.controls)),
                ", ".join(name for control in threat.controls for name in control.drills) or "-",
                threat.residual.level.value,
                threat.title,
            )
        console.print(table)
        console.print()
    for problem in report.problems:
        line = f"ST-THRT-002 {problem.model}: {problem.where}: {problem.what}"
        console.print(line, style="red", soft_wrap=True)
    for line in report.unchecked:
        console.print(f"not looked at: {line}", style="yellow", soft_wrap=True)
    threats = sum(len(model.threats) for model in report.models)
    console.print(
        f"{len(report.models)} models, {threats} threats, {len(report.problems)} problems,"
        f" {len(report.unchecked)} not looked at",
        style="bold",
    )
