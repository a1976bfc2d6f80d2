# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The one answer of a command, as data. Pages make it; the renderers read nothing else.

Rules:

1. a document has a *verdict* (a word and what it is about), *counts*, and *sections* of rows; a row
   has a state, a name, a text, its source and its fix;
2. the exit code comes from `Document.exit_code` alone: what the judge below decided, or else what
   the states of the rows say;
3. *findings* are the same for machines: each problem at its place, each thing that was checked;
4. text is as it came: a renderer makes it printable.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby
from typing import Any, Final, TypeVar

from securetrain.core import CODES, ExitCode
from securetrain.core.vocabulary import Severity, State

T = TypeVar("T")

ROOT: Final = "ROOT"
"""The base of names of files: what was verified, or the directory that an audit started in."""
ASSETS: Final = "ASSETS"
"""The base of names below an asset of an audit: a node, and the files on it."""
_WORDS: Final[Mapping[str, str]] = {
    "good": "verified, clean, proven, logged, pass, yes, good, checked, fits, held, works, ok,"
    " valid, published, allow, applied, plausible, equal, same, removed, complete",
    "bad": "refused, not clean, findings, fail, failed, broken, error, barred, left, does not fit,"
    " revoked, critical, high, not to be relied on, refuse, does not work, expired, malformed,"
    " rejected, dangling, differs, violation, not signed",
    "warn": "incomplete, open, unknown, partial, waived, warning, missing, note, no, may not fit,"
    " unattested, in use, not verified, medium, not run, soon, not known",
    "none": "not-applicable, not asked, not recorded, not crossed, unused, observe, not looked at,"
    " does not apply, low, info, known, none",
}
_TONES: Final = {word: kind for kind, words in _WORDS.items() for word in words.split(", ")}
"""The colour of a state's word, wherever it is shown."""


OPEN: Final = (State.FAIL, State.UNKNOWN, State.WAIVED)
"""The states of a finding, the worst first."""
_PASSED: Final = (State.PASS, State.NOT_APPLICABLE)


def tone(word: str) -> str:
    """``good``, ``warn``, ``bad`` or ``none`` for a word of a state; ``plain`` for another."""
    return _TONES.get(word.lower().split(" (")[0], "plain")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of a section."""

    text: str = ""
    name: str = ""
    """What it is called: a fact, a code, a check."""
    state: str = ""
    label: str = ""
    """What it weighs or is worth, beside the name."""
    source: str = ""
    """Where it was found."""
    fix: str = ""
    detail: tuple[str, ...] = ()
    """Sentences below it; of many, the first few unless all are asked for."""
    about: str = ""
    """Why it matters, where there is room for it."""
    cells: tuple[str, ...] = ()
    """In a table: the columns."""
    depth: int = 0
    most: int = 5
    """Details that are shown unless all are asked for; the rest is counted."""
    anchor: str = ""

    @property
    def passed(self) -> bool:
        """True for what is shown only when everything is asked for."""
        return self.state in _PASSED

    @property
    def open(self) -> bool:
        """True for a finding: it failed, or is not decided, or is waived."""
        return self.state in OPEN


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Rows that belong under one heading."""

    title: str = ""
    label: str = ""
    """What everything below it is worth."""
    lead: str = ""
    rows: Sequence[Row] = ()
    columns: tuple[str, ...] = ()
    """Of a table."""
    most: int | None = None
    """Rows that are shown unless all are asked for; the rest is counted."""
    verbatim: bool = False
    """Lines to be copied: they are never wrapped."""
    figure: Callable[[], str] | None = None
    """Makes a drawing, where drawings can be shown: SVG that is safe to stand in a page."""
    empty: str = ""
    """What is said in place of no rows."""
    page_only: bool = False
    """Too much for a terminal: shown where there is room for it."""


