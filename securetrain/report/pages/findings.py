# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The answers of ``audit``: what is open, boundary by boundary, and every finding for machines.

What the baseline knew is left out where only what is new is asked for; a test of it is accepted.
A boundary is *failed* when a failure there weighs high or critical, *partial* when something
lighter failed or is waived, *unknown* when something was not decided, *checked* when every check
passed, and *not looked at* when there was none.
"""

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final

from securetrain.audit import (
    NOT_JUDGED,
    AuditResult,
    Check,
    Finding,
    LedgerRow,
    Refs,
    WaiverUse,
)
from securetrain.core.vocabulary import Boundary, Severity, State
from securetrain.report.document import (
    ASSETS,
    OPEN,
    ROOT,
    Case,
    Document,
    Each,
    Findings,
    Located,
    Place,
    Row,
    Rule,
    Section,
    Tile,
    facts,
    flat,
    notes,
    pairs,
    picked,
    plural,
    said,
    table,
)
from securetrain.report.graph import graphs
from securetrain.report.pages.groups import (
    NODE,
    Group,
    about,
    compared,
    element,
    is_left_out,
    path_of,
    sections,
    shared_causes,
    summary,
    tidy,
    verdict,
    why,
)
from securetrain.report.pages.groups import Section as Found
from securetrain.report.run.model import BoundaryState, BoundaryView

KNOWN: Final = "known by the baseline"
MAX_FIRST: Final = 5
MAX_REASONS: Final = 5
MAX_UNREAD: Final = 50
NAMED: Final = "checkpoints and data"
NONE_NAMED: Final = "none was named: --checkpoint, --dataset or --job"
_SERIOUS: Final = Severity.HIGH
NOT_SEEN: Final[Mapping[str, str]] = {
    NODE: "hosts (--node, --facts DIR)",
    "cluster": "manifests, launch scripts and exports (-f)",
    "slurm": "Slurm (--slurm)",
    "run": "the nodes and ranks of a run (--run)",
}
"""What no option asked for, by the kind of its assets."""
NEVER_SEEN: Final = (
    "what switches and firewalls between machines let through",
    "what travels on the network ('securetrain run --require' decides whether it is encrypted)",
    "what a TPM says (verified when a node joins a job)",
    f"{', '.join(sorted(NOT_JUDGED))} (--explain ID says why)",
)
"""What this audit does not look at; shown so that a clean one is not overread."""


def findings(result: AuditResult, checks: Sequence[Check], unknown_skips: set[str]) -> Document:
    """The outcome of an audit.

    Args:
        result: It.
        checks: The catalogue, for what a check says besides its findings.
        unknown_skips: What the policy skips though there is no such check.
    """
    found = sections(result)
    rationale = {check.id: flat(check.spec.rationale) for check in checks}
    views = tuple(_boundary(name, found) for name in Boundary)
    word, meaning = verdict(result)
    return Document(
        verb="audit",
        word=word,
        about=about(result),
        sentence=f"Exit code {result.exit_code}: {meaning}",
        tally=result.counts,
        sections=[
            facts(_head(result, found)),
            notes(result.notes),
            _picture(views),
            *(_section(one, rationale) for one in found),
            *_tail(result, found, unknown_skips),
        ],
        findings=_findings(result, rationale),
        data=result.pieces,
        code=result.exit_code,
        tiles=tuple(_tiles(result)),
    )


def catalogue(checks: tuple[Check, ...]) -> Document:
    """All checks, without an audit."""
    each = {one.id: one.spec for one in reversed(checks)}
    told = "id title severity boundary remediation evidence threats"
    data = [picked(each[name], told) for name in sorted(each)]
    rows = [(one["id"], one["severity"], one["boundary"], one["title"]) for one in data]
    named = ("check", "severity", "boundary", "what it finds")
    return Document(sections=[table(named, rows)], data=data)


# --- for people ----------------------------------------------------------------------------------


def _head(result: AuditResult, found: Sequence[Found]) -> Iterator[tuple[str, str]]:
    policy = result.policy
    yield "policy", f"{policy.id} {policy.version} ({policy.digest[:12]})"
    oldest = min((asset.collected_at for asset in result.assets), default=result.at)
    later = " and later" if len(result.assets) > 1 else ""
    if result.at.replace(microsecond=0) > oldest:
        yield "facts of", f"{oldest:%Y-%m-%d %H:%M} UTC{later}"
    yield "found", summary(result)
    yield "baseline", compared(result)
    failed = [group for one in found for group in one.groups if group.state is State.FAIL]
    worst = sorted(failed, key=lambda g: (-g.severity.rank, g.who != "you", g.first.check))
    named = [f"{group.first.check} ({group.severity})" for group in worst[:MAX_FIRST]]
    yield "fix first", ", ".join(dict.fromkeys(named))


def _section(found: Found, rationale: Mapping[str, str]) -> Section:
    """One boundary: what is open, unknown checks below the cause that they share, what passed."""
    causes = shared_causes(found.groups)
    shared = {id(group) for cause in causes for group, _ in cause.groups}
    rows = [_row(group, rationale) for group in found.groups if id(group) not in shared]
    for cause in causes:
        checks = []
        for group, missing in cause.groups:
            told = f"{group.first.check} {group.severity} {group.first.title}"
            checks.append(f"{told} ({missing})" if missing else told)
        text = f"{cause.reason} ({len(checks)} checks)"
        rows.append(Row(state="unknown", text=text, detail=tuple(checks), most=len(checks)))
    passed = [(State.PASS, one, f"not found: {one.title}") for one in found.passed]
    passed += [(State.NOT_APPLICABLE, one, one.title) for one in found.not_applicable]
    for state, one, text in passed:
        rows.append(Row(state=state, name=one.check, label=one.severity.value, text=text))
    return Section(title=found.boundary.value, rows=rows)


def _row(group: Group, rationale: Mapping[str, str]) -> Row:
    """A check in one state, and every place of it."""
    first = group.first
    places = [_words(place, group) for place in group.places]
    names = sorted({one.waiver for place in group.places for one in place.findings if one.waiver})
    source = f"{group.severity}, not {first.severity}: {first.context}" if first.context else ""
    refs = [*_tags(first.refs), *first.refs.other]
    return Row(
        state=group.state,
        name=first.check,
        label=group.severity,
        text=first.title
        + (f" ({group.count})" if group.count else "")
        + (" [known]" if group.known else ""),
        source=f"waived by {', '.join(names)}" if group.state is State.WAIVED else source,
        detail=tuple(filter(None, dict.fromkeys(places))),
        fix=f"({group.who}) {flat(first.remediation)}" if group.state is State.FAIL else "",
        about=" ".join([rationale.get(first.check, ""), ", ".join(refs)]).strip(),
    )


def _words(place: Any, group: Group) -> str:
    """A place with what was found there; what stands in the place already is not told twice."""
    reason = "" if place.why == group.first.title else place.why
    label = place.what.rpartition(" ")[2]
    told = reason.startswith(label) or label in place.path
    what = "" if label and "," not in place.what and told else place.what
    return ": ".join(filter(None, (", ".join(filter(None, (place.where, what))), reason)))


def _tail(
    result: AuditResult, found: Sequence[Found], unknown_skips: set[str]
) -> Iterator[Section]:
    waivers = [_waiver(use, result) for use in result.waivers]
    yield Section(title="waivers" if waivers else "", rows=waivers)
    yield from _ledger(result)
    kinds = {asset.kind for asset in result.assets}
    kinds |= {"cluster"} if kinds & {"workload", "launch", "storage"} else set()
    missing = [words for kind, words in NOT_SEEN.items() if kind not in kinds]
    rows = [
        (one.asset, one.title, f"{one.collected_at:%Y-%m-%d %H:%M:%S}", one.digest)
        for one in result.assets
    ]
    columns = ("asset", "", "facts of (UTC)", "SHA-256 of the facts")
    yield table(columns, rows, title="assets", page_only=True)
    yield said(*missing, *NEVER_SEEN, title="not looked at")
    passed = pairs((one.boundary, len(one.passed)) for one in found if one.passed)
    yield facts(
        [
            ("passed", f"everywhere: {passed} (-v lists them)" if passed else ""),
            ("skipped", f"by the policy: {', '.join(result.skipped)}" if result.skipped else ""),
        ]
    )
    yield notes(_remarks(result, unknown_skips))


def _ledger(result: AuditResult) -> Iterator[Section]:
    """The ledger of all that was given: what is open, the sums, and every row."""
    opened = [_unread_row(one) for one in result.ledger if one.entry.why]
    yield Section(title="not read" if opened else "", rows=opened, most=MAX_UNREAD)
    none = {NAMED: f" ({NONE_NAMED})"}
    sums = [
        (one.what, f"{one}{'' if one.of else none.get(one.what, '')}") for one in result.coverage
    ]
    yield facts(sums, title="coverage" if sums else "")
    rows = [
        (one.entry.unit, path_of(one.entry.at), one.entry.end, one.entry.count, _why(one))
        for one in result.ledger
    ]
    columns = ("unit", "place", "end", "how many", "why")
    yield table(columns, rows, title="ledger", page_only=True)


def _unread_row(one: LedgerRow) -> Row:
    """A row of the ledger: open where it was not understood and is in scope."""
    entry = one.entry
    is_open = one.not_understood and not one.scope
    times = f" ({entry.count})" if entry.count > 1 else ""
    return Row(
        state="unknown" if is_open else "waived" if one.scope else "not-applicable",
        name=entry.unit,
        label=one.severity.value if one.severity is not None and is_open else "",
        text=f"{path_of(entry.at)}{times}: {_why(one)}",
        fix=entry.help if is_open else "",
    )


def _why(one: LedgerRow) -> str:
    return "; ".join(filter(None, (one.entry.why, one.scope)))


def _remarks(result: AuditResult, unknown_skips: set[str]) -> Iterator[str]:
    if unknown_skips:
        yield f"host.skip_checks names no such check: {', '.join(sorted(unknown_skips))}"
    if result.of(State.UNKNOWN):
        here = any(asset.kind == NODE for asset in result.assets) and os.geteuid() != 0
        more = " Root can read more of a host." if here else ""
        yield f"Missing evidence is unknown, never a pass.{more}"
    tier = [f for f in result.findings if f.check == "ST-HST-015" and f.state is State.FAIL]
    if tier and len(result.assets) == 1:
        # the check that no laptop can pass
        asked = f"{result.policy.id} asks for nodes of tier {tier[0].evidence.get('min_tier', '')}"
        yield f"What this machine cannot pass: policy {asked} or better, and {_NO_DEVICE}"


_NO_DEVICE: Final = (
    "this machine has no device that could prove it. Develop under --policy dev, where its evidence"
    " is labelled UNATTESTED."
)


def _waiver(use: WaiverUse, result: AuditResult) -> Row:
    words = [use.reason] if use.reason else []
    if use.expires is not None:
        days = (use.expires - result.at.date()).days
        words.insert(0, f"until {use.expires} ({days} days left)")
    return Row(state=use.status.value, name=use.id, label=use.check, text="; ".join(words))


# --- the boundaries on a page --------------------------------------------------------------------


def _picture(views: tuple[BoundaryView, ...]) -> Section:
    unseen = {BoundaryState.NOT_CROSSED: "not looked at"}
    rows = []
    for one in views:
        state, why = unseen.get(one.state, one.state), "; ".join(one.reasons) or "nothing"
        rows.append((one.boundary, state, one.num_allowed, one.num_refused, why))
    return graphs.boundary_table(
        views,
        ("boundary", "state", "checks passed", "checks failed", "open"),
        rows,
        lead="Every place where a training job takes something from somebody else, and what the"
        " audit found there before a job runs.",
        page_only=True,
    )


def _boundary(boundary: Boundary, found: Sequence[Found]) -> BoundaryView:
    here = next((one for one in found if one.boundary is boundary), None)
    groups, passed = (here.groups, here.passed) if here is not None else ((), ())
    failed = [group for group in groups if group.state is State.FAIL]
    undecided = [group for group in groups if group.state is State.UNKNOWN]
    state, label = BoundaryState.NOT_CROSSED, "does not apply" if here else "not looked at"
    if failed:
        worst = max(group.severity for group in failed)
        label = f"{plural(len(failed), 'failure')}, {worst}"
        state = BoundaryState.FAILED if worst >= _SERIOUS else BoundaryState.PARTIAL
    elif groups:
        waived = len(groups) > len(undecided)
        state = BoundaryState.PARTIAL if waived else BoundaryState.UNKNOWN
        label = f"{len(undecided)} unknown" if undecided else f"{len(groups)} waived"
    elif passed:
        state, label = BoundaryState.CHECKED, f"{plural(len(passed), 'check')} passed"
    reasons = [
        f"{group.first.check} {group.state} ({group.severity}): {group.first.title}"
        for group in groups
    ]
    more = len(reasons) - MAX_REASONS
    return BoundaryView(
        boundary=boundary,
        state=state,
        label=label,
        reasons=(*reasons[:MAX_REASONS], *([f"and {more} more"] if more > 0 else [])),
        num_allowed=len(passed),
        num_refused=len({group.first.check for group in failed}),
    )


def _tiles(result: AuditResult) -> Iterator[Tile]:
    failed, counts = result.of(State.FAIL), result.counts
    serious = [one for one in failed if one.severity_in_context >= _SERIOUS]
    critical = sum(one.severity_in_context is Severity.CRITICAL for one in serious)
    high = f"{critical} critical, {len(serious) - critical} high"
    rest = f"{counts.get(State.NOT_APPLICABLE.value, 0)} do not apply"
    unknown, passed = (counts.get(state.value, 0) for state in (State.UNKNOWN, State.PASS))
    tiles = [
        ("Critical and high", len(serious), high, "bad", "good"),
        ("Other failures", len(failed) - len(serious), "medium, low and info", "warn", "good"),
        ("Unknown", unknown, "checks without evidence", "warn", "good"),
        ("Waived", len(result.of(State.WAIVED)), "accepted for a while", "warn", "plain"),
        ("Passed", passed, rest, "plain", "plain"),
    ]
    if (baseline := result.baseline) is not None:
        new = sum(not one.known for one in result.of(State.FAIL, State.UNKNOWN))
        tiles.append(("New", new, f"{baseline.known} known, {baseline.gone} gone", "bad", "good"))
    yield from (Tile.of(*tile) for tile in tiles)


# --- for machines --------------------------------------------------------------------------------


def _findings(result: AuditResult, rationale: Mapping[str, str]) -> Findings:
    """A rule for each check, a problem for each finding, a test for each check and asset."""
    titles = {one.asset: one.title for one in result.assets}
    rules: dict[str, Rule] = {}
    for one in result.of(*OPEN):
        if one.check not in rules:
            # A finding about a waiver has no check and speaks for itself.
            tags = (one.boundary.value, *_external(one.refs))
            told = picked(one, "title severity", fix=flat(one.remediation), tags=tags)
            rules[one.check] = Rule(id=one.check, why=rationale.get(one.check, ""), **told)
    unread = tuple(_not_understood(one) for one in result.ledger if one.not_understood)
    cases = [
        Case(name=f"{one.at.file}: {one.what}", group="ledger", problems=(one,)) for one in unread
    ]
    return Findings(
        unread=unread,
        root=about(result),
        problems=Each(
            lambda: (
                _located(one, result, titles)
                for one in result.of(*OPEN)
                if not is_left_out(one, result)
            )
        ),
        rules=rules,
        notices=result.problems,
        tests=Each(lambda: chain(cases, _tests(result, titles))),
    )


def _tests(result: AuditResult, titles: Mapping[str, str]) -> Iterator[Case]:
    pairs: dict[tuple[str, str, str], list[Finding]] = defaultdict(list)
    for one in result.findings:
        pairs[one.boundary.value, one.check, one.asset].append(one)
    for (boundary, check, asset), found in pairs.items():
        yield Case(
            name=f"{check} {asset}".rstrip() + f": {found[0].title}",
            group=boundary,
            problems=tuple(_located(one, result, titles) for one in found if one.state in OPEN),
            not_applicable=all(one.state is State.NOT_APPLICABLE for one in found),
        )


def _tags(refs: Refs) -> tuple[str, ...]:
    """References as people know them."""
    return (
        *(f"CWE-{number}" for number in refs.cwe),
        *(f"ATLAS {name.partition('@')[0]}" for name in refs.atlas),
        *(f"NIST 800-53 {name}" for name in refs.nist),
        *refs.cve,
    )


def _external(refs: Refs) -> Iterator[str]:
    """References as code-scanning services group by them."""
    yield from (f"external/cwe/cwe-{number:03d}" for number in refs.cwe)
    yield from (f"external/atlas/{name}" for name in refs.atlas)
    yield from (f"external/nist-800-53/{name}" for name in refs.nist)
    yield from refs.cve


def _located(finding: Finding, result: AuditResult, titles: Mapping[str, str]) -> Located:
    """A finding where it is."""
    accepted = KNOWN if is_left_out(finding, result) else ""
    if finding.state is State.WAIVED:
        ends = [use.expires for use in result.waivers if use.id == finding.waiver and use.expires]
        accepted = f"waiver {finding.waiver}" + (f" until {ends[-1]}" if ends else "")
    return Located(
        code=finding.check,
        what=_message(finding, titles),
        fix=flat(finding.remediation),
        at=_place(finding.asset, finding.location, finding.subject),
        severity=finding.severity_in_context,
        undecided=finding.state is State.UNKNOWN,
        accepted=accepted,
        fingerprint=finding.fingerprint,
    )


def _not_understood(one: LedgerRow) -> Located:
    """An open entry of the ledger where it is."""
    return Located(
        code=f"{one.entry.unit}-not-understood",
        what=f"Not read: {one.entry.unit}: {one.entry.why}",
        fix=one.entry.help,
        at=_place(one.asset, one.entry.at),
        severity=one.severity,
        undecided=True,
        accepted=one.scope,
    )


def _message(finding: Finding, titles: Mapping[str, str]) -> str:
    """A sentence that stands by itself: code-scanning services show nothing else of it."""
    kind, _, name = finding.asset.partition(":")
    owner = titles.get(finding.asset, "") or (f"node {name}" if kind == NODE else name)
    whom = ", ".join(filter(None, (owner, element(finding.subject))))
    said = [f"{finding.title}." if finding.state is State.FAIL else f"Unknown: {finding.title}."]
    if detail := ": ".join(filter(None, (whom, tidy(why(finding))))):
        said.append(f"{detail}.")
    if finding.context:
        said.append(f"{finding.severity_in_context}, not {finding.severity}: {finding.context}")
    return " ".join(said)


def _place(asset: str, here: Any, subject: str | None = None) -> Place:
    """File, line and base: files of a node stand below the node, others where they are.

    What was read from no file stands on the first line of its asset, because code-scanning services
    take no result without a place.
    """
    kind, _, name = asset.partition(":")
    path, base = f"{kind}/{name}", ASSETS
    if kind == NODE:
        path += f"/{here.path.lstrip('/')}" if here is not None else ""
    elif here is not None:
        path, base = here.path, ROOT
    elif not asset:
        path = subject or ""
    return Place(
        file=path,
        base=base,
        line=max(here.line, 1) if here is not None else 1,
        column=here.column if here is not None else 0,
        subject=f"{asset}/{subject}".lstrip("/") if subject is not None else "",
        subject_kind="element",
        written=_place(asset, here.written) if here is not None and here.written else None,
    )
