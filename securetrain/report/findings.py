# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The pages of ``audit``: its findings in every format, and the catalogue of checks.

A format is loaded when it is asked for: an audit that prints JSON loads nothing else.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from securetrain.audit import AuditResult, Check
from securetrain.report.document import Document

ENDINGS: Final[Mapping[str, str]] = {
    ".json": "json",
    ".sarif": "sarif",
    ".xml": "junit",
    ".html": "html",
    ".md": "markdown",
}
"""The format of a file, by the ending of its name."""


def findings(
    result: AuditResult,
    checks: Sequence[Check],
    unknown_skips: set[str],
    *,
    everything: bool = False,
) -> Document:
    """The outcome of an audit.

    Args:
        result: it.
        checks: The catalogue, for what a check says besides its findings.
        unknown_skips: what the policy skips though there is no such check.
        everything: Whether people see the checks that passed, and every place, too.
    """
    pages = _Pages(result, checks, unknown_skips, everything)
    return Document(
        data=pages.json(),
        text=pages.text,
        machine={
            "sarif": pages.sarif,
            "junit": pages.junit,
            "html": pages.html,
            "markdown": pages.markdown,
        },
        exit_code=result.exit_code,
    )


@dataclass(frozen=True, slots=True)
class _Pages:
    """One result in each format."""

    result: AuditResult
    checks: Sequence[Check]
    unknown_skips: set[str]
    everything: bool

    def json(self) -> str:
        return self.result.to_json().decode()

    def text(self) -> None:
        from securetrain.report.findings_text import Page

        Page(self.result, self.unknown_skips, everything=self.everything).show()

    def sarif(self) -> str:
        from securetrain.report import sarif
        from securetrain.report.findings_outcome import outcome_of

        return json.dumps(sarif.render(outcome_of(self.result, self.checks)), indent=2) + "\n"

    def junit(self) -> str:
        from securetrain.report import junit
        from securetrain.report.findings_outcome import outcome_of

        return junit.render(outcome_of(self.result, self.checks))

    def html(self) -> str:
        from securetrain.report.findings_html import page

        return page(self.result, self.checks)

    def markdown(self) -> str:
        from securetrain.report.findings_markdown import page

        return page(self.result)


def written(document: Document, name: str) -> str:
    """A document in the format that the ending of a file's name stands for."""
    format_name = ENDINGS[name]
    if format_name == "json":
        return str(document.data) + "\n"
    return document.machine[format_name]()


def catalogue(checks: tuple[Check, ...]) -> Document:
    """All checks, without an audit."""

    def text() -> None:
        from rich.table import Table

        from securetrain.report.pieces import plain

        table = Table(box=None, pad_edge=False)
        for column in ("check", "severity", "boundary", "what it finds"):
            table.add_column(column, no_wrap=column != "what it finds")
        for check in checks:
            table.add_row(check.id, check.severity.value, check.boundary.value, check.title)
        plain().print(table)

    rows = [
        {
            "id": check.id,
            "title": check.title,
            "severity": check.severity.value,
            "boundary": check.boundary.value,
            "evidence": list(check.spec.evidence),
            "threats": list(check.spec.threats),
            "remediation": check.remediation,
        }
        for check in checks
    ]
    return Document(data=rows, text=text)
