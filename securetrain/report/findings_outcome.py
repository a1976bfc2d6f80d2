# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""An audit as an `Outcome`: a rule for each check, a problem for each finding, a test for each pair
of check and asset.

What the baseline knew is left out where only what is new is asked for; a test of it is accepted.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from securetrain.audit import AuditResult, Check, Finding, Refs
from securetrain.core.vocabulary import State
from securetrain.report.finding_groups import NODE, about, element, is_left_out, tidy, why
from securetrain.report.outcome import ASSETS, ROOT, Case, Located, Outcome, Rule

VERB: Final = "audit"
KNOWN: Final = "known by the baseline"
_OPEN: Final = (State.FAIL, State.UNKNOWN, State.WAIVED)


def outcome_of(result: AuditResult, checks: Sequence[Check]) -> Outcome:
    """The outcome of an audit."""
    reasons = _Reasons(result)
    problems = [
        reasons.located(finding)
        for finding in result.findings
        if finding.state in _OPEN and not is_left_out(finding, result)
    ]
    return Outcome(
        verb=VERB,
        root=about(result),
        exit_code=result.exit_code,
        problems=tuple(problems),
        rules=_rules(result, checks),
        notices=result.problems,
        tests=_cases(result, reasons),
    )


def _rules(result: AuditResult, checks: Sequence[Check]) -> dict[str, Rule]:
    """The check behind each finding; a finding about a waiver has none and speaks for itself."""
    by_id = {check.id: check for check in checks}
    rules: dict[str, Rule] = {}
    for finding in result.findings:
        if finding.state in _OPEN and finding.check not in rules:
            check = by_id.get(finding.check)
            rules[finding.check] = Rule(
                id=finding.check,
                title=finding.title,
                fix=" ".join(finding.remediation.split()),
                severity=finding.severity,
                why=" ".join(check.spec.rationale.split()) if check is not None else "",
                tags=(finding.boundary.value, *_tags(finding.refs)),
            )
    return rules


def _tags(refs: Refs) -> tuple[str, ...]:
    """References, as code-scanning services group by them."""
    return (
        *(f"external/cwe/cwe-{number:03d}" for number in refs.cwe),
        *(f"external/atlas/{name}" for name in refs.atlas),
        *(f"external/nist-800-53/{name}" for name in refs.nist),
        *refs.cve,
    )


def _cases(result: AuditResult, reasons: "_Reasons") -> tuple[Case, ...]:
    """Every check on every asset that it was run on."""
    pairs: dict[tuple[str, str, str], list[Finding]] = defaultdict(list)
    for finding in result.findings:
        pairs[finding.boundary.value, finding.check, finding.asset].append(finding)
    return tuple(
        Case(
            name=f"{check} {asset}".rstrip() + f": {found[0].title}",
            group=boundary,
            problems=tuple(reasons.located(one) for one in found if one.state in _OPEN),
            not_applicable=all(one.state is State.NOT_APPLICABLE for one in found),
        )
        for (boundary, check, asset), found in pairs.items()
    )


class _Reasons:
    """The words about findings."""

    def __init__(self, result: AuditResult) -> None:
        self._titles: Mapping[str, str] = {one.asset: one.title for one in result.assets}
        self._ends: Mapping[str, str] = {
            use.id: f" until {use.expires}" for use in result.waivers if use.expires
        }
        self._result = result

    def located(self, finding: Finding) -> Located:
        """A finding where it is."""
        file, line, column, base = _place(finding)
        return Located(
            code=finding.check,
            what=self._message(finding),
            fix=" ".join(finding.remediation.split()),
            file=file,
            base=base,
            line=line,
            column=column,
            subject=f"{finding.asset}/{finding.subject}".lstrip("/"),
            subject_kind="element",
            severity=finding.severity_in_context,
            undecided=finding.state is State.UNKNOWN,
            accepted=self._accepted(finding),
            fingerprint=finding.fingerprint,
        )

    def _message(self, finding: Finding) -> str:
        """A sentence that stands by itself: code-scanning services show nothing else of it."""
        kind, _, name = finding.asset.partition(":")
        owner = self._titles.get(finding.asset, "") or (f"node {name}" if kind == NODE else name)
        whom = ", ".join(filter(None, (owner, element(finding.subject))))
        said = [
            f"{finding.title}." if finding.state is State.FAIL else f"Unknown: {finding.title}."
        ]
        if detail := ": ".join(filter(None, (whom, tidy(why(finding))))):
            said.append(f"{detail}.")
        if finding.context:
            said.append(f"{finding.severity_in_context}, not {finding.severity}: {finding.context}")
        return " ".join(said)

    def _accepted(self, finding: Finding) -> str:
        if finding.state is State.WAIVED:
            return f"waiver {finding.waiver}{self._ends.get(finding.waiver, '')}"
        return KNOWN if is_left_out(finding, self._result) else ""


def _place(finding: Finding) -> tuple[str, int, int, str]:
    """File, line, column and base: files of a node stand below the node, others where they are.

    A finding that was read from no file stands on the first line of its asset, because
    code-scanning services take no result without a place.
    """
    kind, _, name = finding.asset.partition(":")
    here = finding.location
    if kind == NODE:
        path = f"{kind}/{name}" + (f"/{here.path.lstrip('/')}" if here is not None else "")
        return path, max(here.line, 1) if here else 1, here.column if here else 0, ASSETS
    if here is not None:
        return here.path, max(here.line, 1), here.column, ROOT
    if not finding.asset:
        return finding.subject, 1, 0, ASSETS
    return f"{kind}/{name}", 1, 0, ASSETS
