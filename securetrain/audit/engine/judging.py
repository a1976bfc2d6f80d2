# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The findings of one check, about one asset or about several that it compares.

A pass needs a positive reading of all the evidence that the check declares: one open entry of the
ledger that bears on it makes a pass, and a "does not apply", unknown; a failure that is known stays
one. A check that has nothing to judge, where everything was read, does not apply.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from securetrain.audit.engine.across import Compared, Seen, compare, see
from securetrain.audit.engine.checks.check import Check
from securetrain.audit.engine.fields import Missing, Path, View, elements, locate
from securetrain.audit.engine.findings import Finding, fingerprint
from securetrain.audit.engine.function import Judgement
from securetrain.audit.engine.kleene import TRUE
from securetrain.audit.facts import Location
from securetrain.core.vocabulary import Severity, State


def judge(check: Check, view: View) -> list[Finding]:
    """The findings of one check, before waivers."""
    asset = view.document.asset
    try:
        before = _before(check, view)
        if before is not None:
            return [before]
        judged = check.judge(view)
    except Exception as error:  # noqa: BLE001 - a broken check knows nothing, and says so
        return [_broken(check, asset, error)]
    weight = _weight(check, view)
    bad = [one for one in judged if not one.good.value]
    if not bad:
        return [_well(check, view, is_judged=not check.over or _has_elements(check, view))]
    subjects = _subjects(check, bad)
    return [
        _from_judgement(check, asset, one, subject, weight)
        for one, subject in zip(bad, subjects, strict=True)
    ]


def _before(check: Check, view: View) -> Finding | None:
    """The finding of a check that does not come to judge: evidence is missing, or none applies."""
    asset = view.document.asset
    for path in check.gates:
        section, at = locate(view, path)
        if isinstance(section, Missing) and not section.definite:
            return _finding(check, asset, State.UNKNOWN, reason=section.reason, location=at)
    applies = check.applies(view) if check.applies is not None else TRUE
    if applies.value is None:
        why = "; ".join(applies.reasons)
        return _finding(check, asset, State.UNKNOWN, reason=why, location=applies.at)
    return None if applies.value else _well(check, view, is_judged=False)


def _has_elements(check: Check, view: View) -> bool:
    return next(elements(view, check.over), None) is not None


def _well(check: Check, view: View, *, is_judged: bool) -> Finding:
    """The finding of a check that found nothing bad: whether all that it declares was read."""
    asset = view.document.asset
    if (entry := view.document.unread(check.spec.evidence)) is not None:
        return _finding(check, asset, State.UNKNOWN, reason=entry.why, location=entry.at)
    passes = is_judged and not view.document.holds_nothing
    return _finding(check, asset, State.PASS if passes else State.NOT_APPLICABLE)


def _broken(check: Check, asset: str, error: Exception) -> Finding:
    reason = f"the check failed: {type(error).__name__}: {error}"
    return _finding(check, asset, State.UNKNOWN, reason=reason)


def _subjects(check: Check, judged: Iterable[Judgement]) -> list[str]:
    """The subject of each judgement: two of the same name are told apart by their order."""
    parts = check.spec.subject.split("[*]")
    seen: Counter[str] = Counter()
    subjects = []
    for one in judged:
        labels = (one.label,) if isinstance(one.label, str) else one.label
        named = [f"{part}[{label}]" for part, label in zip(parts, labels, strict=False) if label]
        subject = "".join(named) or check.root
        seen[subject] += 1
        subjects.append(subject if seen[subject] == 1 else f"{subject}#{seen[subject]}")
    return subjects


def _weight(check: Check, view: View) -> tuple[Severity, str]:
    """The severity of a failure here, and why it is not the check's own."""
    for weight in check.weights:
        if weight.when(view).value:
            return weight.severity, weight.because
    return check.severity, ""


def _from_judgement(
    check: Check, asset: str, judgement: Judgement, subject: str, weight: tuple[Severity, str]
) -> Finding:
    failed = judgement.good.value is False
    return _finding(
        check,
        asset,
        State.FAIL if failed else State.UNKNOWN,
        subject=subject,
        reason=judgement.why or "; ".join(judgement.good.reasons),
        location=judgement.location or judgement.good.at,
        evidence=judgement.evidence,
        weight=weight,
    )


def _finding(
    check: Check,
    asset: str,
    state: State,
    *,
    subject: str = "",
    reason: str = "",
    location: Location | None = None,
    evidence: Mapping[str, Any] | None = None,
    weight: tuple[Severity, str] | None = None,
) -> Finding:
    severity, because = weight or (check.severity, "")
    subject = subject or check.root
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


@dataclass(slots=True)
class Comparison:
    """One check that compares assets, which sees them one after the other."""

    check: Check
    _seen: dict[Path, list[Seen]] = field(default_factory=dict)
    _weights: dict[str, tuple[Severity, str]] = field(default_factory=dict)
    _others: list[Finding] = field(default_factory=list)

    def see(self, view: View) -> None:
        """Take the values of an asset."""
        check, asset = self.check, view.document.asset
        assert check.across is not None
        try:
            before = _before(check, view)
            if before is None and (entry := view.document.unread(check.spec.evidence)):
                before = _finding(check, asset, State.UNKNOWN, reason=entry.why, location=entry.at)
            seen = [] if before else [see(view, path) for path in check.across.paths]
            weight = _weight(check, view)
        except Exception as error:  # noqa: BLE001 - a broken check knows nothing, and says so
            before, seen, weight = _broken(check, asset, error), [], (check.severity, "")
        self._weights[asset] = weight
        if before is not None and before.state is State.NOT_APPLICABLE:
            self._others.append(before)
            return
        if before is not None:
            unknown = Seen(asset=asset, missing=before.reason, at=before.location)
            seen = [unknown] * len(check.across.paths)
        for path, one in zip(check.across.paths, seen, strict=True):
            self._seen.setdefault(path, []).append(one)

    def findings(self) -> list[Finding]:
        """The findings about every asset that was seen: one that passes at every path has one."""
        across = self.check.across
        assert across is not None
        found = list(self._others)
        passed: dict[str, None] = {}
        bad: dict[str, None] = {}
        for path, seen in self._seen.items():
            if len(seen) == 1 and not seen[0].missing:
                asset, why = seen[0].asset, "one asset alone has nothing to be compared with"
                found.append(_finding(self.check, asset, State.NOT_APPLICABLE, reason=why))
                return found
            for one in compare(across.rule, seen):
                if one.good.value:
                    passed[one.seen.asset] = None
                else:
                    bad[one.seen.asset] = None
                    found.append(self._of(path, one))
        well = (asset for asset in passed if asset not in bad)
        found += [_finding(self.check, asset, State.PASS) for asset in well]
        return found

    def _of(self, path: Path, one: Compared) -> Finding:
        name = ".".join(path)
        return _finding(
            self.check,
            one.seen.asset,
            State.FAIL if one.good.value is False else State.UNKNOWN,
            subject=name,
            reason=one.why,
            location=one.seen.at,
            evidence={name: None if one.seen.missing else list(one.seen.values)},
            weight=self._weights[one.seen.asset],
        )
