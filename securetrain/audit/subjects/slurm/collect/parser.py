# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Slurm's configuration files, read as Slurm reads them (its ``src/common/parse_config.c``).

Rules:

1. a ``#`` ends a line unless an odd number of backslashes precede it, in quotes too; a backslash at
   the end of a line continues it; any other backslash makes the next character plain;
2. names count in any case; of several settings of one name the last one counts;
3. an Include is read where it stands, relative to the directory of the first file, with ``%c`` for
   the cluster's name; patterns are not expanded;
4. a line that Slurm would refuse, a file that is empty or could not be read, a cycle: from there on
   nothing that was set before is certain (`Trouble`);
5. in a template a value may be open, a block may leave out its lines, and a name may be open: then
   anything may be set there.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from securetrain.audit.facts import Location, Outcome, Section
from securetrain.audit.subjects.node.collect.host import HiddenError, TooMuchError, outcome_of
from securetrain.audit.subjects.slurm.collect.place import NotHereError, Place
from securetrain.audit.subjects.slurm.facts import SlurmFile

T = TypeVar("T")

MAX_DEPTH: Final = 16
MAX_FILES: Final = 256
MAX_LINES: Final = 200_000

_PAIR: Final = re.compile(
    r"\s*([A-Za-z0-9_.]+)\s*[-*+/]?=\s*(?:\"([^\"]*)\"|([^\s]+))(?=\s|\Z)", re.ASCII
)
_INCLUDE: Final = re.compile(r"include\s+(\S*)(.*)\Z", re.ASCII | re.IGNORECASE | re.DOTALL)
_SPACE: Final = " \t\r\n\f\v"
_OPEN: Final = re.compile(
    r"\{\{-?\s*(.*?)\s*-?\}\}|<%[-=]*\s*(.*?)\s*-?%>|\$\{([^}]*)\}|@(\w+)@|\{(\w+)\}|\$([A-Za-z_]\w*)"
)
"""Jinja and Go, ERB and EPP, shells, autoconf, Python's format."""
_TAG: Final = re.compile(r"\{%[-+]?\s*(.*?)\s*[-+]?%\}|<%-?\s+(.*?)\s*-?%>", re.DOTALL)
_TAG_COMMENT: Final = re.compile(r"\{#.*?#\}|<%#.*?%>", re.DOTALL)
_BEGINS: Final = re.compile(
    r"(?:if|for|unless|case|with|macro|block|filter|call)\b|.*\bdo\b(\s*\|.*\|)?\Z|.*\{\s*(\|.*\|)?\Z",
    re.DOTALL,
)
_ENDS: Final = re.compile(r"end\w*\b|\}\s*\Z")
_ELSE: Final = re.compile(r"el(?:se|if|sif)\b|when\b|\}\s*els")
_BRINGS: Final = re.compile(r"(?:include|import|extends|scope|render)\b")

FAILURES: Final = (OSError, ValueError, TooMuchError, HiddenError, NotHereError)
"""What reading a file may raise."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One pair, with the pairs that follow on its line."""

    name: str
    """In lower case."""
    value: str
    at: Location
    order: int
    rest: dict[str, str] = field(default_factory=dict)
    """By name in lower case."""
    condition: str = ""
    """The condition of a template under which the line is there."""

    @property
    def open_by(self) -> str:
        """The variable of a template in its place; empty when the value is as it stands."""
        return self.condition or variable_of(self.value)


@dataclass(frozen=True, slots=True)
class Trouble:
    """A place that leaves open what was set before it."""

    reason: str
    at: Location
    order: int
    outcome: Outcome = Outcome.ERROR


@dataclass(slots=True)
class Conf:
    """A file with everything that it includes."""

    main: str
    settings: list[Setting] = field(default_factory=list)
    troubles: list[Trouble] = field(default_factory=list)
    files: list[SlurmFile] = field(default_factory=list)
    order: int = 0

    def all(self, name: str) -> Iterator[Setting]:
        """Yield the settings of a name, in order."""
        return (one for one in self.settings if one.name == name.lower())

    def last(self, *names: str) -> Setting | None:
        """The setting that counts; a name counts before those that follow it."""
        for name in names:
            if found := list(self.all(name)):
                return found[-1]
        return None

    def certain(self) -> "Conf":
        """It, where nothing leaves it open.

        Raises:
            NotHereError: with the first thing that does.
        """
        for one in self.troubles:
            is_open = one.outcome is Outcome.TEMPLATED
            raise NotHereError(one.reason, Outcome.TEMPLATED if is_open else Outcome.ERROR)
        return self

    def trouble_after(self, setting: Setting | None) -> Trouble | None:
        """The first thing that may have set it otherwise."""
        since = setting.order if setting else -1
        return next((one for one in self.troubles if one.order > since), None)


