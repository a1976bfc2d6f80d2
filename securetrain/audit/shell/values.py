# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Words as programs get them: known text and holes, each with its place.

A parser of YAML keeps where a scalar begins and not where its parts are; blocks, folds and quotes
move them. The scalar's characters stand in the file in their order, with indentation, quotes and
escapes between them: they are found by walking along both.
"""

import bisect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import msgspec

from securetrain.audit.facts import Location

Place: TypeAlias = Callable[[int], Location]
"""The place of a character of a text, by its number."""

HOLE: Final = "\ue000"
"""Stands for a hole in the text of a word: a character that Unicode gives no meaning."""
_TEMPLATE: Final = re.compile(
    r"\{\{-?\s*/\*.{0,500}?\*/\s*-?\}\}|\{#.{0,500}?#\}"
    r"|\{\{.{0,500}?\}\}|\{%.{0,500}?%\}|<%.{0,500}?%>",
    re.DOTALL,
)
_CONTROL: Final = re.compile(
    r"\{#|\{\{-?\s*/\*|(?:\{\{|\{%|<%)[-+]?\s*(?:\{|\}|(?:if|else|elif|elsif|endif|end|for|endfor|range|with|define"
    r"|set|block|endblock|raw|endraw|macro|endmacro|do|\$\w+\s*:?=)\b)"
)
"""Parts of a template that write nothing themselves."""
_REFERENCE: Final = re.compile(
    r"\$\(([A-Za-z_][\w.-]*)\)|(\$\{[^{}]{0,500}\}|\$[A-Za-z_]\w*)", re.ASCII
)

_BLOCK: Final = re.compile(r"[|>][-+0-9]*[ \t]*(?:#[^\n]*)?\Z")
_KEY: Final = re.compile(r"(?:\"[^\"\n]*\"|'[^'\n]*'|[^\s:\"'][^:\n]*):[ \t]+")
"""What stands before a value whose place is its key's."""
_BETWEEN: Final = " \t\r\n\"'"
_MAX_TEXT: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Segment:
    """Known text, or a hole."""

    text: str
    place: Place
    start: int = 0
    """The number of its first character for `place`."""
    name: str = ""
    """Of a hole: the variable, or as written for anything else that decides it."""
    splits: bool = False
    """Whether the hole may be any number of words."""
    written: Place | None = None
    """The places of its text where a variable brought it from, which has them all at one."""

    def at(self, i: int = 0) -> Location:
        """The place of a character, with the one that it was written at."""
        here = self.place(self.start + i)
        if self.written is None:
            return here
        there = self.written(self.start + i)
        there = there.written or there
        if not there.path or (there.path, there.line) == (here.path, here.line):
            return here
        return msgspec.structs.replace(here, written=there)

    @property
    def shown(self) -> str:
        """The text; of a hole, what decides it."""
        return f"${self.name}" if self.name.isidentifier() else self.name or self.text

    def moved(self, place: Place, name: str) -> "Segment":
        """The same where a variable puts it; what commands made is known by the variable."""
        keeps = not self.name or self.name.isidentifier() or not name.isidentifier()
        name, written = self.name if keeps else name, self.written or self.place
        return Segment(self.text, place, self.start, name, self.splits, written)

    def part(self, start: int, stop: int) -> "Segment":
        """Some of its text."""
        return replace(self, text=self.text[start:stop], start=self.start + start)

    def splitting(self, splits: bool) -> "Segment":  # noqa: FBT001 - what it says
        """The same, quoted or not."""
        return replace(self, splits=splits)


@dataclass(frozen=True, slots=True)
class Arg:
    """A word, or a text that goes to a shell."""

    segments: tuple[Segment, ...]
    at: Location
    text: str
    """Each hole is one `HOLE`."""
    branches: bool = False
    """Whether a template leaves out some of its lines."""

    @property
    def opens(self) -> tuple[str, ...]:
        """The names of what decides its holes."""
        return tuple(dict.fromkeys(one.name for one in self.segments if one.name))

    @property
    def rest(self) -> bool:
        """Return whether it may be any number of words."""
        return bool(self.segments) and all(one.splits for one in self.segments)

    def place(self, i: int) -> Location:
        """The place of a character of its text."""
        for one in self.segments:
            if i < len(one.text):
                return one.at(i)
            i -= len(one.text)
        return self.segments[-1].at() if self.segments else self.at

    def part(self, start: int, stop: int | None = None) -> "Arg":
        """Some of its text, with the holes in it."""
        found = []
        stop = len(self.text) if stop is None else stop
        before = 0
        for one in self.segments:
            first, last = max(start - before, 0), min(stop - before, len(one.text))
            if first < last:
                found.append(one if one.name else one.part(first, last))
            before += len(one.text)
        return arg_of(found, self.place(start))


def arg_of(segments: Iterable[Segment], at: Location) -> Arg:
    """A word of segments."""
    kept = tuple(one for one in segments if one.text)
    return Arg(kept, at, "".join(one.text for one in kept))


