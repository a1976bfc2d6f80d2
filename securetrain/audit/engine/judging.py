# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The findings of one check, about one asset or about several that it compares with each other.

A pass needs a positive reading of all the evidence that the check declares: one open entry of the
ledger that bears on it makes a pass, and a "does not apply", unknown; a failure that is known stays
one. A check that has nothing to judge, where everything was read, does not apply.

::

    {equal_across: PATH}     {majority_across: PATH}     {unique_across: PATH}

``PATH`` may be a list of paths, each compared for itself, and hold ``*``: then an asset has all of
those values. Rules:

1. what is definitely not there is a value like another, except that nobody shares it; what is not
   known makes its asset unknown;
2. ``equal_across``: an asset with another value than most fails. Where no value leads, all fail: a
   difference is there, whoever is right;
3. ``majority_across``: an asset fails where more than half of all, the unknown ones included, have
   one other value. Without such a majority nobody is known to be odd;
4. ``unique_across``: an asset fails that shares a value with another;
5. an asset passes only where no value of the unknown ones could change that;
6. one asset alone has nothing to be compared with.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec

from securetrain.audit.engine.check import Check
from securetrain.audit.engine.fields import Missing, Path, View, elements, locate, steps_of
from securetrain.audit.engine.findings import Finding, fingerprint
from securetrain.audit.engine.function import Judgement
from securetrain.audit.engine.kleene import FALSE, TRUE, unknown
from securetrain.audit.facts import Location
from securetrain.core import canonical
from securetrain.core.vocabulary import Severity, State

MAX_NAMED: Final = 3
MAX_SHOWN: Final = 80
ABSENT: Final = "nothing"
"""The value of what is definitely not there."""
_WELL: Final = Judgement(label="", good=TRUE)
_STATES: Final = {True: State.PASS, False: State.FAIL, None: State.UNKNOWN}


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
        some = not check.over or next(elements(view, check.over), None) is not None
        return [_well(check, view, is_judged=some)]
    subjects = _subjects(check, bad)
    return [
        _finding(check, asset, one, subject, weight)
        for one, subject in zip(bad, subjects, strict=True)
    ]


def _before(check: Check, view: View) -> Finding | None:
    """The finding of a check that does not come to judge: evidence is missing, or none applies."""
    asset = view.document.asset
    for path in check.gates:
        section, at = locate(view, path)
        if isinstance(section, Missing) and not section.definite:
            return _finding(check, asset, _not_known(section.reason, at))
    applies = check.applies(view) if check.applies is not None else TRUE
    if applies.value is None:
        return _finding(check, asset, Judgement(label="", good=applies))
    return None if applies.value else _well(check, view, is_judged=False)


def _well(check: Check, view: View, *, is_judged: bool) -> Finding:
    """The finding of a check that found nothing bad: whether all that it declares was read."""
    asset = view.document.asset
    if (entry := view.document.unread(check.spec.evidence)) is not None:
        return _finding(check, asset, _not_known(entry.why, entry.at))
    passes = is_judged and not view.document.holds_nothing
    return _finding(check, asset, _WELL, state=State.PASS if passes else State.NOT_APPLICABLE)


def _broken(check: Check, asset: str, error: Exception) -> Finding:
    reason = f"the check failed: {type(error).__name__}: {error}"
    return _finding(check, asset, _not_known(reason))


def _not_known(reason: str, at: Location | None = None) -> Judgement:
    return Judgement(label="", good=unknown(reason, at))


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
    for when, there in check.weights:
        if when(view).value:
            return there.severity, there.because
    return check.severity, ""


def _finding(
    check: Check,
    asset: str,
    one: Judgement,
    subject: str = "",
    weight: tuple[Severity, str] | None = None,
    *,
    state: State | None = None,
) -> Finding:
    """The finding of a judgement, in the state that it has by itself unless told otherwise."""
    severity, because = weight or (check.severity, "")
    subject = subject or check.root
    return Finding(
        check=check.id,
        title=check.spec.title,
        severity=check.severity,
        severity_in_context=severity,
        context=because,
        boundary=check.spec.boundary,
        state=state or _STATES[one.good.value],
        asset=asset,
        subject=subject,
        reason=one.why or "; ".join(one.good.reasons),
        location=one.location or one.good.at,
        evidence=dict(one.evidence),
        remediation=check.spec.remediation,
        fixed_by=check.spec.fixed_by,
        refs=check.spec.refs,
        fingerprint=fingerprint(check.id, asset, subject),
    )


# --- what compares assets -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class AssetValues:
    """The values of one asset at one path, as text to compare and to show."""

    asset: str
    values: tuple[str, ...] = ()
    missing: str = ""
    """Why they are not known."""
    at: Location | None = None


def see(view: View, path: Path) -> AssetValues:
    """The values of the view's document at a path."""
    asset = view.document.asset
    *collections, last = steps_of(path)
    found: list[str] = []
    place: Location | None = None
    for there in _focused(view, tuple(collections)):
        value, at = (there, there.at) if isinstance(there, Missing) else locate(there, last)
        place = place or at
        if isinstance(value, Missing) and not value.definite:
            return AssetValues(asset=asset, missing=value.reason, at=place)
        found.append(ABSENT if isinstance(value, Missing) else _text(value))
    return AssetValues(asset=asset, values=tuple(sorted(set(found))), at=place)


def _focused(view: View, collections: tuple[Path, ...]) -> Iterator[View | Missing]:
    """Yield the view of each element that the last step of a path starts from."""
    if not collections:
        yield view
        return
    for _, item in elements(view, collections):
        yield item if isinstance(item, Missing) else view.on(item)


