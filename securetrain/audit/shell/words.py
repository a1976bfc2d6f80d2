# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Shell text as simple commands with the place of each word. Nothing is run or looked up.

Rules:

1. quotes go, and expansions stay as they are written (``$NAME``, ``$(...)``): a word knows where
   its own lie. A ``$`` between single quotes is kept as well: it is one where the text goes to a
   shell;
2. the commands of substitutions, subshells, blocks and functions are commands like the others:
   what may run counts, whether its branch is taken or not;
3. bodies of here-documents belong to the command that reads them;
4. the parser is bounded (`MAX_TEXT`, `MAX_COMMANDS`, `MAX_DEPTH`) and never fails: what it gives up
   on is in `Script.problem`.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from securetrain.audit.documents.facts import Location

MAX_TEXT: Final = 256 << 10
MAX_COMMANDS: Final = 20_000
MAX_DEPTH: Final = 8

Place: TypeAlias = Callable[[int], Location]
"""The place of a character of a text, by its number."""

_TEMPLATE: Final = re.compile(r"\{\{.{0,500}?\}\}|\{%.{0,500}?%\}|<%.{0,500}?%>", re.DOTALL)
_NAME: Final = re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!-]")
_OPERATOR: Final = re.compile(r"&&|\|\||;;&?|;&|\|&|[|&;()\n]")
_REDIRECTION: Final = re.compile(r"\d*(?:<<<|<<-?|>>|[<>]&|&>>?|>\||<>|[<>])")
_KEYWORDS: Final = frozenset(
    {"if", "then", "elif", "else", "while", "until", "do", "!", "{", "}", "time", "fi", "done"}
)
_BLANK: Final = " \t\r"


@dataclass(frozen=True, slots=True)
class Expansion:
    """A part of a word that the shell or a template fills in."""

    start: int
    end: int
    """Characters of the word's text."""
    name: str
    """The variable; as written for anything that is no plain variable."""
    default: str | None = None
    """Of ``${NAME:-default}``."""


@dataclass(frozen=True, slots=True)
class Word:
    """One word of a command."""

    text: str
    at: tuple[int, ...]
    """The number of each character in the script's text, and of the one behind."""
    expansions: tuple[Expansion, ...] = ()
    quoted: bool = False
    """Whether all of it stands between quotes."""


@dataclass(slots=True)
class Simple:
    """A simple command: words, assignments before them among the words, and what feeds it."""

    words: list[Word] = field(default_factory=list)
    pipeline: int = 0
    """Commands of one pipeline have one number."""
    bodies: list[Word] = field(default_factory=list)
    """Here-documents and here-strings that it reads."""
    targets: list[Word] = field(default_factory=list)
    """Files that its output goes to."""
    fed_by: int | None = None
    """The pipeline of the process substitution that it reads."""


@dataclass(slots=True)
class Script:
    """Commands in the order in which they stand."""

    commands: list[Simple] = field(default_factory=list)
    problem: str = ""
    """Why it was not read to the end."""


def parse(text: str) -> Script:
    """The commands of a shell script."""
    script = Script()
    if len(text) > MAX_TEXT:
        script.problem = f"longer than {MAX_TEXT} characters"
        return script
    _Parser(text, script).run(0, len(text))
    return script


class _Parser:
    def __init__(self, text: str, script: Script) -> None:
        self.text = text
        self.script = script
        self.depth = 0
        self.pipelines = 0

    def run(self, start: int, end: int) -> int:
        """Read the commands in a part of the text; the number of the first pipeline."""
        self.depth += 1
        first = self.pipelines + 1
        if self.depth > MAX_DEPTH:
            self.script.problem = f"nested deeper than {MAX_DEPTH}"
        else:
            _Reader(self, start, end).run()
        self.depth -= 1
        return first

    def next_pipeline(self) -> int:
        self.pipelines += 1
        return self.pipelines


@dataclass(slots=True)
class _Pending:
    """A here-document whose body is still to come."""

    command: Simple
    end: str
    strip: bool
    verbatim: bool


