# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""An audit as one HTML page that needs nothing else; the rules are those of ``html``.

A boundary is *failed* when a failure there weighs high or critical, *partial* when something
lighter failed or is waived, *unknown* when something was not decided, *checked* when every check
passed, and *not looked at* when there was none.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from securetrain import __version__
from securetrain.audit import AuditResult, Check, WaiverUse
from securetrain.core.vocabulary import Boundary, Severity, State
from securetrain.report import picture
from securetrain.report.document import plural
from securetrain.report.finding_groups import (
    Group,
    Section,
    about,
    compared,
    meaning,
    sections,
    summary,
)
from securetrain.report.findings_text import NEVER_SEEN
from securetrain.report.model import BoundaryState, BoundaryView
from securetrain.report.templating import rendered

TEMPLATE: Final = "audit.html.j2"
MAX_PLACES: Final = 500
MAX_REASONS: Final = 5
_SERIOUS: Final = Severity.HIGH
_ORDER: Final = (State.FAIL, State.UNKNOWN, State.WAIVED)


def page(result: AuditResult, checks: Sequence[Check]) -> str:
    """The page."""
    found = sections(result)
    groups = sorted(
        (group for section in found for group in section.groups),
        key=lambda g: (_ORDER.index(g.state), -g.severity.rank, g.first.check),
    )
    views = _boundaries(found)
    rationale = {check.id: " ".join(check.spec.rationale.split()) for check in checks}
    return rendered(
        TEMPLATE,
        result=result,
        version=__version__,
        heading=f"securetrain audit: {about(result)}",
        about=about(result),
        meaning=meaning(result),
        summary=summary(result),
        compared=compared(result),
        picture=picture.draw(views, ()),
        badge=(picture.BADGE_WIDTH, picture.BADGE_HEIGHT),
        size=(picture.WIDTH, picture.HEIGHT),
        views=views,
        tiles=_tiles(result),
        groups=groups,
        sections=found,
        rationale=rationale,
        references={group.first.check: _references(group) for group in groups},
        max_places=MAX_PLACES,
        days_left={use.id: _days_left(use, result) for use in result.waivers},
        not_seen=NEVER_SEEN,
    )


def _boundaries(found: Sequence[Section]) -> tuple[BoundaryView, ...]:
    by_name = {section.boundary: section for section in found}
    return tuple(_boundary(boundary, by_name.get(boundary)) for boundary in Boundary)


def _boundary(boundary: Boundary, section: Section | None) -> BoundaryView:
    if section is None:
        return BoundaryView(
            boundary=boundary, state=BoundaryState.NOT_CROSSED, label="not looked at", reasons=()
        )
    failed = [group for group in section.groups if group.state is State.FAIL]
    undecided = [group for group in section.groups if group.state is State.UNKNOWN]
    serious = any(group.severity >= _SERIOUS for group in failed)
    if serious:
        state = BoundaryState.FAILED
    elif failed or len(section.groups) > len(undecided):
        state = BoundaryState.PARTIAL
    elif undecided:
        state = BoundaryState.UNKNOWN
    elif section.passed:
        state = BoundaryState.CHECKED
    else:
        state = BoundaryState.NOT_CROSSED
    reasons = [
        f"{group.first.check} {group.state} ({group.severity}): {group.first.title}"
        for group in section.groups
    ]
    more = len(reasons) - MAX_REASONS
    return BoundaryView(
        boundary=boundary,
        state=state,
        label=_label(section, failed, undecided),
        reasons=(*reasons[:MAX_REASONS], *([f"and {more} more"] if more > 0 else [])),
        num_allowed=len(section.passed),
        num_refused=len({group.first.check for group in failed}),
    )


def _label(section: Section, failed: Sequence[Group], undecided: Sequence[Group]) -> str:
    """The few words on the picture."""
    if failed:
        worst = max(group.severity for group in failed)
        return f"{plural(len(failed), 'failure')}, {worst}"
    if undecided:
        return f"{len(undecided)} unknown"
    if section.groups:
        return f"{len(section.groups)} waived"
    return f"{plural(len(section.passed), 'check')} passed" if section.passed else "does not apply"


def _tiles(result: AuditResult) -> list[dict[str, str]]:
    failed = result.of(State.FAIL)
    serious = [one for one in failed if one.severity_in_context >= _SERIOUS]
    weights = Counter(one.severity_in_context for one in failed)
    counts: Mapping[str, int] = result.counts
    unknown, waived = counts.get(State.UNKNOWN.value, 0), len(result.of(State.WAIVED))
    rest = len(failed) - len(serious)
    tiles = [
        _tile(
            "Critical and high",
            len(serious),
            f"{weights[Severity.CRITICAL]} critical, {weights[Severity.HIGH]} high",
            "bad" if serious else "good",
        ),
        _tile("Other failures", rest, "medium, low and info", "warn" if rest else "good"),
        _tile("Unknown", unknown, "checks without evidence", "warn" if unknown else "good"),
        _tile("Waived", waived, "accepted for a while", "warn" if waived else "plain"),
        _tile(
            "Passed",
            counts.get(State.PASS.value, 0),
            f"{counts.get(State.NOT_APPLICABLE.value, 0)} do not apply",
            "plain",
        ),
    ]
    if result.baseline is not None:
        new = sum(not one.known for one in result.of(State.FAIL, State.UNKNOWN))
        note = f"{result.baseline.known} known, {result.baseline.gone} gone"
        tiles.append(_tile("New", new, note, "bad" if new else "good"))
    return tiles


def _tile(name: str, value: int, note: str, state: str) -> dict[str, Any]:
    return {"name": name, "value": value, "note": note, "state": state}


def _references(group: Group) -> str:
    refs = group.first.refs
    said = [
        *(f"CWE-{number}" for number in refs.cwe),
        *(f"ATLAS {name.partition('@')[0]}" for name in refs.atlas),
        *(f"NIST 800-53 {name}" for name in refs.nist),
        *refs.cve,
        *refs.other,
    ]
    return ", ".join(said)


def _days_left(use: WaiverUse, result: AuditResult) -> int | None:
    return None if use.expires is None else (use.expires - result.at.date()).days
