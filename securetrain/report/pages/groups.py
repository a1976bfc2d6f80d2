# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The findings of an audit as people read them: grouped by boundary and check, equal ones folded.

Rules:

1. a group is one check in one state with one weight; groups stand below their boundary, the worst
   first, failures before what is not known, and that before what is waived;
2. findings that say the same of several machines are one place that names the machines;
3. a place is a file and line wherever the finding has one;
4. nothing is left out here: what a page cannot hold, it counts.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from securetrain.audit import AuditResult, Finding
from securetrain.core import ExitCode
from securetrain.core.vocabulary import Boundary, Severity, State
from securetrain.report.document import OPEN, pairs, plural, runs

NODE: Final = "node"
MAX_NAMES: Final = 50
"""Characters; of more machines than fit, the first few are named."""
FIRST_NAMES: Final = 3
MIN_SHARED: Final = 3
"""Checks with one reason from which on they stand below it."""
NOUNS: Final[Mapping[str, tuple[str, str]]] = {
    NODE: ("node", "nodes"),
    "workload": ("workload", "workloads"),
    "cluster": ("cluster", "clusters"),
    "launch": ("launch command", "launch commands"),
    "slurm": ("Slurm cluster", "Slurm clusters"),
    "run": ("run", "runs"),
    "storage": ("storage configuration", "storage configurations"),
}
"""What an asset of a kind is called."""
_SEGMENT: Final = re.compile(r"([A-Za-z_]+)\[(.*?)\](?=\.[A-Za-z_]|$)")
_FIELD: Final = re.compile(r"([a-z_]+(?:\.[\w*]+)*): (?:absent|error|templated): ")
"""The field before a reason, as the engine writes it: ``slurm.auth_type: error: AuthType: ...``."""
_SETTING: Final = re.compile(r"([A-Za-z]\w*): (.*)", re.DOTALL)
_NUMBERED: Final = re.compile(r"(.*?)([0-9]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One place with what was found there."""

    path: str
    """A file and line; empty when it was read from none."""
    machines: str
    """Where the audit is about several: those, in words."""
    brief: str
    """The first of many."""
    what: str
    """The element, in words."""
    why: str
    """The reason, or the fields that decided."""
    findings: tuple[Finding, ...]

    @property
    def where(self) -> str:
        """The place in words; empty when an audit is about one machine and it is no file."""
        return ": ".join(filter(None, (self.machines, self.path)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One check in one state."""

    first: Finding
    """One of its findings, for what they have in common."""
    places: tuple[Place, ...]
    count: str
    """How much of what was judged it is about: ``3 of 18 workloads``; empty for the only one."""

    @property
    def state(self) -> State:
        """Its state."""
        return self.first.state

    @property
    def severity(self) -> Severity:
        """Its weight there."""
        return self.first.severity_in_context

    @property
    def who(self) -> str:
        """The party that can do something about it."""
        return "you" if self.first.fixed_by.value == "user" else "an administrator"

    @property
    def known(self) -> bool:
        """True when the baseline had all of it."""
        return all(finding.known for place in self.places for finding in place.findings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One reason why several checks are not known."""

    reason: str
    groups: tuple[tuple[Group, str], ...]
    """Each with the settings and elements that it misses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One boundary: what is open there, and how many checks are not."""

    boundary: Boundary
    groups: tuple[Group, ...]
    passed: tuple[Finding, ...]
    """One finding for each check that passed everywhere."""
    not_applicable: tuple[Finding, ...]


def sections(result: AuditResult) -> tuple[Section, ...]:
    """Everything that was judged, boundary by boundary; of what is open, only what is new where
    only that counts.
    """
    worst = result.worst
    assets = _Assets(result)
    shown: dict[Boundary, list[Finding]] = {boundary: [] for boundary in Boundary}
    for one in result.findings:
        if not is_left_out(one, result):
            shown[one.boundary].append(one)
    return tuple(
        _section(boundary, findings, worst, assets)
        for boundary, findings in shown.items()
        if findings
    )


def shared_causes(groups: Sequence[Group]) -> tuple[Cause, ...]:
    """Reasons that keep several checks from being known, those of the most checks first.

    A group belongs to a cause when it has no other.
    """
    by_reason: dict[str, list[tuple[Group, str]]] = defaultdict(list)
    for group in groups:
        if group.state is not State.UNKNOWN:
            continue
        parts = [_cause(text) for place in group.places for text in place.why.split("; ")]
        reasons = {(group.places[0].brief, reason) for reason, _ in parts}
        if len(reasons) == 1:
            ((machines, reason),) = reasons
            names = dict.fromkeys(name for _, name in parts if name)
            by_reason[": ".join(filter(None, (machines, reason)))].append((group, ", ".join(names)))
    found = [Cause(reason=r, groups=tuple(g)) for r, g in by_reason.items() if len(g) >= MIN_SHARED]
    return tuple(sorted(found, key=lambda cause: -len(cause.groups)))


def _cause(text: str) -> tuple[str, str]:
    """A reason without the setting that it is about, and that setting."""
    found = _SETTING.fullmatch(text)
    return (found[2], found[1]) if found else (text, "")


def is_left_out(finding: Finding, result: AuditResult) -> bool:
    """Return whether a finding is known, and only what is new was asked for."""
    return finding.known and result.baseline is not None and result.baseline.new_only


def _section(
    boundary: Boundary, findings: list[Finding], worst: Mapping[str, State], assets: "_Assets"
) -> Section:
    groups: dict[tuple[str, State, Severity], list[Finding]] = defaultdict(list)
    rest: dict[State, dict[str, Finding]] = {State.PASS: {}, State.NOT_APPLICABLE: {}}
    for one in findings:
        if one.state in OPEN:
            groups[one.check, one.state, one.severity_in_context].append(one)
        elif worst[one.check] is one.state:
            rest[one.state].setdefault(one.check, one)
    made = [assets.group(found) for found in groups.values()]
    made.sort(key=lambda g: (OPEN.index(g.state), -g.severity.rank, g.first.check))
    return Section(
        boundary=boundary,
        groups=tuple(made),
        passed=tuple(rest[State.PASS].values()),
        not_applicable=tuple(rest[State.NOT_APPLICABLE].values()),
    )


class _Assets:
    """The assets of an audit, for the words about their findings."""

    def __init__(self, result: AuditResult) -> None:
        self._by_name = {one.asset: one for one in result.assets}
        self._nodes = sum(one.kind == NODE for one in result.assets)
        judged: dict[str, set[str]] = defaultdict(set)
        for finding in result.findings:
            if finding.state is not State.NOT_APPLICABLE:
                judged[finding.check].add(finding.asset)
        self._judged = judged

    def group(self, findings: list[Finding]) -> Group:
        folded: dict[tuple[str, str, str], list[Finding]] = defaultdict(list)
        for one in findings:
            name, path = self._name(one), path_of(one.location)
            # a file of a node is the same place on each; any other place stands by itself
            key = (path if name else where(one, self._by_name), self._what(one), why(one))
            folded[key].append(one)
        places = tuple(self._place(*key, found) for key, found in folded.items())
        return Group(first=findings[0], places=places, count=self._count(findings))

    def _name(self, finding: Finding) -> str:
        """The machine that a finding is about, where it is about one."""
        kind, _, name = finding.asset.partition(":")
        return name if kind == NODE else ""

    def _place(self, path: str, what: str, why: str, findings: Sequence[Finding]) -> Place:
        names = tuple(dict.fromkeys(filter(None, map(self._name, findings))))
        machines = brief = fold(names) if self._nodes > 1 else ""
        if machines and len(names) == self._nodes:
            machines = brief = f"all {len(names)} nodes"
        elif len(machines) > MAX_NAMES:
            brief = f"{fold(names[:FIRST_NAMES])} and {len(names[FIRST_NAMES:])} more"
        words = {"what": what, "why": tidy(why, path), "machines": machines, "brief": brief}
        return Place(path=path, findings=tuple(findings), **words)

    def _what(self, finding: Finding) -> str:
        asset = self._by_name.get(finding.asset)
        title = asset.title if asset is not None else ""
        return ", ".join(filter(None, (title, element(finding.subject))))

    def _count(self, findings: Sequence[Finding]) -> str:
        asset = self._by_name.get(findings[0].asset)
        judged = len(self._judged[findings[0].check])
        found = len({one.asset for one in findings})
        if asset is not None and judged > 1:
            return f"{found} of {plural(judged, *NOUNS.get(asset.kind, ('asset', 'assets')))}"
        return f"{len(findings)} times" if len(findings) > 1 else ""


def where(finding: Finding, assets: Mapping[str, Any]) -> str:
    """The file and line of a finding that is about no machine, or its asset."""
    if path := path_of(finding.location):
        return path
    asset = finding.asset.partition(":")[2] if finding.asset in assets else finding.asset
    return asset.partition("#")[0]


def path_of(place: Any) -> str:
    """A file and line; empty for no file."""
    if place is None:
        return ""
    return f"{place.path}:{place.line}" if place.line else str(place.path)


def why(finding: Finding) -> str:
    """The reason of a finding, or the fields that decided, and how many more it is about."""
    also, at = finding.evidence.get("also", ()), finding.location
    said = {
        name: value
        for name, value in finding.evidence.items()
        if not (
            _is_place(value) or value in (also, at and at.path) or f"[{value}]" in finding.subject
        )
    }
    more = f" (and {len(also)} more here)" if also else ""
    written = f" (written at {path_of(at.written)})" if at and at.written else ""
    return f"{finding.reason or ', '.join(_flat(said))}{written}{more}"


def _is_place(value: Any) -> bool:
    """Return whether it says where something stands, which is shown already."""
    return isinstance(value, dict) and {"path", "line"} <= value.keys()


def _kept(field: re.Match[str]) -> str:
    """A name in an element (``run_as_user``), and no path from a root."""
    return "" if "." in field[1] else f"{field[1]}: "


def tidy(reason: str, path: str = "") -> str:
    """A reason without names of fields, and without the file that stands beside it already."""
    file = path.rpartition(":")[0] if path.rpartition(":")[2].isdigit() else path
    parts = (_FIELD.sub(_kept, part, count=1) for part in reason.split("; "))
    here = f"{file}: "
    return "; ".join(dict.fromkeys(part.removeprefix(here) if file else part for part in parts))


def _flat(evidence: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in evidence.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        elif value not in (None, "", [], ()) and (name, value) != ("outcome", "ok"):
            yield f"{prefix}{name} {_shown(value)}".removeprefix("node.")


def _shown(value: Any) -> str:
    """A value as people write it; a record is its name, or all that it says."""
    if isinstance(value, list | tuple):
        return ", ".join(dict.fromkeys(map(_shown, value)))
    if isinstance(value, dict):
        if {"outcome", "reason", "value"} <= value.keys():
            return _shown(value["reason"] if value["value"] is None else value["value"])
        return _shown(value["name"]) if value.get("name") else " ".join(_flat(value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def element(subject: str) -> str:
    """``workload.pods[Worker].containers[trainer]`` as ``pod Worker, container trainer``."""
    return ", ".join(
        label if found.start() == 0 else f"{_singular(name)} {label}"
        for found in _SEGMENT.finditer(subject)
        for name, label in (found.groups(),)
        if label and not (name == "pods" and label.startswith("/"))  # the only one of its object
    )


_PLURALS: Final = (
    *(("ies", "y"), ("sses", "ss"), ("ches", "ch"), ("xes", "x")),
    *(("ss", "ss"), ("ous", "ous"), ("s", "")),
)
"""Ends of plurals, the more special ones first; words that only look like one keep theirs."""


def _singular(name: str) -> str:
    name = name.replace("_", " ")
    for plural_end, end in _PLURALS:
        if name.endswith(plural_end):
            return name.removesuffix(plural_end) + end
    return name


def fold(names: Iterable[str]) -> str:
    """Names of machines as Slurm writes them: ``gpu-[001-003,017]``."""
    numbered: dict[tuple[str, int], list[int]] = defaultdict(list)
    plain: list[str] = []
    for name in names:
        found = _NUMBERED.fullmatch(name)
        if found is None or len(found[2]) > 9:
            plain.append(name)
        else:
            numbered[found[1], len(found[2])].append(int(found[2]))
    for (head, width), numbers in numbered.items():
        words = ",".join(runs(sorted(numbers), width))
        plain.append(f"{head}{words}" if len(numbers) == 1 else f"{head}[{words}]")
    return ", ".join(sorted(plain))


def about(result: AuditResult) -> str:
    """The subject of an audit: ``412 nodes, 9 files with 18 workloads``."""
    kinds: dict[str, list[str]] = defaultdict(list)
    for asset in result.assets:
        kinds[asset.kind].append(asset.asset.partition(":")[2])
    if len(result.assets) == 1:
        kind, (name,) = next(iter(kinds.items()))
        return f"{NOUNS.get(kind, (kind, kind))[0]} {name}"
    said: list[str] = []
    for kind in sorted(kinds.keys() - {"cluster"}, key=list(NOUNS).index):
        words = plural(len(kinds[kind]), *NOUNS[kind])
        files = {name.partition("#")[0] for name in kinds[kind]}
        said.append(f"{plural(len(files), 'file')} with {words}" if kind == "workload" else words)
    return ", ".join(said)


def summary(result: AuditResult) -> str:
    """The numbers of an audit, in a sentence."""
    return "; ".join(_numbers(result))


def _numbers(result: AuditResult) -> Iterator[str]:
    if failed := result.of(State.FAIL):
        weights = Counter(one.severity_in_context for one in failed)
        by_weight = pairs((weights[one], one) for one in reversed(Severity) if weights[one])
        checks = plural(len({one.check for one in failed}), "check")
        yield f"{plural(len(failed), 'failure')} of {checks} ({by_weight})"
    if number := result.counts.get(State.UNKNOWN.value, 0):
        yield f"{plural(number, 'check')} unknown for lack of evidence"
    if waived := result.of(State.WAIVED):
        ends = {use.expires for use in result.waivers if use.expires and use.status == "applied"}
        until = f" until {min(ends)}" if ends else ""
        yield f"{len(waived)} waived{until}{' and later' if len(ends) > 1 else ''}"
    rest = result.counts.get(State.NOT_APPLICABLE.value, 0)
    others = f", {rest} {'does' if rest == 1 else 'do'} not apply" if rest else ""
    yield f"{plural(result.counts.get(State.PASS.value, 0), 'check')} passed{others}"


def compared(result: AuditResult) -> str:
    """The words about a baseline; empty without one."""
    use = result.baseline
    if use is None:
        return ""
    new = {one.fingerprint for one in result.of(State.FAIL, State.UNKNOWN) if not one.known}
    words = (
        f"Since {use.at:%Y-%m-%d %H:%M} UTC: {len(new)} new, {use.known} known, {use.gone} gone."
    )
    if use.new_only:
        words += " Only what is new counts for the exit code."
    if use.policy.digest != result.policy.digest:
        words += f" That audit was against another policy, {use.policy.id} {use.policy.version}."
    return words


def verdict(result: AuditResult) -> tuple[str, str]:
    """The word for an audit's exit code, and its meaning."""
    word, meaning = _VERDICTS[result.exit_code]
    judged = {state for state, number in result.counts.items() if number} - {"not-applicable"}
    if result.exit_code == ExitCode.INCOMPLETE and not judged:
        meaning = "nothing was judged: no check applies to what was given"
    elif result.exit_code == ExitCode.INCOMPLETE and judged == {"unknown"}:
        meaning = "nothing was judged: all that was asked is unknown"
    elif result.exit_code == ExitCode.INCOMPLETE and (n := sum(x.counts for x in result.ledger)):
        meaning = f"{plural(n, 'file')} not read that could have answered checks that count"
    return word, meaning


_VERDICTS: Final[Mapping[int, tuple[str, str]]] = {
    0: ("CLEAN", "clean under this policy"),
    1: ("FINDINGS", "a finding at or above the policy's host.fail_on"),
    3: ("INCOMPLETE", "more is unknown or not read than the policy allows"),
    4: ("NOT TO BE RELIED ON", "the facts cannot be relied on"),
}