class _Reader:
    """Reads one stretch of text: a script, or the inside of a substitution."""

    def __init__(self, parser: _Parser, start: int, end: int) -> None:
        self.parser = parser
        self.text = parser.text
        self.i = start
        self.end = end
        self.command = Simple(pipeline=parser.next_pipeline())
        self.pending: list[_Pending] = []

    def run(self) -> None:
        while self.i < self.end and not self.parser.script.problem:
            char = self.text[self.i]
            if char in _BLANK:
                self.i += 1
            elif self.text.startswith("\\\n", self.i):
                self.i += 2
            elif self.text.startswith("\\\r\n", self.i):
                self.i += 3
            elif char == "#":
                newline = self.text.find("\n", self.i, self.end)
                self.i = self.end if newline < 0 else newline
            elif _TEMPLATE.match(self.text, self.i, self.end) or not (
                self._redirection() or self._operator()
            ):
                self._take(self._word())
        self._finish()

    def _operator(self) -> bool:
        found = _OPERATOR.match(self.text, self.i, self.end)
        if not found:
            return False
        self.i = found.end()
        self._finish(same=found[0] in {"|", "|&"})
        if found[0] == "\n" and self.pending:
            self._bodies()
        return True

    def _finish(self, *, same: bool = False) -> None:
        """End the command; its pipeline goes on after a bar."""
        commands = self.parser.script.commands
        if self.command.words or self.command.bodies:
            commands.append(self.command)
            if len(commands) > MAX_COMMANDS:
                self.parser.script.problem = f"more than {MAX_COMMANDS} commands"
        number = self.command.pipeline if same else self.parser.next_pipeline()
        self.command = Simple(pipeline=number)

    def _take(self, word: Word) -> None:
        if not self.command.words and word.text in _KEYWORDS and not word.quoted:
            return
        self.command.words.append(word)

    def _redirection(self) -> bool:
        found = _REDIRECTION.match(self.text, self.i, self.end)
        if not found or self.text.startswith("(", found.end()):  # <( ) and >( ) are words
            return False
        self.i = found.end()
        while self.i < self.end and self.text[self.i] in _BLANK:
            self.i += 1
        kind = found[0].lstrip("0123456789")
        if self.i >= self.end or self.text[self.i] == "\n":
            return True
        word = self._word()
        match kind:
            case "<<" | "<<-":
                self.pending.append(
                    _Pending(self.command, word.text, kind == "<<-", verbatim=word.quoted)
                )
            case "<<<":
                self.command.bodies.append(word)
            case ">" | ">>" | ">|" | "&>" | "&>>":
                self.command.targets.append(word)
            case _:
                pass
        return True

    def _bodies(self) -> None:
        """Take the here-documents that begin on this line."""
        for one in self.pending:
            start = self.i
            while self.i < self.end:
                newline = self.text.find("\n", self.i, self.end)
                stop = self.end if newline < 0 else newline
                line = self.text[self.i : stop].rstrip("\r")
                after = min(stop + 1, self.end)
                if (line.lstrip("\t") if one.strip else line) == one.end:
                    break
                self.i = after
            else:
                after = self.end
            body = self.text[start : self.i]
            spans = () if one.verbatim else tuple(_expansions(body))
            one.command.bodies.append(
                Word(body, tuple(range(start, self.i + 1)), spans, quoted=one.verbatim)
            )
            self.i = after
        self.pending.clear()

    # --- words -----------------------------------------------------------------------------------

    def _word(self) -> Word:
        building = _Building()
        bare = False
        start = self.i
        while self.i < self.end:
            char = self.text[self.i]
            if char == "'":
                self._single(building)
            elif char == '"':
                self._double(building)
            elif char == "\\":
                self._escape(building)
                bare = True
            elif not self._special(building):
                if char in _BLANK or char in "\n|&;()<>":
                    break
                building.add(char, self.i)
                self.i += 1
                bare = True
            else:
                bare = True
        if self.i == start:  # a lone bracket or the like: never stand still
            self.i += 1
        if building.text[-1:] == ["="] and self.text.startswith("(", self.i):
            self._array(building)
        return building.word(self.i, quoted=not bare)

    def _array(self, building: "_Building") -> None:
        """``NAME=( ... )``: its words, or open where a command makes some of them."""
        stop = _closing(self.text, self.i, self.end, "(", ")")
        inside = self.text[self.i + 1 : stop - 1]
        if "$(" in inside or "`" in inside:
            building.expand("(...)", self.i, name="an array")
            self.parser.run(self.i + 1, stop - 1)
        else:
            plain = re.sub(r"(?m)(?:^|(?<=\s))#[^\n]*|\\\n|[\"']", " ", inside)
            start = len(building.text)
            for offset, char in enumerate(plain):
                building.add(char, self.i + 1 + offset if len(plain) == len(inside) else self.i)
            for one in _expansions(plain):
                building.expansions.append(
                    Expansion(start + one.start, start + one.end, one.name, one.default)
                )
        self.i = stop

    def _escape(self, building: "_Building") -> None:
        if self.text.startswith("\n", self.i + 1):
            self.i += 2
            return
        if self.i + 1 < self.end:
            building.add(self.text[self.i + 1], self.i + 1)
        self.i += 2

    def _single(self, building: "_Building") -> None:
        stop = self.text.find("'", self.i + 1, self.end)
        stop = self.end if stop < 0 else stop
        for k in range(self.i + 1, stop):
            building.add(self.text[k], k)
        self.i = stop + 1

    def _double(self, building: "_Building") -> None:
        self.i += 1
        while self.i < self.end and self.text[self.i] != '"':
            char = self.text[self.i]
            if char == "\\" and self.text[self.i + 1 : self.i + 2] in ('"', "\\", "$", "`"):
                building.add(self.text[self.i + 1], self.i + 1)
                self.i += 2
            elif self.text.startswith("\\\n", self.i):
                self.i += 2
            elif not self._special(building):
                building.add(char, self.i)
                self.i += 1
        self.i += 1

    def _special(self, building: "_Building") -> bool:
        """Take an expansion, a substitution or a template's part that begins here."""
        text, i = self.text, self.i
        if found := _TEMPLATE.match(text, i, self.end):
            building.expand(found[0], i, name=found[0].strip("{}<>%=- ")[:60] or "a template")
            self.i = found.end()
            return True
        if text[i] == "`":
            stop = text.find("`", i + 1, self.end)
            return self._substitution(building, i + 1, self.end if stop < 0 else stop, 1)
        if text.startswith("$((", i):
            stop = _closing(text, i + 1, self.end, "(", ")")
            building.expand(text[i:stop], i, name=text[i:stop][:60])
            self.i = stop
            return True
        if text.startswith(("$(", "<(", ">("), i):
            stop = _closing(text, i + 1, self.end, "(", ")")
            return self._substitution(building, i + 2, max(i + 2, stop - 1), 1)
        if text.startswith("${", i):
            stop = _closing(text, i + 1, self.end, "{", "}")
            inside = text[i + 2 : stop - 1]
            building.expand(text[i:stop], i, *_named(inside))
            self.i = stop
            return True
        if text[i] == "$" and (found := _NAME.match(text, i + 1, self.end)):
            building.expand(text[i : found.end()], i, name=found[0])
            self.i = found.end()
            return True
        return False

    def _substitution(self, building: "_Building", start: int, stop: int, behind: int) -> bool:
        text = self.text
        whole = text[self.i : stop + behind]
        process = text.startswith("<(", self.i)
        building.expand(whole, self.i, name=whole[:60])
        first = self.parser.run(start, stop)
        if process:
            self.command.fed_by = first
        self.i = stop + behind
        return True


