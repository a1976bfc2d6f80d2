# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The audit: a pure function of facts, checks, policy, waivers and time.

Rules, in order:

1. facts from the future or older than a day are an integrity problem (exit code 4);
2. a check whose declared evidence is not all there, or is empty where it never is, is ``unknown``,
   whatever the rest says;
3. then ``applies`` decides between judging and ``not-applicable``; if that is not known, the check
   is ``unknown``;
4. a check passes when everything it judged is known to be good; an error inside a check is
   ``unknown``, never a pass;
5. waivers come last and cover failures only; a waiver that does not count is a finding itself;
6. exit code: 4 the facts cannot be relied on; 1 a failure whose severity in context is at or above
   ``host.fail_on``; 3 one asset with more
   checks unknown than ``host.max_unknown``; 0 otherwise. (2, a bad policy or waiver file, is raised
   before the audit.)
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from securetrain.audit.check import Check, FixedBy, Refs
from securetrain.audit.documents import Document, Facts
from securetrain.audit.facts import Location
from securetrain.audit.fields import Missing, View, resolve
from securetrain.audit.findings import AssetRef, AuditResult, Finding, PolicyRef, fingerprint
from securetrain.audit.functions.base import Judgement
from securetrain.audit.waivers import Waivers, WaiverStatus, WaiverUse, covers, refusal
from securetrain.core import ExitCode
from securetrain.core.vocabulary import Boundary, Severity, State
from securetrain.policy.load import digest_of
from securetrain.policy.schema import Policy

MAX_AGE: Final = timedelta(hours=24)
MAX_SKEW: Final = timedelta(minutes=5)
WAIVER_FAILED: Final = "ST-AUD-002"
WAIVER_REJECTED: Final = "ST-AUD-003"

_WORST: Final = (State.FAIL, State.UNKNOWN, State.WAIVED, State.PASS, State.NOT_APPLICABLE)


def audit(
    facts: Facts,
    checks: Sequence[Check],
    policy: Policy,
    now: datetime,
    *,
    waivers: Waivers | None = None,
) -> AuditResult:
    """Judge every document, each by the checks of its kind.

    Args:
        facts: The documents.
        checks: The catalogue.
        policy: Which checks count and what they compare with.
        now: The time of the audit, with its zone.
        waivers: Failures that are accepted.
    """
    skip = set(policy.host.skip_checks)
    wanted = [check for check in checks if check.id not in skip]
    by_asset: dict[str, list[Finding]] = {}
    for document in facts.documents:
        view = View(document=document, policy=policy, now=now)
        mine = (check for check in wanted if check.kind == document.kind)
        by_asset[document.asset] = [finding for check in mine for finding in judge(check, view)]
    states = {asset: worst_states(found) for asset, found in by_asset.items()}
    findings = [finding for found in by_asset.values() for finding in found]
    findings, uses = _waive(findings, waivers or Waivers(), checks, states, now)
    findings.sort(key=_order)
    problems = tuple(problem for one in facts.documents for problem in _problems(one, now))
    return AuditResult(
        at=now,
        assets=tuple(
            AssetRef(asset=one.asset, kind=one.kind, collected_at=one.at, digest=one.digest)
            for one in facts.documents
        ),
        policy=PolicyRef(
            id=policy.metadata.id, version=policy.metadata.version, digest=digest_of(policy)
        ),
        findings=tuple(findings),
        counts=_counts(findings),
        skipped=tuple(sorted({check.id for check in checks} & skip)),
        waivers=tuple(uses),
        problems=problems,
        exit_code=int(_exit_code(findings, policy, problems)),
    )


def judge(check: Check, view: View) -> list[Finding]:
    """The findings of one check, before waivers."""
    for name in check.spec.evidence:
        section = resolve(view, tuple(name.split(".")))
        if isinstance(section, Missing):
            return [_finding(check, view, State.UNKNOWN, reason=section.reason)]
    try:
        if check.applies is not None:
            applies = check.applies(view)
            if applies.value is None:
                return [_finding(check, view, State.UNKNOWN, reason="; ".join(applies.reasons))]
            if not applies.value:
                return [_finding(check, view, State.NOT_APPLICABLE)]
        judged = check.judge(view)
    except Exception as error:  # noqa: BLE001 - a broken check knows nothing, and says so
        reason = f"the check failed: {type(error).__name__}: {error}"
        return [_finding(check, view, State.UNKNOWN, reason=reason)]
    weight = _weight(check, view)
    bad = [_from_judgement(check, view, one, weight) for one in judged if not one.good.value]
    return bad or [_finding(check, view, State.PASS)]


def _weight(check: Check, view: View) -> tuple[Severity, str]:
    """The severity of a failure here, and why it is not the check's own."""
    for weight in check.weights:
        if weight.when(view).value:
            return weight.severity, weight.because
    return check.severity, ""


def worst_states(findings: Iterable[Finding]) -> dict[str, State]:
    """Check id to the state that counts for it."""
    states: dict[str, State] = {}
    for finding in findings:
        before = states.get(finding.check, finding.state)
        states[finding.check] = min(before, finding.state, key=_WORST.index)
    return states


