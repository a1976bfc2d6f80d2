# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The audit: a pure function of facts, checks, policy, waivers and time.

Rules, in order:

1. facts from the future or older than a day, what does not count as facts, and a policy, checks or
   advisories that differ from what was signed (ST-AUD-004) are an integrity problem (exit code 4).
   The first two are findings of ST-AUD-006; an asset of the inventory without facts is one of
   ST-AUD-005, and fewer answers than the policy asks for are one of ST-AUD-001;
2. a check whose declared evidence is not all there, or is empty where it never is, is ``unknown``,
   whatever the rest says;
3. then ``applies`` decides between judging and ``not-applicable``; if that is not known, the check
   is ``unknown``;
4. a check passes when everything it judged is known to be good and all that it declares was read
   (`judging.py`); an error inside a check is ``unknown``, never a pass. One that compares assets
   answers about each of them (`across.py`);
5. waivers come last and cover failures only; a waiver that does not count is a finding itself;
6. the exit code is that of `findings.py`. (2, a bad policy or waiver file, is raised before.)
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

from securetrain.audit.documents import Document, Facts, Refused
from securetrain.audit.engine.advisories import Advisories
from securetrain.audit.engine.check import Check, tuned
from securetrain.audit.engine.coverage import Scope, Seen
from securetrain.audit.engine.fields import View
from securetrain.audit.engine.findings import (
    STATE_RANK,
    AssetRef,
    AuditResult,
    Finding,
    PolicyRef,
    about_audit,
    exit_code_of,
    worst,
    worst_states,
)
from securetrain.audit.engine.judging import Comparison, judge
from securetrain.audit.engine.waivers import AuditStates, Waivers, waive
from securetrain.core import ExitCode
from securetrain.core.vocabulary import Boundary, State
from securetrain.policy.load import digest_of
from securetrain.policy.schema import Policy

MAX_AGE: Final = timedelta(hours=24)
MAX_SKEW: Final = timedelta(minutes=5)
_ROOT: Final = re.compile(r"[.[]")
_OF_FILES: Final = ("manifest:", "launch:")
"""Assets whose places are files that others share."""
_PLACE: Final = {boundary: place for place, boundary in enumerate(Boundary)}


def audit(
    facts: Facts,
    checks: Sequence[Check],
    policy: Policy,
    now: datetime,
    *,
    waivers: Waivers | None = None,
    advisories: Advisories | None = None,
    unpinned: Sequence[tuple[str, str]] = (),
    progress: Callable[[int, int], None] | None = None,
) -> AuditResult:
    """Judge every document, each by the checks of its kind.

    Args:
        facts: The documents.
        checks: The catalogue.
        policy: Which checks count and what they compare with (`tuned`).
        now: The time of the audit, with its zone.
        waivers: Failures that are accepted.
        advisories: Known faults of packages; those of this release by default.
        unpinned: What is used and differs from what was signed, and why (`pins.mismatches`).
        progress: Is told how many documents of how many were judged.
    """
    skip = set(policy.host.skip_checks)
    wanted = tuned([check for check in checks if check.id not in skip], policy)
    by_asset: dict[str, list[Finding]] = {}
    assets: list[AssetRef] = []
    apart = [about_audit("ST-AUD-004", f"pins[{name}]", why) for name, why in unpinned]
    problems = [f"not what was signed: {why}" for _, why in unpinned]
    alone = _by_kind(wanted)
    together = [Comparison(check) for check in wanted if check.across is not None]
    scope = Scope(policy, now)
    seen = Seen(wanted, policy, scope)
    for number, document in enumerate(facts, 1):
        if progress is not None:
            progress(number, facts.count)
        if isinstance(document, Refused):
            subject = f"facts[{document.source}]"
            apart.append(about_audit("ST-AUD-006", subject, document.reason))
            problems.append(f"{document.source} was not judged: {document.reason}")
            continue
        if why := scope.of(document):
            seen.leave_out(document, why)
            continue
        assets.append(
            AssetRef(
                asset=document.asset,
                kind=document.kind,
                collected_at=document.at,
                digest=document.digest,
                title=document.body.title,
            )
        )
        seen.see(document)
        if problem := _staleness(document, now):
            apart.append(about_audit("ST-AUD-006", "facts", problem, document.asset))
            problems.append(problem)
        view = View(document=document, policy=policy, now=now, advisories=advisories)
        found = (finding for check in alone[document.kind] for finding in judge(check, view))
        by_asset[document.asset] = [one for one in found if not scope.leaves_out(one)]
        for comparison in together:
            if comparison.check.kind == document.kind:
                comparison.see(view)
    for comparison in together:
        for finding in comparison.findings():
            by_asset[finding.asset].append(finding)
    absent = sorted(facts.expected - set(by_asset))
    none = "no document of this audit that counts is about it"
    apart += [about_audit("ST-AUD-005", "facts", none, asset) for asset in absent]
    states = {asset: worst_states(found) for asset, found in by_asset.items()}
    apart += _unanswered(states.values(), policy)
    findings = [finding for found in by_asset.values() for finding in found] + apart
    about = AuditStates(checks, states, {one.asset: one.kind for one in assets}, now)
    findings, uses = waive(findings, waivers or Waivers(), about)
    findings, rows = _ordered(findings), seen.rows()
    return AuditResult(
        at=now,
        assets=tuple(sorted(assets, key=lambda one: one.asset)),
        policy=PolicyRef(
            id=policy.metadata.id, version=policy.metadata.version, digest=digest_of(policy)
        ),
        findings=_folded(findings),
        counts=_counts(findings),
        skipped=tuple(sorted({check.id for check in checks} & skip)),
        waivers=tuple(uses),
        coverage=seen.sums(len(absent)),
        ledger=rows,
        problems=tuple(problems),
        notes=(*facts.notes, *scope.ended, *_unknown_params(checks, policy)),
        exit_code=int(exit_code_of(findings, rows, policy, problems)),
    )


