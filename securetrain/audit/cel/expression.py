# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""An expression of CEL over an object, and the fields of the object that it reads.

Rules:

1. the fields follow from the text alone, so that what reads an open field is known without a value
   for it. Whatever cannot be followed is read with all that lies below it;
2. ``object`` is the object, as in admission policies of Kubernetes; there is no other variable;
3. text, and nesting, are bounded; what this reader does not understand is refused.
"""

import hashlib
import json
import re
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Final, TypeAlias

MAX_CEL: Final = 4096
"""Characters of an expression."""
MAX_DEPTH: Final = 48

Step: TypeAlias = str | int | None
"""A key, the number of an element, or None: any of either."""
Way: TypeAlias = tuple[Step, ...]

_RAW: Final = r"\"\"\"[\s\S]*?\"\"\"|'''[\s\S]*?'''|\"[^\"\n\r]*\"|'[^'\n\r]*'"
_PLAIN: Final = (
    r"\"\"\"(?:\\[\s\S]|[^\\])*?\"\"\"|'''(?:\\[\s\S]|[^\\])*?'''"
    r"|\"(?:\\.|[^\"\\\n\r])*\"|'(?:\\.|[^'\\\n\r])*'"
)
_TOKEN: Final = re.compile(
    rf"(?:[ \t\r\n\f]|//[^\n]*)*(?:(?P<text>[bB]?[rR](?:{_RAW})|[bB]?(?:{_PLAIN}))"
    r"|(?P<number>0[xX][0-9a-fA-F]+[uU]?|[0-9]*\.[0-9]+(?:[eE][+-]?[0-9]+)?"
    r"|[0-9]+[eE][+-]?[0-9]+|[0-9]+[uU]?)"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<mark>&&|\|\||[=!<>]=|[-+*/%<>!?:.,()\[\]{}])|(?P<end>\Z))"
)
_BINARY: Final = frozenset(
    {"&&", "||", "==", "!=", "<=", ">=", "<", ">", "+", "-", "*", "/", "%", "in"}
)
_LOOSE: Final = frozenset({"", "&&", "||"})
_MACROS: Final = frozenset({"all", "exists", "exists_one", "existsOne", "map", "filter"})
_CONSTANTS: Final = frozenset({"true", "false", "null"})
_TYPES: Final = frozenset(
    {"int", "uint", "double", "string", "bytes", "bool", "list", "map", "type", "null_type"}
)


OBJECTS: Final = "cluster.objects"
"""The evidence that answers are."""


class Use(StrEnum):
    """The part of a field that is read."""

    VALUE = "value"
    """It, and all below it."""
    PRESENCE = "presence"
    """Whether it is there."""
    ELEMENTS = "elements"
    """The elements of a list; nothing of a mapping."""


@dataclass(frozen=True, slots=True)
class Read:
    """A field that an expression reads."""

    way: Way
    use: Use


@dataclass(frozen=True)
class Expression:
    """A sentence that must hold of every object of some kinds.

    Raises:
        ValueError: it is not understood, and where.
    """

    kinds: tuple[str, ...]
    """``Pod``, ``batch/v1/Job``, ``kubeflow.org/*/PyTorchJob``, ``*``."""
    cel: str

    def __post_init__(self) -> None:
        """Find what it reads."""
        _ = self.reads

    @cached_property
    def reads(self) -> tuple[Read, ...]:
        """The fields that it reads, in their order."""
        return tuple(dict.fromkeys(_Reader(self.cel).read()))

    @cached_property
    def digest(self) -> str:
        """SHA-256 of what it asks."""
        return hashlib.sha256(json.dumps([sorted(self.kinds), self.cel]).encode()).hexdigest()

    def is_about(self, api_version: str, kind: str) -> bool | None:
        """Tell whether it is about objects of a kind; None where a template decides the kind."""
        found = {self._matches(one, api_version, kind) for one in self.kinds}
        return True if True in found else None if None in found else False

    def _matches(self, wanted: str, api_version: str, kind: str) -> bool | None:
        *version, name = wanted.split("/")
        if not kind:
            return None
        if name not in ("*", kind):
            return False
        if version and not api_version:
            return None
        parts = api_version.split("/")
        return not version or (
            len(version) == len(parts)
            and all(one in ("*", part) for one, part in zip(version, parts, strict=True))
        )


@dataclass(slots=True)
class _Reader:
    """Reads an expression from left to right.

    Operators need no precedence here: each reads both its operands, whichever these are.
    """

    text: str
    tokens: list[tuple[str, str, int]] = field(default_factory=list)
    place: int = 0
    depth: int = 0
    found: list[Read] = field(default_factory=list)
    variables: dict[str, tuple[Way, ...]] = field(default_factory=lambda: {"object": ((),)})

    def read(self) -> list[Read]:
        """Everything that is read."""
        if len(self.text) > MAX_CEL:
            raise ValueError(f"more than {MAX_CEL} characters")
        at = 0
        while not self.tokens or self.tokens[-1][0] != "end":
            match = _TOKEN.match(self.text, at)
            if match is None:
                raise ValueError(f"character {at + 1} is not understood")
            kind = str(match.lastgroup)
            self.tokens.append((kind, match[kind], match.start(kind)))
            at = match.end()
        self._use(self._expression())
        if self.tokens[self.place][0] != "end":
            raise self._refuse("the end")
        return self.found

    def _expression(self) -> tuple[Way, ...]:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise ValueError(f"nested deeper than {MAX_DEPTH}")
        before, ways, literal = "", self._operand(), self._literal()
        while (mark := self._peek()) in _BINARY:
            self.place += 1
            left, right, key = ways, self._operand(), literal
            literal = self._literal()
            self._use(left)
            if mark == "in" and key is not None and before in _LOOSE:
                self._use(right, Use.ELEMENTS)
                self._use(tuple((*way, key) for way in right), Use.PRESENCE)
            else:
                self._use(right)
            before, ways = mark, ()
        if self._take("?"):
            self._use(ways)
            ways = self._expression()
            self._expect(":")
            ways += self._expression()
        self.depth -= 1
        return ways

    def _operand(self) -> tuple[Way, ...]:
        signs = 0
        while self._take("!") or self._take("-"):
            signs += 1
        ways = self._primary()
        while True:
            if self._take("."):
                ways = self._member(ways)
            elif self._take("["):
                ways = self._index(ways)
            elif signs:
                self._use(ways)
                return ()
            else:
                return ways

    def _primary(self) -> tuple[Way, ...]:
        kind, word, _ = self.tokens[self.place]
        self.place += 1
        if kind in ("text", "number"):
            return ()
        if kind == "name" and word != "in":
            if word in self.variables and self._peek() != "(":
                return self.variables[word]
            return self._called(word)
        if word == "(":
            ways = self._expression()
            self._expect(")")
            return ways
        if word in ("[", "{"):
            self._arguments("]" if word == "[" else "}")
            return ()
        self.place -= 1
        raise self._refuse("a value")

    def _called(self, word: str) -> tuple[Way, ...]:
        if not self._take("("):
            if word in _CONSTANTS or word in _TYPES:
                return ()
            self.place -= 1
            raise self._refuse("object, or a variable of a macro")
        if word in ("has", "size"):
            ways = self._expression()
            self._expect(")")
            self._use(ways if word == "has" else _inside(ways), Use.PRESENCE)
        else:
            self._arguments(")")
        return ()

    def _member(self, ways: tuple[Way, ...]) -> tuple[Way, ...]:
        word = self._name()
        if not self._take("("):
            return tuple((*way, word) for way in ways)
        if word in _MACROS:
            return self._macro(word, ways)
        if word == "size":
            self._use(_inside(ways), Use.PRESENCE)
        else:
            self._use(ways)
        self._arguments(")")
        return ()

    def _macro(self, word: str, ways: tuple[Way, ...]) -> tuple[Way, ...]:
        self._use(_inside(ways), Use.PRESENCE)
        name = self._name()
        self._expect(",")
        before = dict(self.variables)
        self.variables[name] = _inside(ways)
        self._arguments(")")
        self.variables = before
        return ways if word == "filter" else ()

    def _index(self, ways: tuple[Way, ...]) -> tuple[Way, ...]:
        begin = self.place
        self._use(self._expression())
        key = self._literal() if self.place == begin + 1 else None
        self._expect("]")
        return tuple((*way, key) for way in ways)

    def _literal(self) -> str | None:
        """The text of a plain string that was just read."""
        kind, word, _ = self.tokens[self.place - 1]
        alone = self.place < 2 or self.tokens[self.place - 2][1] not in ("-", "!")
        if kind != "text" or not alone or word[0] not in "\"'" or word[:3] in ('"""', "'''"):
            return None
        return None if "\\" in word else word[1:-1]

    def _arguments(self, end: str) -> None:
        while not self._take(end):
            self._use(self._expression())
            if not (self._take(",") or (end == "}" and self._take(":"))) and self._peek() != end:
                raise self._refuse(end)

    def _use(self, ways: tuple[Way, ...], use: Use = Use.VALUE) -> None:
        self.found += [Read(way, use) for way in ways]

    def _peek(self) -> str:
        kind, word, _ = self.tokens[self.place]
        return "" if kind == "text" else word

    def _take(self, word: str) -> bool:
        taken = self._peek() == word
        self.place += taken
        return taken

    def _expect(self, word: str) -> None:
        if not self._take(word):
            raise self._refuse(word)

    def _name(self) -> str:
        kind, word, _ = self.tokens[self.place]
        if kind != "name":
            raise self._refuse("a name")
        self.place += 1
        return word

    def _refuse(self, wanted: str) -> ValueError:
        return ValueError(f"character {self.tokens[self.place][2] + 1}: expected {wanted}")


def _inside(ways: tuple[Way, ...]) -> tuple[Way, ...]:
    """The elements and keys of fields."""
    return tuple((*way, None) for way in ways)


REST: Final = "\ue003"
"""The last step of what a template adds to a mapping: any key that is not in it."""


@dataclass(frozen=True, slots=True)
class Hole:
    """A field that is not known, or not shown."""

    way: Way
    why: str
    known: frozenset[str] = frozenset()
    """The keys that the mapping has, where others may be added."""
    hidden: bool = False
    """Whether it is there, and is not shown."""

    def is_read(self, read: Read) -> bool:
        """Tell whether a reading depends on it."""
        for number, step in enumerate(self.way):
            if number >= len(read.way):
                inner = number == len(self.way) - 1 and isinstance(step, int)
                return read.use is Use.VALUE or (read.use is Use.ELEMENTS and inner)
            wanted = read.way[number]
            if step == REST:
                return not isinstance(wanted, str) or wanted not in self.known
            if wanted is not None and wanted != step:
                return False
        shown = self.hidden and read.use is Use.PRESENCE and len(read.way) == len(self.way)
        return not shown