def _from_judgement(
    check: Check, view: View, judgement: Judgement, weight: tuple[Severity, str]
) -> Finding:
    failed = judgement.good.value is False
    collection = check.spec.subject.removesuffix("[*]")
    whole = collection.partition(".")[0]
    return _finding(
        check,
        view,
        State.FAIL if failed else State.UNKNOWN,
        subject=f"{collection}[{judgement.label}]" if judgement.label else whole,
        reason=judgement.why or "; ".join(judgement.good.reasons),
        location=judgement.location,
        evidence=judgement.evidence,
        weight=weight,
    )


def _finding(
    check: Check,
    view: View,
    state: State,
    *,
    subject: str = "",
    reason: str = "",
    location: Location | None = None,
    evidence: Mapping[str, Any] | None = None,
    weight: tuple[Severity, str] | None = None,
) -> Finding:
    severity, because = weight or (check.severity, "")
    asset = view.document.asset
    subject = subject or check.spec.subject.partition(".")[0]
    return Finding(
        check=check.id,
        title=check.title,
        severity=check.severity,
        severity_in_context=severity,
        context=because,
        boundary=check.boundary,
        state=state,
        asset=asset,
        subject=subject,
        reason=reason,
        location=location,
        evidence=dict(evidence or {}),
        remediation=check.remediation,
        fixed_by=check.spec.fixed_by,
        refs=check.spec.refs,
        fingerprint=fingerprint(check.id, asset, subject),
    )


def _waive(
    findings: list[Finding],
    waivers: Waivers,
    checks: Sequence[Check],
    states: Mapping[str, Mapping[str, State]],
    now: datetime,
) -> tuple[list[Finding], list[WaiverUse]]:
    """Cover failures, and report every waiver that does not count."""
    severities = {check.id: check.severity for check in checks}
    uses = [
        WaiverUse(id=bad.id, check=bad.check, status=WaiverStatus.MALFORMED, reason=bad.reason)
        for bad in waivers.malformed
    ]
    result = list(findings)
    for waiver in waivers.items:
        refused = refusal(waiver, severities.get(waiver.check), states, now)
        status, reason = refused or (WaiverStatus.UNUSED, "no finding of this audit is covered")
        if refused is None:
            for i, finding in enumerate(result):
                if finding.state is State.FAIL and covers(
                    waiver, finding.check, finding.asset, finding.subject
                ):
                    status, reason = WaiverStatus.APPLIED, ""
                    result[i] = _waived(finding, waiver.id)
        uses.append(
            WaiverUse(
                id=waiver.id,
                check=waiver.check,
                status=status,
                reason=reason,
                expires=waiver.expires,
            )
        )
    uses.sort(key=lambda use: (use.check, use.id))
    result.extend(_about_waiver(use) for use in uses if use.status in _BAD_WAIVERS)
    return result, uses


def _waived(finding: Finding, waiver: str) -> Finding:
    return msgspec.structs.replace(finding, state=State.WAIVED, waiver=waiver)


_BAD_WAIVERS: Final = {
    WaiverStatus.MALFORMED: (WAIVER_FAILED, "A waiver is malformed and covers nothing"),
    WaiverStatus.EXPIRED: (WAIVER_FAILED, "A waiver has expired and covers nothing"),
    WaiverStatus.REJECTED: (WAIVER_REJECTED, "A waiver does not count"),
}


def _about_waiver(use: WaiverUse) -> Finding:
    """A waiver that failed is a finding: what it covered is back, and somebody should know."""
    check, title = _BAD_WAIVERS[use.status]
    subject = f"waiver[{use.id}]"
    return Finding(
        check=check,
        title=title,
        severity=Severity.HIGH,
        severity_in_context=Severity.HIGH,
        boundary=Boundary.IDENTITY,
        state=State.FAIL,
        subject=subject,
        reason=use.reason,
        evidence={"check": use.check},
        remediation="Fix what the waiver is about and remove it, or have it renewed and approved"
        " by somebody other than its owner.",
        fixed_by=FixedBy.USER,
        refs=Refs(nist=("CA-5", "AC-5")),
        fingerprint=fingerprint(check, "", subject),
    )


def _counts(findings: Iterable[Finding]) -> dict[str, int]:
    states = list(worst_states(findings).values())
    return {state.value: states.count(state) for state in State}


def _problems(document: Document, now: datetime) -> Iterator[str]:
    if document.at > now + MAX_SKEW:
        yield f"the facts about {document.asset} are from the future: {document.at.isoformat()}"
    elif now - document.at > MAX_AGE:
        hours = MAX_AGE.total_seconds() / 3600
        yield f"the facts about {document.asset} are older than {hours:g} hours"


def _exit_code(findings: Sequence[Finding], policy: Policy, problems: Sequence[str]) -> ExitCode:
    if problems:
        return ExitCode.INTEGRITY
    failed = (f for f in findings if f.state is State.FAIL)
    if any(finding.severity_in_context >= policy.host.fail_on for finding in failed):
        return ExitCode.FAILURE
    by_asset: dict[str, list[Finding]] = {}
    for finding in findings:
        by_asset.setdefault(finding.asset, []).append(finding)
    states = (list(worst_states(mine).values()) for mine in by_asset.values())
    unknown = max((mine.count(State.UNKNOWN) for mine in states), default=0)
    return ExitCode.INCOMPLETE if unknown > policy.host.max_unknown else ExitCode.OK


def _order(finding: Finding) -> tuple[int, int, str, str, str, int]:
    return (
        list(Boundary).index(finding.boundary),
        -finding.severity_in_context.rank,
        finding.check,
        finding.asset,
        finding.subject,
        _WORST.index(finding.state),
    )