def _staleness(document: Document, now: datetime) -> str:
    """Explain why the time of facts does not fit; empty when it does."""
    if document.at > now + MAX_SKEW:
        return f"the facts about {document.asset} are from the future: {document.at.isoformat()}"
    if now - document.at > MAX_AGE:
        hours = MAX_AGE.total_seconds() / 3600
        return f"the facts about {document.asset} are older than {hours:g} hours"
    return ""


def _unanswered(states: Iterable[Mapping[str, State]], policy: Policy) -> Iterator[Finding]:
    """Yield a finding when fewer checks were answered than the policy asks for."""
    asked = [state for mine in states for state in mine.values()]
    asked = [state for state in asked if state is not State.NOT_APPLICABLE]
    answered = len(asked) - asked.count(State.UNKNOWN)
    least = policy.audit.min_coverage_percent
    percent = 100 * answered / len(asked) if asked else 0.0
    if percent < least:
        said = f"{answered} of {len(asked)} were, {percent:.1f} %; the policy asks for {least} %"
        evidence = {"answered": answered, "asked": len(asked)}
        yield about_audit("ST-AUD-001", "coverage", said, evidence=evidence)


def _folded(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """One finding for what stands at one place of a file, whatever it is about besides."""
    first: dict[tuple[object, ...], Finding] = {}
    others: dict[str, dict[str, str]] = {}
    for one in findings:
        shared = one.asset.startswith(_OF_FILES) and one.location and one.location.line
        key: tuple[object, ...] = (one.fingerprint,)
        if shared and one.state is not State.UNKNOWN:
            key = (one.check, one.state, one.waiver, one.location, one.reason, repr(one.evidence))
        before = first.setdefault(key, one)
        if before is not one:
            also = others.setdefault(before.fingerprint, {})
            also[one.fingerprint] = f"{one.asset}: {one.subject}"
    return tuple(
        msgspec.structs.replace(one, evidence=one.evidence | {"also": others[one.fingerprint]})
        if one.fingerprint in others
        else one
        for one in first.values()
    )


def _by_kind(checks: Iterable[Check]) -> Mapping[str, Sequence[Check]]:
    """The checks that look at one asset alone."""
    found: defaultdict[str, list[Check]] = defaultdict(list)
    for check in checks:
        if check.across is None:
            found[check.kind].append(check)
    return found


def _unknown_params(checks: Sequence[Check], policy: Policy) -> list[str]:
    unknown = sorted(set(policy.audit.params) - {check.id for check in checks})
    return [f"audit.params of the policy names no check of this audit: {name}" for name in unknown]


def _counts(findings: Iterable[Finding]) -> dict[str, int]:
    # a check that asks several kinds of assets is one of each: its subjects begin differently
    states = list(worst(findings, lambda one: (one.check, _ROOT.split(one.subject)[0])).values())
    return {state.value: states.count(state) for state in State}


def out_of_reach(
    result: AuditResult, facts: Facts, checks: Iterable[Check], policy: Policy
) -> tuple[list[Finding], ExitCode]:
    """The findings that are unknown for no other reason than that only root may read a host.

    Returns:
        Them, and the exit code of the audit when none of them weighs anything.
    """
    evidence = {check.id: check.spec.evidence for check in checks if check.kind == "node"}
    bodies = {one.asset: one for one in facts if isinstance(one, Document) and one.kind == "node"}
    found = [
        one
        for one in result.of(State.UNKNOWN)
        if (document := bodies.get(one.asset)) and document.denied(evidence.get(one.check, ()))
    ]
    return found, exit_code_of(result.findings, result.ledger, policy, result.problems, found)


def _ordered(findings: Iterable[Finding]) -> list[Finding]:
    """The findings by boundary, worst first; in parts, since keys for all of them are large."""
    parts: dict[tuple[int, int, str], list[Finding]] = {}
    for one in findings:
        part = (_PLACE[one.boundary], -one.severity_in_context.rank, one.check)
        parts.setdefault(part, []).append(one)
    for some in parts.values():
        some.sort(key=lambda one: (one.asset, one.subject, STATE_RANK[one.state]))
    return [one for _, some in sorted(parts.items()) for one in some]
