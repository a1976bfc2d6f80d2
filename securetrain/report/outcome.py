# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The findings of `verify`, `scan` and `audit`, in the one shape behind the machine formats."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from securetrain.core import CODES
from securetrain.core.vocabulary import Severity

ROOT: Final = "ROOT"
"""The base of names of files: what was verified, or the directory that an audit started in."""
ASSETS: Final = "ASSETS"
"""The base of names below an asset of an audit: a node, and the files on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """The meaning of a code."""

    id: str
    title: str
    fix: str
    severity: Severity
    why: str = ""
    tags: tuple[str, ...] = ()
    exit_code: int | None = None


def rule_of(code: str) -> Rule:
    """The rule of a refusal's code."""
    row = CODES[code]
    return Rule(
        id=code, title=row.title, fix=row.fix, severity=row.severity, exit_code=int(row.exit)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Located:
    """A problem and where it is."""

    code: str
    what: str
    fix: str
    file: str = ""
    """Name below the base, with forward slashes, or an absolute path; empty for the whole."""
    base: str = ROOT
    line: int = 0
    """From 1; 0 is not known."""
    column: int = 0
    offset: int | None = None
    length: int | None = None
    subject: str = ""
    """The tensors that lie there, the value of the state dict, or the element of an asset."""
    subject_kind: str = "variable"
    severity: Severity | None = None
    """What it weighs there; None for the rule's own."""
    undecided: bool = False
    """Evidence was missing: neither good nor bad."""
    accepted: str = ""
    """Why somebody accepts it."""
    fingerprint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One thing that was checked, as a test."""

    name: str
    group: str = ""
    problems: tuple[Located, ...] = ()
    not_applicable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The findings of one command about one directory, file or cluster."""

    verb: str
    root: str
    exit_code: int
    problems: tuple[Located, ...]
    checked: tuple[str, ...] = ()
    """What was checked, whatever came out: files, and parts of the check that are no file."""
    rules: Mapping[str, Rule] = field(default_factory=dict)
    """Rules that are no code of a refusal."""
    notices: tuple[str, ...] = ()
    """Why the whole cannot be relied on."""
    tests: tuple[Case, ...] | None = None
    """Where a test is not a file."""

    def rule(self, code: str) -> Rule:
        """The rule of a problem."""
        return self.rules.get(code) or rule_of(code)

    @property
    def cases(self) -> tuple[Case, ...]:
        """The tests: what was checked, and the whole where a problem is about no file."""
        if self.tests is not None:
            return self.tests
        by_file: dict[str, list[Located]] = {name: [] for name in self.checked}
        for problem in self.problems:
            by_file.setdefault(problem.file, []).append(problem)
        return tuple(
            Case(name=name, problems=tuple(problems)) for name, problems in by_file.items()
        )