def variable_of(text: str) -> str:
    """The variable of a template in here; empty when there is none."""
    found = _OPEN.search(text)
    return next((part for part in found.groups() if part is not None), "") if found else ""


def failure(error: Exception) -> tuple[Outcome, str]:
    """The outcome of a file that could not be read."""
    if isinstance(error, NotHereError):
        return error.outcome, str(error)
    return outcome_of(error)


def is_absent(place: Place, error: Exception) -> bool:
    """Return whether a file is known not to be there; a copy may have left it behind."""
    return place.live and isinstance(error, OSError) and outcome_of(error)[0] is Outcome.ABSENT


def section(records: Callable[[], Iterable[T]], none_in: Place | None = None) -> Section[Any]:
    """The records that a file has, or why they are not known.

    Args:
        records: Reads them, or raises one of `FAILURES`.
        none_in: Where a file that is known not to be there means that there are none.
    """
    try:
        return Section(outcome=Outcome.OK, value=tuple(records()))
    except FAILURES as error:
        if none_in is not None and is_absent(none_in, error):
            return Section(outcome=Outcome.OK, value=())
        outcome, reason = failure(error)
        if outcome is Outcome.ABSENT:
            outcome, reason = Outcome.ERROR, f"not here: {reason}"
        return Section(outcome=outcome, reason=reason)


def read(place: Place, path: str, lines: frozenset[str] = frozenset()) -> Conf:
    """Read a file; `lines` are the names, in lower case, that further pairs may follow.

    Raises:
        OSError: when the first file cannot be read.
        TooMuchError: when it is too large.
        HiddenError: when something lies over it.
        NotHereError: when it lies outside a copy.
        ValueError: when it is not text.
    """
    conf = Conf(path)
    _Reader(place, conf, lines).file(path, place.text(path), None, ())
    return conf


@dataclass(slots=True)
class _Reader:
    place: Place
    conf: Conf
    lines: frozenset[str]
    count: int = 0

    def file(self, path: str, text: str, named: Location | None, above: tuple[str, ...]) -> None:
        """Take in one file's text."""
        self.conf.files.append(SlurmFile(outcome=Outcome.OK, path=path, at=named))
        if not text.strip():
            self.trouble(f"{path} is empty", named or Location(path=path))
        blocks = _Blocks()
        for number, line in joined(text):
            self.count += 1
            at = Location(path=path, line=number, column=len(line) - len(line.lstrip()) + 1)
            if self.count > MAX_LINES:
                self.trouble(f"{self.conf.main}: more than {MAX_LINES} lines", at)
                return
            if not line.strip(_SPACE):
                continue
            self.line(line, at, blocks, (*above, path))

    def trouble(self, reason: str, at: Location, outcome: Outcome = Outcome.ERROR) -> None:
        self.conf.order += 1
        self.conf.troubles.append(Trouble(reason, at, self.conf.order, outcome))

    def line(self, line: str, at: Location, blocks: "_Blocks", above: tuple[str, ...]) -> None:
        plain, brings = blocks.without_tags(line)
        if brings:
            self.trouble(f"the template puts in {brings!r}", at, Outcome.TEMPLATED)
        if not plain.strip(_SPACE):
            return
        line = plain
        if include := _INCLUDE.match(line.lstrip(_SPACE)):
            self.include(include.group(1), at, blocks.condition, above)
            return
        pairs, rest = pairs_of(line)
        if not pairs:
            open_by = variable_of(line)
            if open_by:
                self.trouble(f"the template's {open_by!r} decides", at, Outcome.TEMPLATED)
            else:
                self.trouble(f"{at.path}:{at.line} is no line that Slurm reads", at)
            return
        (name, value), *more = pairs
        if rest.strip(_SPACE) or (more and name.lower() not in self.lines):
            self.trouble(f"{at.path}:{at.line} has more on it than Slurm reads", at)
            return
        self.conf.order += 1
        self.conf.settings.append(
            Setting(
                name=name.lower(),
                value=value,
                at=at,
                order=self.conf.order,
                rest={key.lower(): value for key, value in more},
                condition=blocks.condition,
            )
        )

    def include(self, name: str, at: Location, condition: str, above: tuple[str, ...]) -> None:
        where = f"{at.path}:{at.line} includes"
        if "%c" in name and (cluster := self.conf.last("clustername")):
            name = name.replace("%c", cluster.value.lower())
        if open_by := condition or variable_of(name):
            self.trouble(f"{where} what {open_by!r} decides", at, Outcome.TEMPLATED)
            return
        shown = name
        try:
            shown = self.place.named(name)
            if "*" in name or "%c" in name:
                raise ValueError(f"{where} {name}, which Slurm does not expand")
            if shown in above or len(above) > MAX_DEPTH:
                raise TooMuchError(f"{where} {name}, in a circle")
            if len(self.conf.files) >= MAX_FILES:
                raise TooMuchError(f"more than {MAX_FILES} files")
            text = self.place.text(shown)
        except FAILURES as error:
            outcome, reason = failure(error)
            if outcome is Outcome.ABSENT or isinstance(error, NotHereError):
                reason = f"{where} {name}, which is not here"
            elif where not in reason:
                reason = f"{where} {name}: {reason}"
            self.trouble(reason, at, Outcome.ERROR if outcome is Outcome.ABSENT else outcome)
            self.conf.files.append(SlurmFile(outcome=outcome, reason=reason, path=shown, at=at))
            return
        self.file(shown, text, at, above)


