# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Every gate: its name, what it says to do, and the function that finds faults."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from tools.gates.rules import (
    budgets,
    builders,
    commits,
    concepts,
    faces,
    modules,
    pages,
    safety,
    signatures,
    text,
    words,
)
from tools.gates.tree import Tree
from tools.gates.violations import Fault


@dataclass(frozen=True, slots=True)
class Gate:
    """One gate."""

    name: str
    check: Callable[[Tree], Iterable[Fault]]
    do: str
    listed: bool = True
    """False where a violation can never be listed: it is mended at once."""


GATES: Final = (
    Gate(
        "lone-module",
        modules.lone,
        "move it into the module that imports it, or give it a second reader",
    ),
    Gate(
        "full-folder",
        modules.folders,
        "nest by noun: a folder has at most 15 files; put what is new into one that is there",
    ),
    Gate(
        "parameters",
        signatures.parameters,
        "at most 8: put those that travel together into a frozen dataclass, or split the function",
    ),
    Gate(
        "fields",
        signatures.fields,
        "at most 12: name the parts, each a frozen dataclass of its own",
    ),
    Gate(
        "wide-face",
        faces.wide,
        "at most 60 names: take off what one other room takes, and put it behind a function",
    ),
    Gate(
        "face-example",
        faces.examples,
        "show in the package's docstring how it is used, with >>> or an indented block",
    ),
    Gate(
        "face-pinned",
        faces.pinned,
        "decide on it: change the stub, or tests/faces.json with a reason in the commit",
        listed=False,
    ),
    Gate(
        "face-read",
        faces.unread,
        "take it off the stub and tests/faces.json, or list it there under for_programs",
        listed=False,
    ),
    Gate("one-of-each", concepts.second_ones, "unify before you add (tools/gates/concepts.toml)"),
    Gate(
        "words",
        words.private,
        "name it with the trade's word; a word of a field comes to docs/explanation/vocabulary.md",
    ),
    Gate(
        "budget",
        budgets.over,
        "cut elsewhere in the room; raise tools/gates/budgets.json only with a reason, in the same"
        " commit (tools/gates/rules/budgets.py says how)",
        listed=False,
    ),
    Gate(
        "tests-longer",
        budgets.tests,
        "tests have at most as many code lines as their room: make cases rows of a table, and"
        " builders fixtures of worlds.py",
    ),
    Gate(
        "builders",
        builders.strays,
        "put what several test files share into the worlds.py of their folder",
    ),
    Gate("unpickler", safety.unpicklers, "nothing of ours unpickles", listed=False),
    Gate("dangerous-call", safety.dangerous_calls, "parse, and run nothing", listed=False),
    Gate(
        "by-path",
        safety.by_path,
        "use the methods of a path below RunDir.root, or core.files (tools/gates/rules/safety.py)",
        listed=False,
    ),
    Gate(
        "pure", safety.impure, "pass in what it needs (tools/gates/rules/purity.py)", listed=False
    ),
    Gate(
        "header",
        text.headers,
        "begin with the two SPDX lines, in ASCII",
        listed=False,
    ),
    Gate(
        "docstring",
        text.docstrings,
        "open with an imperative or a noun: 'Return whether ...', 'The policy.'",
        listed=False,
    ),
    Gate("code", text.codes, "give it a row (docs/contributing/refusal-code.md)", listed=False),
    Gate("recipe", pages.blocks, "change the page to fit the code", listed=False),
    Gate("commit", commits.messages, "reword it, before it is pushed: git commit --amend"),
    Gate("where", pages.paths, "name the path that answers the question now", listed=False),
    Gate("count", pages.counts, "say it in words, or let a tool write the page", listed=False),
)
