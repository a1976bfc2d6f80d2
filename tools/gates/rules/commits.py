# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Commit messages: ``area: what changed``, and a body with the reason.

They are judged from the commit that added this file on. Without git, in a shallow clone, and in a
source distribution there is nothing to judge: then that is said, since not seen is not clean.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tools.gates.history import History
from tools.gates.tree import Tree
from tools.gates.violations import Fault

MARKER: Final = "tools/gates/rules/commits.py"
SUBJECT: Final = 72
BODY: Final = 20
_AREA: Final = re.compile(r"[a-z0-9_./-]+(?:, ?[a-z0-9_./-]+)*: (?P<what>\S.*)")
_SUBJECT_FIRST: Final = frozenset({"a", "an", "the", "this", "there", "it", "every", "each", "all"})
_VERBS: Final = frozenset(
    {
        *("alias", "bias", "focus", "embed", "shed", "shred"),
        *("bring", "cling", "ping", "ring", "string", "swing"),
    }
)
"""Imperatives that look like another form."""
_PAST: Final = frozenset({"is", "was", "were", "are", "has", "had", "did", "made", "wrote", "took"})


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit's message."""

    name: str
    subject: str
    body: str


def messages(tree: Tree, marker: str = MARKER) -> Iterator[Fault]:
    """Commits since the marker whose messages are not in the form, each with all that it lacks."""
    for commit in since(History(tree.root), marker):
        if says := "; ".join(faults(commit)):
            yield Fault(commit.subject, f"{commit.name[:10]}: {says}")


def since(history: History, marker: str = MARKER) -> list[Commit]:
    """The commits from the one that added the marker on, without merges; empty when not seen."""
    added = history.lines("log", "--diff-filter=A", "--format=%H", "--", marker)
    if not added:
        return []
    text = history.text("log", "--no-merges", "--format=%H%x00%s%x00%b%x01", f"{added[-1]}..HEAD")
    found = []
    for one in text.split("\x01"):
        name, *rest = one.strip().split("\x00")
        if name:
            found.append(Commit(name, *rest))
    return found


def faults(commit: Commit) -> Iterator[str]:
    """What a message lacks."""
    if len(commit.subject) > SUBJECT:
        yield f"its subject has {len(commit.subject)} letters, more than {SUBJECT}"
    if len(commit.body.strip()) < BODY:
        yield "it has no body: say why, with the figures"
    match = _AREA.fullmatch(commit.subject)
    if match is None:
        yield "its subject is not `area: what changed`, with a room or folder in lower case"
    elif not is_imperative(match["what"]):
        yield f"its subject does not begin with an imperative: {match['what'].split()[0]!r}"


def is_imperative(what: str) -> bool:
    """Tell whether a subject may begin with an imperative: known other forms do not."""
    first = what.split(maxsplit=1)[0].lower().rstrip(",.:")
    if first in _VERBS:
        return True
    if first in _SUBJECT_FIRST | _PAST:
        return False
    third_or_past = re.compile(r".*(?:[^s]s|[^e]ed|ing)")  # pass and feed are imperatives
    return third_or_past.fullmatch(first) is None