@dataclass(slots=True)
class _Blocks:
    """The blocks of a template that a line stands in."""

    open: list[str] = field(default_factory=list)

    @property
    def condition(self) -> str:
        return self.open[-1] if self.open else ""

    def without_tags(self, line: str) -> tuple[str, str]:
        """The line without a template's statements, and the first that brings in other lines."""
        line = _TAG_COMMENT.sub("", line)
        brings = ""
        for tag in _TAG.finditer(line):
            words = next((part for part in tag.groups() if part is not None), "")
            if _ELSE.match(words):
                if self.open:
                    self.open[-1] = f"not ({self.open[-1]})" if words == "else" else words
            elif _ENDS.match(words):
                if self.open:
                    self.open.pop()
            elif _BEGINS.match(words):
                self.open.append(words)
            elif _BRINGS.match(words):
                brings = brings or words
        return _TAG.sub("", line), brings


def pairs_of(line: str) -> tuple[list[tuple[str, str]], str]:
    """The pairs of a line in order, and what is left of it."""
    pairs: list[tuple[str, str]] = []
    here = 0
    while found := _PAIR.match(line, here):
        name, quoted, plain = found.groups()
        start = found.start(2 if quoted is not None else 3)
        if plain is not None and (value := _template_word(line, start)):
            pairs.append((name, value))
            here = start + len(value)
            continue
        pairs.append((name, plain if quoted is None else quoted))
        here = found.end()
    return pairs, line[here:]


def _template_word(line: str, start: int) -> str:
    """A value with a template in it, which may have blanks; empty when it has none."""
    here = start
    while here < len(line) and line[here] not in _SPACE:
        found = _OPEN.match(line, here)
        here = found.end() if found else here + 1
    word = line[start:here]
    return word if _OPEN.search(word) else ""


def joined(text: str) -> Iterator[tuple[int, str]]:
    """Yield lines without comments, with what continues them, and the number of the first."""
    start, parts = 1, [""]
    template = _OPEN.search(text) is not None or _TAG.search(text) is not None
    if template:  # what a template leaves out may span lines and holds its own '#'
        text = _TAG_COMMENT.sub(lambda found: "\n" * found.group().count("\n"), text)
    for number, raw in enumerate(text.split("\n"), 1):
        if parts == [""]:
            start = number
        line = _without_comment(raw)
        body = line.rstrip(_SPACE)
        slashes = len(body) - len(body.rstrip("\\"))
        if slashes % 2:
            parts.append(body[:-1])
            continue
        parts.append(line)
        yield start, _unescaped("".join(parts))
        parts = [""]
    if parts != [""]:
        yield start, _unescaped("".join(parts))


def _without_comment(line: str) -> str:
    slashes = 0
    for place, char in enumerate(line):
        if char == "#" and slashes % 2 == 0:
            return line[:place]
        slashes = slashes + 1 if char == "\\" else 0
    return line


def _unescaped(line: str) -> str:
    return re.sub(r"\\(.?)", r"\1", line, flags=re.DOTALL)