class _Building:
    """A word in the making."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self.at: list[int] = []
        self.expansions: list[Expansion] = []

    def add(self, char: str, at: int) -> None:
        self.text.append(char)
        self.at.append(at)

    def expand(self, text: str, at: int, name: str, default: str | None = None) -> None:
        start = len(self.text)
        self.text.extend(text)
        self.at.extend(range(at, at + len(text)))
        self.expansions.append(Expansion(start, len(self.text), name, default))

    def word(self, end: int, *, quoted: bool) -> Word:
        return Word("".join(self.text), (*self.at, end), tuple(self.expansions), quoted)


def _named(inside: str) -> tuple[str, str | None]:
    """The variable of ``${...}`` and its default."""
    found = re.match(r"[!#]?(\w+|[@*])(\[[^]]*\])?(.*)", inside, re.DOTALL)
    if not found:
        return inside[:60], None
    name, index, rest = found[1], found[2] or "", found[3]
    if default := re.match(r":?[-=](.*)", rest, re.DOTALL):
        return name, default[1]
    return f"{name}{index}", None


def expansions_of(text: str) -> tuple[Expansion, ...]:
    """The expansions of text that goes to a shell or a container's command as it is."""
    return tuple(_expansions(text))


def _expansions(text: str) -> list[Expansion]:
    found = []
    for match in re.finditer(
        r"\$\{([^{}]{0,500})\}|\$([A-Za-z_]\w*)|\$\(([A-Za-z_]\w*)\)|(\{\{.{0,500}?\}\}|\{%.{0,500}?%\}|<%.{0,500}?%>)",
        text,
        re.DOTALL,
    ):
        name: tuple[str, str | None]
        if match[1] is not None:
            name = _named(match[1])
        else:
            name = (match[2] or match[3] or match[4].strip("{}<>%=- ")[:60] or "a template", None)
        found.append(Expansion(match.start(), match.end(), *name))
    return found


def _closing(text: str, i: int, end: int, opening: str, closing: str) -> int:
    """The place behind the bracket that closes the one at `i`; the end when none does."""
    depth = 0
    while i < end:
        char = text[i]
        if char == "\\":
            i += 1
        elif char == "'" and opening != "{":
            stop = text.find("'", i + 1, end)
            i = end if stop < 0 else stop
        elif char == '"':
            i = _after_quote(text, i, end)
        elif char == opening:
            depth += 1
        elif char == closing:
            depth -= 1
            if depth == 0:
                return i + 1
        i += 1
    return end


def _after_quote(text: str, i: int, end: int) -> int:
    """The place of the double quote that ends the one at `i`."""
    i += 1
    while i < end and text[i] != '"':
        i += 2 if text[i] == "\\" else 1
    return min(i, end)
