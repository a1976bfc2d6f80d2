# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""An audit on a terminal: what is open, boundary by boundary, each with its place and its fix.

Rules: lines are fitted to the terminal, from 60 columns on; names are made printable; what is left
out for its length is counted, and ``--all`` leaves out nothing.
"""

import os
import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import click

from securetrain.audit import NOT_JUDGED, AuditResult
from securetrain.core import printable
from securetrain.core.vocabulary import State
from securetrain.report.finding_groups import (
    NODE,
    Cause,
    Group,
    Place,
    Section,
    about,
    compared,
    meaning,
    sections,
    shared_causes,
    summary,
)

MAX_PLACES: Final = 5
MAX_FIRST: Final = 5
_MIN_WIDTH: Final = 60
_MAX_WIDTH: Final = 140
_STATE: Final = 9
_CHECK: Final = 12
_SEVERITY: Final = 10
_INDENT: Final = 2 + _STATE
_STYLES: Final[Mapping[State, Mapping[str, Any]]] = {
    State.PASS: {"fg": "green"},
    State.FAIL: {"fg": "red", "bold": True},
    State.UNKNOWN: {"fg": "yellow", "bold": True},
    State.WAIVED: {"fg": "magenta"},
    State.NOT_APPLICABLE: {"dim": True},
}
_WORDS: Final[Mapping[State, str]] = {State.NOT_APPLICABLE: "n/a"}
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
"""What this audit does not look at; printed so that a clean one is not overread."""


class Page:
    """The lines of one audit."""

    def __init__(self, result: AuditResult, unknown_skips: set[str], *, everything: bool) -> None:
        self._result = result
        self._unknown_skips = unknown_skips
        self._all = everything
        columns = shutil.get_terminal_size().columns
        self._width = max(_MIN_WIDTH, min(columns, _MAX_WIDTH))

    def show(self) -> None:
        """Print it."""
        click.echo("\n".join(self.lines()))

    def lines(self) -> Iterator[str]:
        """All of it."""
        result = self._result
        yield from self._head()
        for problem in result.problems:
            text = f"The facts cannot be relied on: {problem}"
            yield from self._paragraph(text, 0, fg="red", bold=True)
        for note in result.notes:
            yield from self._paragraph(f"Note: {note}", 0, fg="yellow")
        found = sections(result)
        for section in found:
            yield from self._section(section)
        yield ""
        yield from self._passed(found)
        yield from self._tier()
        yield from self._waivers()
        yield from self._policy()
        yield from self._foot([group for section in found for group in section.groups])

    # --- the parts ---------------------------------------------------------------------------

    def _head(self) -> Iterator[str]:
        result = self._result
        policy = result.policy
        left = about(result)
        oldest = min((asset.collected_at for asset in result.assets), default=result.at)
        if result.at.replace(microsecond=0) > oldest:
            left += f", facts of {oldest:%Y-%m-%d %H:%M} UTC"
            left += " and later" if len(result.assets) > 1 else ""
        right = f"policy {policy.id} {policy.version} ({policy.digest[:12]})"
        gap = self._width - len(left) - len(right)
        if gap >= 2:
            yield _safe(left) + " " * gap + right
        else:
            yield from self._paragraph(left, 0)
            yield right

    def _section(self, section: Section) -> Iterator[str]:
        rest = [(State.PASS, one) for one in section.passed]
        rest += [(State.NOT_APPLICABLE, one) for one in section.not_applicable]
        if not section.groups and not (self._all and rest):
            return
        yield ""
        yield click.style(section.boundary.value, bold=True)
        causes = () if self._all else shared_causes(section.groups)
        shared = {id(group) for cause in causes for group, _ in cause.groups}
        for group in section.groups:
            if id(group) not in shared:
                yield from self._group(group)
        for cause in causes:
            yield from self._cause(cause)
        for state, one in rest if self._all else ():
            title = f"not found: {one.title}" if state is State.PASS else one.title
            yield from self._row(state, one.check, one.severity.value, title, "", dim=True)

    def _passed(self, found: Sequence[Section]) -> Iterator[str]:
        """Numbers of checks that passed: a clean boundary is not passed over in silence."""
        said = [f"{one.boundary} {len(one.passed)}" for one in found if one.passed]
        if said and not self._all:
            text = f"Checks that passed everywhere: {', '.join(said)} (--all lists them)"
            yield from self._paragraph(text, 0, hanging=2, fg="green")

    def _group(self, group: Group) -> Iterator[str]:
        first = group.first
        severity, count = group.severity.value, group.count
        yield from self._row(group.state, first.check, severity, first.title, count)
        if group.context:
            yield from self._paragraph(group.context, _INDENT, dim=True)
        places = group.places
        shown = places if self._all else places[:MAX_PLACES]
        yield from self._places(shown, group)
        if len(places) > len(shown):
            yield from self._paragraph(
                f"and {len(places) - len(shown)} more (--all)", _INDENT, dim=True
            )
        if group.state is State.FAIL:
            yield from self._paragraph(f"fix ({group.who}): {group.fix}", _INDENT)
        if group.state is State.WAIVED:
            names = sorted({one.waiver for place in places for one in place.findings})
            yield from self._paragraph(f"waived by {', '.join(names)}", _INDENT, dim=True)

    def _cause(self, cause: Cause) -> Iterator[str]:
        """A reason, and below it the checks that it keeps from being known."""
        count = f"{len(cause.groups)} checks"
        indent = " " * _INDENT
        room = self._width - _INDENT - len(count) - 2
        lines = textwrap.wrap(_safe(cause.reason), room, break_on_hyphens=False)
        word = click.style(State.UNKNOWN.value.ljust(_STATE), **_STYLES[State.UNKNOWN])
        yield f"  {word}{lines[0].ljust(room)}  {count}"
        yield from (indent + line for line in lines[1:])
        start = _INDENT + 2
        for group, missing in cause.groups:
            title = group.first.title + (f" ({missing})" if missing else "")
            head = group.first.check.ljust(_CHECK) + group.severity.value.ljust(_SEVERITY)
            room = self._width - start - len(head)
            for number, line in enumerate(textwrap.wrap(_safe(title), room)):
                yield " " * start + (head if number == 0 else " " * len(head)) + line

    def _row(
        self, state: State, check: str, severity: str, title: str, count: str, *, dim: bool = False
    ) -> Iterator[str]:
        """State, check, severity, what it is, and how much of it."""
        start = _INDENT + _CHECK + _SEVERITY
        room = self._width - start - (len(count) + 2 if count else 0)
        lines = textwrap.wrap(_safe(title), max(room, 20)) or [""]
        word = click.style(_WORDS.get(state, state.value).ljust(_STATE), **_STYLES[state])
        head = lines[0].ljust(room) + f"  {count}" if count else lines[0]
        shown = click.style(head, dim=True) if dim else head
        yield f"  {word}{check.ljust(_CHECK)}{severity.ljust(_SEVERITY)}{shown}"
        for line in lines[1:]:
            yield " " * start + (click.style(line, dim=True) if dim else line)

    def _places(self, places: Sequence[Place], group: Group) -> Iterator[str]:
        """Places: in columns where they fit, as sentences where they do not."""
        rows = [tuple(_safe(part) for part in self._cells(place, group)) for place in places]
        rows = [row for row in dict.fromkeys(rows) if any(row)]
        widths = [max((len(row[column]) for row in rows), default=0) for column in range(3)]
        gaps = 2 * sum(1 for width in widths if width)
        room = self._width - _INDENT - 2
        if sum(widths) + gaps <= room:
            for row in rows:
                cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
                line = "  ".join(cell for cell, width in zip(cells, widths, strict=True) if width)
                yield " " * (_INDENT + 2) + line.rstrip()
            return
        for place, what, why in rows:
            text = ": ".join(filter(None, ("  ".join(filter(None, (place, what))), why)))
            yield from self._paragraph(text, _INDENT + 2, hanging=2, break_long=True)

    def _cells(self, place: Place, group: Group) -> tuple[str, str, str]:
        reason = "" if place.why == group.first.title else place.why
        label = place.what.rpartition(" ")[2]
        said = reason.startswith(label) or label in place.path
        if label and "," not in place.what and said:
            return place.where if self._all else place.brief, "", reason
        return place.where if self._all else place.brief, place.what, reason

    def _tier(self) -> Iterator[str]:
        """The check that no laptop can pass, in a sentence."""
        result = self._result
        found = [f for f in result.findings if f.check == "ST-HST-015" and f.state is State.FAIL]
        if found and len(result.assets) == 1:
            yield from self._paragraph(
                f"What this machine cannot pass: policy {result.policy.id} asks for nodes of tier"
                f" {found[0].evidence.get('min_tier', '')} or better, and this machine has no"
                " device that could prove it. Develop under --policy dev, where its evidence is"
                " labelled UNATTESTED.",
                0,
            )

    def _waivers(self) -> Iterator[str]:
        for use in self._result.waivers:
            until = f", until {use.expires}" if use.expires else ""
            reason = f": {use.reason}" if use.reason else ""
            yield from self._paragraph(
                f"Waiver {use.id} for {use.check}{until}: {use.status.value}{reason}", 0, hanging=2
            )

    def _policy(self) -> Iterator[str]:
        if self._result.skipped:
            text = f"Skipped by the policy: {', '.join(self._result.skipped)}"
            yield from self._paragraph(text, 0, fg="yellow")
        if self._unknown_skips:
            text = f"host.skip_checks names no such check: {', '.join(sorted(self._unknown_skips))}"
            yield from self._paragraph(text, 0, fg="yellow")

    def _foot(self, groups: Sequence[Group]) -> Iterator[str]:
        result = self._result
        failed = [group for group in groups if group.state is State.FAIL]
        worst = sorted(failed, key=lambda g: (-g.severity.rank, g.who != "you", g.first.check))
        if worst:
            named = [f"{group.first.check} ({group.severity})" for group in worst[:MAX_FIRST]]
            text = f"Fix first: {', '.join(dict.fromkeys(named))}"
            yield from self._paragraph(text, 0, bold=True)
        if result.of(State.UNKNOWN):
            text = "Missing evidence is unknown, never a pass."
            here = any(asset.kind == NODE for asset in result.assets) and os.geteuid() != 0
            text += " Root can read more of a host." if here else ""
            yield from self._paragraph(text, 0)
        if words := compared(result):
            yield from self._paragraph(words, 0)
        yield from self._paragraph(summary(result), 0, bold=True)
        yield from self._coverage()
        words = f"Exit code {result.exit_code}: {meaning(result)}"
        yield from self._paragraph(words, 0)

    def _coverage(self) -> Iterator[str]:
        seen = [
            f"{one.what} {one.seen}/{one.of}"
            + (f" ({'; '.join(one.notes[:3])})" if one.notes else "")
            for one in self._result.coverage
        ]
        if seen:
            yield from self._paragraph(f"Coverage: {', '.join(seen)}", 0, hanging=2)
        kinds = {asset.kind for asset in self._result.assets}
        kinds |= {"cluster"} if kinds & {"workload", "launch", "storage"} else set()
        missing = [words for kind, words in NOT_SEEN.items() if kind not in kinds]
        text = f"Not looked at: {'; '.join((*missing, *NEVER_SEEN))}"
        yield from self._paragraph(text, 0, hanging=2, dim=True)

    def _paragraph(
        self, text: str, indent: int, *, hanging: int = 0, break_long: bool = False, **style: Any
    ) -> Iterator[str]:
        margin = " " * indent
        lines = textwrap.wrap(
            _safe(text),
            self._width,
            initial_indent=margin,
            subsequent_indent=margin + " " * hanging,
            break_long_words=break_long,
            break_on_hyphens=False,
        )
        for line in lines:
            yield click.style(line, **style) if style else line


def _safe(text: str) -> str:
    return printable(text, keep="")