def hole(name: str, place: Place, start: int = 0, *, splits: bool = True) -> Segment:
    """A hole that something decides."""
    return Segment(HOLE, place, start, name, splits)


def joined(args: Iterable[Arg], separator: str = " ") -> Arg:
    """Words as one text, as ``eval`` and ssh make of theirs."""
    segments: list[Segment] = []
    args = list(args)
    for one in args:
        if segments:
            segments.append(Segment(separator, always(one.at)))
        segments.extend(one.segments)
    return arg_of(segments, args[0].at)


def script_text(text: str, place: Place) -> Arg:
    """The text of a script; what a template fills in is a hole."""
    segments = []
    last, branches = 0, False
    for found in _TEMPLATE.finditer(text) if "{" in text or "<%" in text else ():
        segments.append(Segment(text[last : found.start()], place, last))
        if _CONTROL.match(found[0]):
            branches = True
        else:
            name = found[0].strip("{}<>%=- ")[:60] or "a template"
            segments.append(hole(name, place, found.start()))
        last = found.end()
    segments.append(Segment(text[last:], place, last))
    return replace(arg_of(segments, place(0)), branches=branches)


@dataclass(frozen=True, slots=True)
class Text:
    """A word of a container, or the value of a variable, with the place of each character."""

    text: str
    place: Place


def container_word(word: Text, variables: Mapping[str, Text]) -> Arg:
    """A word of a container's command, in which ``$(NAME)`` is a variable of the container.

    ``$NAME`` is nothing to Kubernetes: it is left to a shell where the word may be a script, and
    decided by who fills in the manifest elsewhere.
    """
    whole = script_text(word.text, word.place)
    is_script = bool(re.search(r"\s", word.text))
    segments: list[Segment] = []
    last = 0
    for found in _REFERENCE.finditer(whole.text):
        if found[2] and is_script:
            continue
        segments.extend(whole.part(last, found.start()).segments)
        here = always(whole.place(found.start()))
        known = variables.get(found[1] or "")
        name = found[1] or found[2].strip("${}")[:60]
        segments.append(
            Segment(known.text, here, written=known.place)
            if known is not None
            else hole(name, here, splits=False)
        )
        last = found.end()
    made = arg_of([*segments, *whole.part(last).segments], whole.at)
    return replace(made, branches=whole.branches)


def always(at: Location) -> Place:
    """One place for every character."""
    return lambda _: at


# --- places --------------------------------------------------------------------------------------


class Places:
    """The places in a text, which begins at a line and column of a file."""

    def __init__(self, path: str, raw: str, first_line: int = 1) -> None:
        self.path = path
        self.raw = raw
        self.first_line = first_line
        self._starts: list[int] = []

    def at(self, i: int) -> Location:
        """The place of a character, by its number."""
        if not self._starts:
            self._starts = [0, *(found.end() for found in re.finditer("\n", self.raw))]
        row = bisect.bisect_right(self._starts, i) - 1
        column = i - self._starts[row] + 1
        return Location(path=self.path, line=self.first_line + row, column=column)

    def through(self, at: Sequence[int], otherwise: Location) -> Place:
        """The places of a text whose characters stand at these offsets."""
        last = len(at) - 1
        return lambda i: self.at(at[min(max(i, 0), last)]) if at else otherwise

    def of(self, line: int, column: int, text: str) -> Place:
        """The places of a scalar's characters; its own for what is not found."""
        own = Location(path=self.path, line=line)
        if "\n" not in self.raw or len(text) > _MAX_TEXT or not line:
            return lambda _: own
        self.at(0)
        if line > len(self._starts):
            return lambda _: own
        return self.through(self._offsets(self._starts[line - 1], max(0, column - 1), text), own)

    def _offsets(self, start: int, indent: int, text: str) -> list[int]:
        raw = self.raw
        end = raw.find("\n", start)
        end = len(raw) if end < 0 else end
        begins = [start + indent]
        if key := _KEY.match(raw, start + indent, end):
            begins.append(key.end())
        if block := _BLOCK.search(raw, start, end):
            begins.insert(0, block.end())
        offsets: list[int] = []
        for one in begins:
            if len(offsets) < len(text):
                offsets = max(offsets, _walk(raw, one, text), key=len)
        return offsets


def _walk(raw: str, begin: int, text: str) -> list[int]:
    """The place in the file of each character; fewer when the file has something else there."""
    found: list[int] = []
    i = begin
    for char in text:
        if char in " \t\n\r":
            found.append(i)
            continue
        while i < len(raw) and raw[i] != char:
            if raw[i] == "\\" and raw[i + 1 : i + 2] != char:
                i += 2  # an escape of a space or line end
            elif raw[i] in _BETWEEN or raw[i] == "\\":
                i += 1
            else:
                return found
        found.append(min(i, len(raw) - 1))
        i += 1
    return found
