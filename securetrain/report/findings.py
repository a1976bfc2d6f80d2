# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The pages of ``audit``: its findings, what to fix first, and the catalogue of checks."""

import os
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from securetrain.audit import AuditResult, Check, Finding, worst_states
from securetrain.core.vocabulary import State
from securetrain.report.document import Document
from securetrain.report.pieces import bare_table, indented, plain

MAX_FIRST: Final = 5
MAX_SEEN: Final = 3
NOT_JUDGED: Final = (
    "whether other machines can reach these ports, and what the switch lets through",
    "whether the fabric between machines is encrypted ('securetrain run --require' decides that)",
    "what the TPM says: that is verified when the node joins a job",
    "the scheduler's own configuration, and other nodes",
)
"""What nobody can see from one machine alone; printed so that a clean audit is not overread."""

STYLES: Final = {
    "pass": "green",
    "fail": "red bold",
    "unknown": "yellow bold",
    "waived": "magenta",
    "not-applicable": "dim",
}


def findings(result: AuditResult, unknown_skips: set[str]) -> Document:
    """The outcome of an audit.

    Args:
        result: it.
        unknown_skips: what the policy skips though there is no such check.
    """
    text = partial(_show, result, unknown_skips)
    return Document(data=result.to_json().decode(), text=text, exit_code=result.exit_code)


def catalogue(checks: tuple[Check, ...]) -> Document:
    """All checks, without an audit."""

    def text() -> None:
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


def _show(result: AuditResult, unknown_skips: set[str]) -> None:

    console = plain()
    oldest = min((asset.collected_at for asset in result.assets), default=result.at)
    one = len(result.assets) == 1
    console.print(
        f"{'Node ' if one else ''}{result.about} against policy"
        f" {result.policy.id} {result.policy.version}"
        f" ({result.policy.digest[:12]}), facts of {oldest:%Y-%m-%d %H:%M:%S %Z}"
        f"{'' if one else ' and later'}\n"
    )
    for problem in result.problems:
        console.print(f"The facts cannot be relied on: {problem}\n", style="red bold")
    _table(console, result)
    _first(console, result.of(State.FAIL), many=not one)
    _unknown(console, result.of(State.UNKNOWN), many=not one)
    _waivers(console, result)
    if result.skipped:
        console.print(f"Skipped by the policy: {', '.join(result.skipped)}\n", style="yellow")
    if unknown_skips:
        console.print(
            f"host.skip_checks names no such check: {', '.join(sorted(unknown_skips))}\n",
            style="yellow",
        )
    _limits(console, result)
    _summary(console, result)


def _table(console: Console, result: AuditResult) -> None:
    """One line a check, grouped by boundary."""
    states = worst_states(result.findings)
    table = bare_table("state", "check", "severity", "what", wrapped="what")
    table.show_header = False
    boundary = ""
    for group in _by_check(result.findings):
        finding, state = group[0], states[group[0].check].value
        if finding.boundary.value != boundary:
            boundary = finding.boundary.value
            table.add_row(Text(f"\n{boundary}", style="bold"))
        what = finding.title + _times(group, len(result.assets))
        if state == "pass":
            what = f"not found: {what}"
        table.add_row(
            Text(f"  {state}", style=STYLES[state]),
            Text(finding.check),
            Text(finding.severity_in_context.value),
            Text(what, style="dim" if state in {"pass", "not-applicable"} else ""),
        )
    console.print(table)
    console.print()


def _times(group: list[Finding], assets: int) -> str:
    """The number of findings, or of assets among several that say the worst of a check."""
    if assets == 1:
        return f" ({len(group)} times)" if len(group) > 1 else ""
    worst = worst_states(group)[group[0].check]
    if worst in {State.PASS, State.NOT_APPLICABLE}:
        return ""
    return f" ({len({one.asset for one in group if one.state is worst})} of {assets})"


def _by_check(findings: Iterable[Finding]) -> list[list[Finding]]:
    groups: dict[str, list[Finding]] = {}
    for finding in findings:
        groups.setdefault(finding.check, []).append(finding)
    return list(groups.values())


