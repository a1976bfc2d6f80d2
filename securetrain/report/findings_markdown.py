# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""An audit as Markdown, for a comment on a pull request or the summary of a CI job.

Rules: what comes from the audited files is never markup: no tag, no link, no mention of somebody;
the page stays below the length that such comments take, and counts what it leaves out.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from securetrain.audit import AuditResult
from securetrain.core import printable
from securetrain.core.vocabulary import State
from securetrain.report.document import plural
from securetrain.report.finding_groups import Group, about, compared, meaning, sections, summary

MAX_CHARS: Final = 60_000
"""A comment on GitHub holds 65,536."""
MAX_PLACES: Final = 10
_SPECIAL: Final = frozenset("\\`*_[]<>|~&$:")
_REFERRING: Final = frozenset("@#")
"""Names of people and numbers of issues are looked for in the finished page: an entity would not
hide them, a space of no width does."""


def page(result: AuditResult) -> str:
    """The page."""
    groups = [group for section in sections(result) for group in section.groups]
    head = "\n".join(_head(result))
    foot = "\n".join(_foot(result))
    room = MAX_CHARS - len(head) - len(foot) - 200
    parts: list[str] = []
    for number, part in enumerate(_parts(groups)):
        room -= len(part) + 1
        if room < 0:
            left = len(groups) - number
            parts.append(f"\n{plural(left, 'more check')}: see the JSON of this audit.\n")
            break
        parts.append(part)
    return "\n".join([head, *parts, foot]) + "\n"


def _head(result: AuditResult) -> Iterator[str]:
    policy = result.policy
    verdict = {0: "clean", 1: "findings", 3: "incomplete", 4: "not to be relied on"}
    yield f"## securetrain audit: {verdict[result.exit_code]}"
    yield ""
    yield (
        f"{escaped(about(result))}, against policy {code(policy.id)} {escaped(policy.version)}"
        f" ({code(policy.digest[:12])})."
    )
    yield ""
    for problem in result.problems:
        yield f"**The facts cannot be relied on:** {escaped(problem)}\n"
    for note in result.notes:
        yield f"**Note:** {escaped(note)}\n"
    if words := compared(result):
        yield f"{escaped(words)}\n"
    yield f"{escaped(summary(result))}.\n"


def _parts(groups: Sequence[Group]) -> Iterator[str]:
    """A table's row for each group, failures with their places and fix below it."""
    order = (State.FAIL, State.UNKNOWN, State.WAIVED)
    ordered = sorted(
        groups, key=lambda g: (order.index(g.state), -g.severity.rank, g.first.boundary.value)
    )
    for group in ordered:
        yield "\n".join(_group(group))


def _group(group: Group) -> Iterator[str]:
    first = group.first
    count = f", {escaped(group.count)}" if group.count else ""
    label = "" if group.state is State.FAIL else f"{group.state}: "
    yield (
        f"<details><summary>{label}<b>{group.severity}</b> <code>{first.check}</code>"
        f" {escaped(first.title)}{count}</summary>\n"
    )
    if group.context:
        yield f"{escaped(group.context)}\n"
    places = group.places
    for one in places[:MAX_PLACES]:
        cells = [
            code(one.brief) if one.path or one.machines else "",
            escaped(one.what),
            escaped(one.why),
        ]
        yield f"- {': '.join(filter(None, cells)) or escaped(first.title)}"
    if len(places) > MAX_PLACES:
        yield f"- and {len(places) - MAX_PLACES} more"
    yield ""
    if group.state is State.FAIL:
        yield f"Fix ({group.who}): {escaped(group.fix)}\n"
    yield "</details>\n"


def _foot(result: AuditResult) -> Iterator[str]:
    for use in result.waivers:
        until = f", until {use.expires}" if use.expires else ""
        reason = f": {escaped(use.reason)}" if use.reason else ""
        yield f"Waiver {code(use.id)} for {code(use.check)}{until}: {use.status.value}{reason}\n"
    seen = [
        f"{escaped(one.what)} {one.seen}/{one.of}"
        + (f" ({escaped('; '.join(one.notes[:3]))})" if one.notes else "")
        for one in result.coverage
    ]
    if seen:
        yield f"Coverage: {', '.join(seen)}.\n"
    yield f"Exit code {result.exit_code}: {meaning(result)}."


def escaped(text: str) -> str:
    """Text that is only text."""
    safe = printable(text, keep="")
    return "".join(_spelled(char, first=number == 0) for number, char in enumerate(safe))


def _spelled(char: str, *, first: bool) -> str:
    if char in _REFERRING:
        return f"&#{ord(char)};&#8203;"
    if char in _SPECIAL or (first and not char.isalnum()):
        return f"&#{ord(char)};"
    return char


def code(text: str) -> str:
    """Text in a code span, where nobody looks for names."""
    entities = "".join(
        f"&#{ord(char)};" if char in _SPECIAL or char in _REFERRING else char
        for char in printable(text, keep="")
    )
    return f"<code>{entities}</code>"
