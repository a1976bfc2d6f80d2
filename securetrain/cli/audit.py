# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain audit``: collect facts about this node, judge them against a policy, show both.

Never imports torch, starts no process and needs no root; what it may not read is unknown.
"""

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from rich.console import Console

    from securetrain.audit.check import Check
    from securetrain.audit.facts import Facts
    from securetrain.audit.findings import AuditResult, Finding

MAX_FIRST: Final = 5
MAX_SEEN: Final = 3

EPILOG: Final = """\
\b
Examples:
  securetrain audit --node
  securetrain audit --node --policy dev
  securetrain audit --node --save-facts node-a.json
  securetrain audit --facts node-a.json --policy hardened --waivers waivers.yaml --json
  securetrain audit --list

\b
States: pass, fail, unknown (evidence missing: never a pass), not-applicable, waived.

\b
Exit codes: 0 clean; 1 a finding at or above host.fail_on of the policy; 2 bad policy, waiver file
or command line; 3 more checks unknown than host.max_unknown; 4 the facts cannot be relied on
(malformed, from the future, older than a day). The first that holds of 4, 2, 1, 3 counts.
"""

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


@click.command(name="audit", epilog=EPILOG)
@click.option("--node", is_flag=True, help="Collect facts about this node and judge them.")
@click.option(
    "--facts",
    "facts_file",
    type=click.Path(path_type=Path),
    help="Judge facts that were saved before, on this or another node.",
)
@click.option(
    "--save-facts",
    type=click.Path(path_type=Path),
    help="Also write the collected facts (names, owners and modes; no secret's value).",
)
@click.option(
    "--policy", "policy_name", default="baseline", show_default=True, help="A policy, name or file."
)
@click.option(
    "--waivers", "waivers_file", type=click.Path(path_type=Path), help="Failures that are accepted."
)
@click.option("--list", "list_only", is_flag=True, help="Show the checks and end.")
@click.option(
    "--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True
)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@click.pass_context
def command(  # noqa: PLR0917 - click passes every option
    ctx: click.Context,
    node: bool,
    facts_file: Path | None,
    save_facts: Path | None,
    policy_name: str,
    waivers_file: Path | None,
    list_only: bool,
    form: str,
    as_json: bool,
) -> None:
    """Check this host against a policy before a job runs on it."""
    from securetrain.audit.catalogue import load_checks
    from securetrain.audit.engine import audit
    from securetrain.audit.waivers import read_waivers
    from securetrain.policy import load_policy

    checks = load_checks()
    json_wanted = as_json or form == "json"
    if list_only:
        _list(checks, as_json=json_wanted)
        return
    if node == (facts_file is not None):
        raise click.UsageError("give either --node or --facts FILE")
    if save_facts is not None and not node:
        raise click.UsageError("--save-facts needs --node")
    policy = load_policy(policy_name).policy
    waivers = read_waivers(waivers_file) if waivers_file else None
    now = datetime.now(UTC)
    facts = _facts(facts_file, save_facts, now)
    result = audit(facts, checks, policy, now, waivers=waivers)
    if json_wanted:
        click.echo(result.to_json().decode())
    else:
        _show(result, unknown_skips=set(policy.host.skip_checks) - {check.id for check in checks})
    ctx.exit(result.exit_code)


def _facts(facts_file: Path | None, save: Path | None, now: datetime) -> "Facts":
    from securetrain.audit.facts import read_facts
    from securetrain.core.files import PRIVATE_FILE, write_atomic

    if facts_file is not None:
        return read_facts(facts_file)
    from securetrain.audit.collect.node import collect_node

    facts = collect_node(os.environ, now=now, search_path=_job_search_path())
    if save is not None:
        write_atomic(save, facts.to_json(), mode=PRIVATE_FILE)
    return facts


def _job_search_path() -> list[str]:
    """Where a job's Python looks: this process's path without the directory of this program."""
    return [entry for entry in sys.path if entry and Path(entry) != Path(sys.argv[0]).parent]


def _list(checks: tuple["Check", ...], *, as_json: bool) -> None:
    import json

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
    if as_json:
        click.echo(json.dumps(rows, indent=2, sort_keys=True))
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("check", "severity", "boundary", "what it finds"):
        table.add_column(column, no_wrap=column != "what it finds")
    for row in rows:
        table.add_row(*(str(row[key]) for key in ("id", "severity", "boundary", "title")))
    _console().print(table)


# --- text ----------------------------------------------------------------------------------------


def _console() -> "Console":
    from rich.console import Console

    # no markup: subjects hold square brackets; no highlighting: colour means state here
    return Console(markup=False, highlight=False, soft_wrap=False)


def _show(result: "AuditResult", unknown_skips: set[str]) -> None:
    from securetrain.core.vocabulary import State

    console = _console()
    console.print(
        f"Node {result.node} against policy {result.policy.id} {result.policy.version}"
        f" ({result.policy.digest[:12]}), facts of {result.collected_at:%Y-%m-%d %H:%M:%S %Z}\n"
    )
    for problem in result.problems:
        console.print(f"The facts cannot be relied on: {problem}\n", style="red bold")
    _table(console, result)
    _first(console, result.of(State.FAIL))
    _unknown(console, result.of(State.UNKNOWN))
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


def _table(console: "Console", result: "AuditResult") -> None:
    """One line a check, grouped by boundary."""
    from rich.table import Table
    from rich.text import Text

    from securetrain.audit.engine import worst_states

    states = worst_states(result.findings)
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    for wrap in (False, False, False, True):
        table.add_column(no_wrap=not wrap)
    boundary = ""
    for group in _by_check(result.findings):
        finding, state = group[0], states[group[0].check].value
        if finding.boundary.value != boundary:
            boundary = finding.boundary.value
            table.add_row(Text(f"\n{boundary}", style="bold"))
        what = finding.title + (f" ({len(group)} times)" if len(group) > 1 else "")
        if state == "pass":
            what = f"not found: {what}"
        table.add_row(
            Text(f"  {state}", style=STYLES[state]),
            Text(finding.check),
            Text(finding.severity.value),
            Text(what, style="dim" if state in {"pass", "not-applicable"} else ""),
        )
    console.print(table)
    console.print()


def _by_check(findings: Iterable["Finding"]) -> list[list["Finding"]]:
    groups: dict[str, list[Finding]] = {}
    for finding in findings:
        groups.setdefault(finding.check, []).append(finding)
    return list(groups.values())


def _first(console: "Console", failed: tuple["Finding", ...]) -> None:
    """What to do first: the worst, and among equals what this user can do himself."""
    if not failed:
        return
    order = sorted(
        _by_check(failed),
        key=lambda g: (-g[0].severity.rank, g[0].fixed_by.value != "user", g[0].check),
    )
    console.print("Fix first", style="bold")
    for number, group in enumerate(order[:MAX_FIRST], 1):
        finding = group[0]
        console.print(f"  {number}. {finding.check} ({finding.severity.value}) {finding.title}")
        for one in (g for g in group[:MAX_SEEN] if _seen(g) != g.title):
            _indented(console, f"seen: {_seen(one)}", style="dim")
        if len(group) > MAX_SEEN:
            _indented(console, f"and {len(group) - MAX_SEEN} more", style="dim")
        who = "you" if finding.fixed_by.value == "user" else "an administrator"
        _indented(console, f"fix ({who}): {' '.join(finding.remediation.split())}")
    if len(order) > MAX_FIRST:
        console.print(f"  and {len(order) - MAX_FIRST} other checks; --json has them all")
    console.print()


def _seen(finding: "Finding") -> str:
    """Where, and why or what was collected there, in one line."""
    where = "" if finding.subject == "node" else f"{finding.subject}: "
    return where + (finding.reason or ", ".join(_flat(finding.evidence)) or finding.title)


def _flat(evidence: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in evidence.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        elif value not in (None, "", []):
            yield f"{prefix}{name} {value}"


def _indented(console: "Console", text: str, style: str = "") -> None:
    from rich.padding import Padding
    from rich.text import Text

    console.print(Padding(Text(text, style=style), (0, 0, 0, 5)))


def _unknown(console: "Console", unknown: tuple["Finding", ...]) -> None:
    if not unknown:
        return
    console.print("Not known (missing evidence is never a pass)", style="bold")
    for finding in unknown:
        console.print(f"  {finding.check}  {_seen(finding)}")
    if os.geteuid() != 0:
        console.print("  Root can read more of this.", style="dim")
    console.print()


def _waivers(console: "Console", result: "AuditResult") -> None:
    if not result.waivers:
        return
    console.print("Waivers", style="bold")
    for use in result.waivers:
        until = f", until {use.expires}" if use.expires else ""
        reason = f": {use.reason}" if use.reason else ""
        console.print(f"  {use.id} for {use.check}{until}: {use.status.value}{reason}")
    console.print()


def _limits(console: "Console", result: "AuditResult") -> None:
    """What this machine cannot pass, and what no audit of one machine can say."""
    from securetrain.core.vocabulary import State

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


def _summary(console: "Console", result: "AuditResult") -> None:
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