def _first(console: Console, failed: tuple[Finding, ...], *, many: bool) -> None:
    """The first things to do: the worst, and among equals what this user can do alone."""
    if not failed:
        return
    order = sorted(
        _by_check(failed),
        key=lambda g: (-g[0].severity_in_context.rank, g[0].fixed_by.value != "user", g[0].check),
    )
    console.print("Fix first", style="bold")
    for number, group in enumerate(order[:MAX_FIRST], 1):
        finding = group[0]
        severity = finding.severity_in_context.value
        console.print(f"  {number}. {finding.check} ({severity}) {finding.title}")
        if finding.context:
            _indented(console, f"{severity}, not {finding.severity.value}: {finding.context}")
        for one in (g for g in group[:MAX_SEEN] if many or _seen(g) != g.title):
            _indented(console, f"seen: {_seen(one, many=many)}", style="dim")
        if len(group) > MAX_SEEN:
            _indented(console, f"and {len(group) - MAX_SEEN} more", style="dim")
        who = "you" if finding.fixed_by.value == "user" else "an administrator"
        _indented(console, f"fix ({who}): {' '.join(finding.remediation.split())}")
    if len(order) > MAX_FIRST:
        console.print(f"  and {len(order) - MAX_FIRST} other checks; --json has them all")
    console.print()


def _seen(finding: Finding, *, many: bool = False) -> str:
    """The place, and the reason or what was collected there, in one line."""
    where = f"{finding.asset} " if many and finding.asset else ""
    where += "" if finding.subject == "node" else f"{finding.subject}: "
    return where + (finding.reason or ", ".join(_flat(finding.evidence)) or finding.title)


def _flat(evidence: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in evidence.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        elif value not in (None, "", []):
            yield f"{prefix}{name} {value}"


def _indented(console: Console, text: str, style: str = "") -> None:

    console.print(indented(Text(text, style=style), 5))


def _unknown(console: Console, unknown: tuple[Finding, ...], *, many: bool) -> None:
    if not unknown:
        return
    console.print("Not known (missing evidence is never a pass)", style="bold")
    for finding in unknown:
        console.print(f"  {finding.check}  {_seen(finding, many=many)}")
    if os.geteuid() != 0:
        console.print("  Root can read more of this.", style="dim")
    console.print()


def _waivers(console: Console, result: AuditResult) -> None:
    if not result.waivers:
        return
    console.print("Waivers", style="bold")
    for use in result.waivers:
        until = f", until {use.expires}" if use.expires else ""
        reason = f": {use.reason}" if use.reason else ""
        console.print(f"  {use.id} for {use.check}{until}: {use.status.value}{reason}")
    console.print()


def _limits(console: Console, result: AuditResult) -> None:
    """The checks that this machine cannot pass, and the questions that no audit answers."""
    tier = [f for f in result.findings if f.check == "ST-HST-015" and f.state is State.FAIL]
    if tier:
        console.print("What this machine cannot pass", style="bold")
        console.print(
            f"  Policy {result.policy.id} asks for nodes of tier"
            f" {tier[0].evidence.get('min_tier', '')} or better, and this machine has no device"
            " that could prove it. A laptop cannot change that: develop under --policy dev, where"
            " its evidence is labelled UNATTESTED."
        )
        console.print()
    console.print("Not judged from one machine", style="bold")
    for line in NOT_JUDGED:
        console.print(f"  - {line}", style="dim")
    console.print()


def _summary(console: Console, result: AuditResult) -> None:
    counts = ", ".join(f"{number} {state}" for state, number in result.counts.items() if number)
    total = sum(result.counts.values())
    meaning = {
        0: "clean under this policy",
        1: "a finding at or above the policy's host.fail_on",
        3: "more is unknown than the policy's host.max_unknown",
        4: "the facts cannot be relied on",
    }
    console.print(f"{total} checks: {counts}", style="bold")
    console.print(f"Exit code {result.exit_code}: {meaning[result.exit_code]}")