def _text(value: Any) -> str:
    """A value as text that is the same for equal values only."""
    return value if type(value) is str else canonical.dumps(msgspec.to_builtins(value)).decode()


def compare(rule: str, seen: Sequence[AssetValues]) -> list[Judgement]:
    """Judge every asset, in their order; `seen` has more than one."""
    return (_unique if rule == "unique_across" else _most)(rule, seen)


def _most(rule: str, seen: Sequence[AssetValues]) -> list[Judgement]:
    known = Counter(one.values for one in seen if not one.missing)
    open_ = len(seen) - known.total()
    ranked = known.most_common(2)
    best, count = ranked[0] if ranked else ((), 0)
    second = ranked[1][1] if len(ranked) > 1 else 0
    counted = f"{known.total()} of {len(seen)} are known"
    if rule == "majority_across":
        leads = sure = 2 * count > len(seen)
    else:
        leads, sure = count > second, count > second + open_
    found = []
    for one in seen:
        if one.missing:
            found.append(_unknown(one, f"{counted}{_led_by(best, count)}"))
        elif not leads and rule == "majority_across":
            found.append(_unknown(one, f"no value is that of most; {counted}"))
        elif leads and one.values == best:
            good = TRUE if sure else unknown(counted)
            found.append(Judgement(label=one.asset, good=good, why="" if sure else counted))
        else:
            others = known.most_common(MAX_NAMED + 1)
            rest = ", ".join(
                f"{number} of {len(seen)} have {_shown(values)}"
                for values, number in others
                if values != one.values
            )
            found.append(
                Judgement(label=one.asset, good=FALSE, why=f"{_shown(one.values)}; {rest}")
            )
    return found


def _led_by(best: tuple[str, ...], count: int) -> str:
    return f", {count} have {_shown(best)}" if count else ""


def _unique(_: str, seen: Sequence[AssetValues]) -> list[Judgement]:
    owners: dict[str, list[str]] = {}
    for one in seen:
        for value in one.values:
            if value != ABSENT:
                owners.setdefault(value, []).append(one.asset)
    open_ = sum(1 for one in seen if one.missing)
    counted = f"{len(seen) - open_} of {len(seen)} are known"
    found = []
    for one in seen:
        others = dict.fromkeys(
            asset for value in one.values for asset in owners.get(value, ()) if asset != one.asset
        )
        if one.missing:
            found.append(_unknown(one, counted))
        elif others:
            named = ", ".join(list(others)[:MAX_NAMED])
            more = f" and {len(others) - MAX_NAMED} more" if len(others) > MAX_NAMED else ""
            found.append(Judgement(label=one.asset, good=FALSE, why=f"shared with {named}{more}"))
        else:
            has_some = set(one.values) - {ABSENT}
            good = unknown(counted) if open_ and has_some else TRUE
            found.append(Judgement(label=one.asset, good=good, why="" if good.value else counted))
    return found


def _unknown(one: AssetValues, why: str) -> Judgement:
    said = f"{one.missing}; {why}" if one.missing else why
    return Judgement(label=one.asset, good=unknown(said), why=said)


def _shown(values: tuple[str, ...]) -> str:
    text = " ".join(values) or ABSENT
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


@dataclass(slots=True)
class Comparison:
    """One check that compares assets, which sees them one after the other."""

    check: Check
    _seen: dict[Path, list[AssetValues]] = field(default_factory=dict)
    _weights: dict[str, tuple[Severity, str]] = field(default_factory=dict)
    _others: list[Finding] = field(default_factory=list)

    def see(self, view: View) -> None:
        """Take the values of an asset."""
        check, asset = self.check, view.document.asset
        assert check.across is not None
        _, paths = check.across
        try:
            before = _before(check, view)
            if before is None and (entry := view.document.unread(check.spec.evidence)):
                before = _finding(check, asset, _not_known(entry.why, entry.at))
            seen = [] if before else [see(view, path) for path in paths]
            weight = _weight(check, view)
        except Exception as error:  # noqa: BLE001 - a broken check knows nothing, and says so
            before, seen, weight = _broken(check, asset, error), [], (check.severity, "")
        self._weights[asset] = weight
        if before is not None and before.state is State.NOT_APPLICABLE:
            self._others.append(before)
            return
        if before is not None:
            unknown = AssetValues(asset=asset, missing=before.reason, at=before.location)
            seen = [unknown] * len(paths)
        for path, one in zip(paths, seen, strict=True):
            self._seen.setdefault(path, []).append(one)

    def findings(self) -> list[Finding]:
        """The findings about every asset that was seen: one that passes at every path has one."""
        assert self.check.across is not None
        rule, _ = self.check.across
        found = list(self._others)
        for path, seen in self._seen.items():
            if len(seen) == 1 and not seen[0].missing:
                asset, why = seen[0].asset, "one asset alone has nothing to be compared with"
                alone = Judgement(label="", good=TRUE, why=why)
                found.append(_finding(self.check, asset, alone, state=State.NOT_APPLICABLE))
                return found
            for one, judged in zip(seen, compare(rule, seen), strict=True):
                if not judged.good.value:
                    found.append(self._of(path, one, judged))
        others = {one.asset for one in found}
        well = (asset for asset in self._weights if asset not in others)
        return [*found, *(_finding(self.check, asset, _WELL) for asset in well)]

    def _of(self, path: Path, one: AssetValues, judged: Judgement) -> Finding:
        name = ".".join(path)
        seen = None if one.missing else list(one.values)
        there = replace(judged, location=one.at, evidence={name: seen})
        return _finding(self.check, one.asset, there, name, self._weights[one.asset])
