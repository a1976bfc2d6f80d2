# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The page of ``threats verify``: every threat with its controls, and what dangles."""

from collections.abc import Iterable
from functools import partial
from typing import Any

from securetrain.report import Document, bare_table, plain
from securetrain.threats.resolve import Report
from securetrain.threats.threat_model import ThreatModel


def page(report: Report) -> Document:
    """The outcome of following the threats."""
    data = {
        "models": [_summary(model) for model in report.models],
        "problems": [
            {"code": "ST-THRT-002", "model": p.model, "where": p.where, "what": p.what}
            for p in report.problems
        ],
        "unchecked": list(report.unchecked),
        "exit": int(report.exit_code),
    }
    return Document(data=data, text=partial(_show, report), exit_code=int(report.exit_code))


def _summary(model: ThreatModel) -> dict[str, Any]:
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


def _show(report: Report) -> None:
    console = plain()
    for model in report.models:
        console.print(f"{model.id} {model.version}: {model.title}", style="bold")
        columns = ("threat", "boundary", "controls", "drill", "residual", "what")
        table = bare_table(*columns, wrapped="what")
        boundaries = {flow.id: flow.crosses.value for flow in model.flows}
        for threat in model.threats:
            table.add_row(
                threat.id,
                boundaries.get(threat.flow, "?"),
                str(sum(control.status.value == "active" for control in threat.controls)),
                "\n".join(name for control in threat.controls for name in control.drills) or "-",
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