@dataclass(frozen=True, slots=True)
class Tile:
    """A number at the top of a page."""

    name: str
    value: str
    note: str = ""
    tone: str = "plain"

    @classmethod
    def of(cls, name: str, number: int, note: str, some: str, none: str) -> "Tile":
        """A number with its tone where there are some, and where there are none."""
        return cls(name, str(number), note, some if number else none)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The place of a problem."""

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
    written: "Place | None" = None
    """Where the text that decides was written, if that is another place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Located:
    """A problem and where it is."""

    code: str
    what: str
    fix: str
    at: Place = Place()
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

    @property
    def state(self) -> State:
        """The worst of it: a failure, what is not decided, what is accepted."""
        found = {state_of(one) for one in self.problems}
        bare = State.NOT_APPLICABLE if self.not_applicable else State.PASS
        return next((state for state in OPEN if state in found), bare)


def state_of(problem: Located) -> State:
    """The state of a problem."""
    if problem.accepted:
        return State.WAIVED
    return State.UNKNOWN if problem.undecided else State.FAIL


@dataclass(frozen=True, slots=True)
class Each(Iterable[T]):
    """Things that are made whenever they are gone through: there may be too many to hold."""

    make: Callable[[], Iterator[T]]

    def __iter__(self) -> Iterator[T]:
        """Make them."""
        return self.make()


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """The findings, for machines."""

    root: str = ""
    """What was looked at, by name."""
    problems: Iterable[Located] = ()
    checked: tuple[str, ...] = ()
    """What was checked, whatever came out: files, and parts of the check that are no file."""
    rules: Mapping[str, Rule] = field(default_factory=dict)
    """Rules that are no code of a refusal."""
    unread: tuple[Located, ...] = ()
    """What was not understood, and so not checked."""
    notices: tuple[str, ...] = ()
    """Why the whole cannot be relied on."""
    tests: Iterable[Case] | None = None
    """Where a test is not a file."""

    def rule(self, code: str) -> Rule:
        """The rule of a problem: of its own, or of a refusal's code."""
        if code in self.rules:
            return self.rules[code]
        row = CODES[code]
        return Rule(id=code, exit_code=int(row.exit), **picked(row, "title fix severity"))

    @property
    def files(self) -> tuple[str, ...]:
        """The names of what was checked, and those that only a problem has; each once."""
        if self.tests is not None:
            return self.checked
        return tuple(dict.fromkeys([*self.checked, *(one.at.file for one in self.problems)]))

    @property
    def cases(self) -> Iterable[Case]:
        """The tests: what was checked, and the whole where a problem is about no file."""
        if self.tests is not None:
            return self.tests
        by_file: dict[str, list[Located]] = {name: [] for name in self.files}
        for problem in self.problems:
            by_file[problem.at.file].append(problem)
        return tuple(
            Case(name=name, problems=tuple(problems)) for name, problems in by_file.items()
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One answer."""

    verb: str = ""
    word: str = ""
    """The verdict, in a word; empty where there was nothing to judge."""
    about: str = ""
    """The subject of the verdict."""
    sentence: str = ""
    """What the verdict means."""
    sections: Sequence[Section] = ()
    findings: Findings | None = None
    tally: Mapping[str, int] = field(default_factory=dict)
    """How many of each state, where that is not counted by the findings."""
    data: Any = None
    """For ``json``: plain values, JSON that is written already, or a function for its pieces."""
    answer: str | None = None
    """What a script takes, alone on standard output; what is said about it stands apart then."""
    code: int | ExitCode | None = None
    """The exit code, where the judge below has decided it."""
    tiles: tuple[Tile, ...] = ()
    whole: bool = False
    """Nothing is left out of its text."""

    @property
    def counts(self) -> dict[str, int]:
        """The number of each state, the worst first."""
        cases = self.findings.cases if self.findings is not None else ()
        counted = self.tally or Counter(case.state.value for case in cases)
        names = dict.fromkeys([*(state.value for state in (*OPEN, *_PASSED)), *counted])
        return {name: counted[name] for name in names if counted.get(name)}

    @property
    def exit_code(self) -> int:
        """The code that the judge decided; else 1 where a row failed, and 3 where one is open."""
        if self.code is not None:
            return int(self.code)
        states = {row.state for section in self.sections for row in section.rows}
        if State.FAIL in states:
            return int(ExitCode.FAILURE)
        return int(ExitCode.INCOMPLETE if State.UNKNOWN in states else ExitCode.OK)


def open_rows(sections: Iterable[Section]) -> list[Row]:
    """The rows of all sections that failed or are not decided, the worst first."""
    weights = [severity.value for severity in reversed(Severity)]

    def weight(row: Row) -> tuple[int, int]:
        here = weights.index(row.label) if row.label in weights else len(weights)
        return OPEN.index(State(row.state)), here

    found = [row for section in sections for row in section.rows if row.open]
    return sorted(found, key=weight)


def facts(rows: Iterable[tuple[str, str]], title: str = "", **section: Any) -> Section:
    """Names and values; what has no value is left out. `section` are fields of it."""
    found = tuple(Row(name=name, text=value) for name, value in rows if value)
    return Section(title=title, rows=found, **section)


def said(*lines: str, title: str = "", **section: Any) -> Section:
    """Sentences."""
    return Section(title=title, rows=tuple(Row(text=line) for line in lines if line), **section)


def notes(lines: Iterable[str], state: str = "note", **section: Any) -> Section:
    """Remarks that must be seen."""
    return Section(rows=tuple(Row(state=state, text=line) for line in lines), **section)


def stated(rows: Iterable[tuple[str, str]], **section: Any) -> Section:
    """Texts, each beside its state."""
    return Section(rows=tuple(Row(state=state, text=text) for state, text in rows), **section)


def verbatim(*lines: str) -> Section:
    """Lines to be copied as they are."""
    return Section(rows=tuple(Row(text=line) for line in lines), verbatim=True)


def titled(rows: Iterable[tuple[str, Row]]) -> list[Section]:
    """Rows below their titles, in the order in which these come first."""
    found: dict[str, list[Row]] = {}
    for title, row in rows:
        found.setdefault(title, []).append(row)
    return [Section(title=title, rows=those) for title, those in found.items()]


def table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], title: str = "", **section: Any
) -> Section:
    """Rows of cells below their headings."""
    found = tuple(Row(cells=tuple(map(str, row))) for row in rows)
    return Section(title=title, rows=found, columns=tuple(columns), **section)


def columns(
    things: Iterable[T], cells: Mapping[str, Callable[[T], object]], title: str = "", **section: Any
) -> Section:
    """A table of things: below each heading, what the function beside it says of a thing."""
    rows = ([cell(one) for cell in cells.values()] for one in things)
    return table(tuple(cells), rows, title=title, **section)


def told(*lines: str, data: Any = None, code: int | ExitCode | None = None) -> Document:
    """A short answer: sentences, and the same for programs."""
    return Document(sections=(said(*lines),), data=data, code=code)


def done(
    rows: Iterable[tuple[str, str]], data: Any = None, *lines: str, title: str = ""
) -> Document:
    """A short answer: facts, then sentences."""
    return Document(sections=(facts(rows, title=title), said(*lines)), data=data)


def some(names: Sequence[str], most: int) -> str:
    """The first few of many names."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def flat(text: str) -> str:
    """A text in one line."""
    return " ".join(text.split())


def moment(time: datetime) -> str:
    """A time in UTC, to the second."""
    return f"{time:%Y-%m-%dT%H:%M:%SZ}"


def plural(count: int, noun: str, many: str = "") -> str:
    """``1 problem``, ``2 problems``."""
    return f"{count:,} {noun if count == 1 else many or noun + 's'}"


def pairs(values: Iterable[tuple[object, object]]) -> str:
    """Names with their values, in a line."""
    return ", ".join(f"{one} {other}" for one, other in values)


def runs(numbers: Iterable[int], width: int = 0) -> list[str]:
    """Numbers that rise, as runs (``0-19``, ``40-59``), each number as wide as that."""
    alike = groupby(enumerate(numbers), lambda one: one[1] - one[0])
    found = ([number for _, number in those] for _, those in alike)
    ends = (dict.fromkeys((one[0], one[-1])) for one in found)
    return ["-".join(f"{number:0{width}}" for number in one) for one in ends]


def picked(of: object, names: str, **more: Any) -> dict[str, Any]:
    """The fields of a result that programs are told, by their names, and what else they are."""
    return {name: getattr(of, name) for name in names.split()} | more
