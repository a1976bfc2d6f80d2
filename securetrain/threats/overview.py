# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The page of ``threats verify``: every threat with its controls, and what dangles."""

from collections.abc import Iterable, Iterator
from typing import Any

from securetrain.report import Document, Row, Section, table
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
    problems = [f"{one.model}: {one.where}: {one.what}" for one in report.problems]
    rows = [Row(state="fail", name="ST-THRT-002", text=one) for one in problems]
    rows += [Row(state="unknown", text=f"not looked at: {one}") for one in report.unchecked]
    return Document(
        word="DANGLING" if problems else "INCOMPLETE" if rows else "VERIFIED",
        about=", ".join(model.id for model in report.models),
        sentence=_sentence(report),
        sections=[Section(rows=rows), *_models(report)],
        data=data,
        code=report.exit_code,
    )


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


def _sentence(report: Report) -> str:
    models = (
        f"{len(report.models)} models, {sum(len(one.threats) for one in report.models)} threats"
    )
    return f"{models}, {len(report.problems)} problems, {len(report.unchecked)} not looked at"


def _models(report: Report) -> Iterator[Section]:
    columns = ("threat", "boundary", "controls", "drill", "residual", "what")
    for model in report.models:
        crossed = {flow.id: flow.crosses.value for flow in model.flows}
        rows = [
            (
                threat.id,
                crossed.get(threat.flow, "?"),
                sum(control.status.value == "active" for control in threat.controls),
                " ".join(name for control in threat.controls for name in control.drills) or "-",
                threat.residual.level.value,
                threat.title,
            )
            for threat in model.threats
        ]
        yield table(columns, rows, title=f"{model.id} {model.version}: {model.title}")
