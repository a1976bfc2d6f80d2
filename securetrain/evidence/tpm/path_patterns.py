# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
r"""Path patterns: a small part of regular expressions, matched whole and in linear time.

A runtime policy excludes paths by regular expressions, and the paths come from the node that is
being judged: a matcher that backtracks could be made to hang. Rules:

1. a pattern matches a whole path, never only its beginning;
2. a pattern is made of literals, ``\`` before punctuation, ``\d \w \s`` (ASCII), ``.`` (any byte),
   character classes, ``*``, ``+`` and ``?`` behind one of these, and groups of alternatives, which
   only ``?`` may follow. ``^`` may begin and ``$`` may end it. Everything else is refused: counted
   repetition, repeated groups, lazy quantifiers, look-around, back references, flags. Where the
   extra ``patterns`` is installed, RE2 reads what is left (`re2_patterns`);
3. a pattern that matches every path is refused: it would switch the policy off;
4. all patterns of a policy are one nondeterministic automaton whose states are the bits of one
   integer, so a path costs its length times the size of the patterns, whatever it is (Navarro and
   Raffinot, "Flexible Pattern Matching in Strings", 2002, 4.2).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from securetrain.core.errors import AttestationError
from securetrain.evidence.tpm import re2_patterns
from securetrain.evidence.tpm.re2_patterns import Re2Patterns

MAX_PATTERNS: Final = 1_000
MAX_LENGTH: Final = 512
MAX_BRANCHES: Final = 64
"""Of one pattern, after its alternatives are multiplied out."""
MAX_STATES: Final = 1 << 13
_MAX_DEPTH: Final = 8

_ANY: Final = (1 << 256) - 1
_PUNCTUATION: Final = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~ ")
_QUANTIFIERS: Final = frozenset("*+?")
_END: Final = ""


@dataclass(frozen=True, slots=True)
class _Item:
    """One place of a branch."""

    bytes: int
    """The bytes that fit, as a set of bits."""
    repeats: bool = False
    """Any number of times, none included."""
    optional: bool = False


_Branch = tuple[_Item, ...]


def _bits(characters: str) -> int:
    return sum(1 << ord(character) for character in set(characters))


_DIGITS: Final = "0123456789"
_ESCAPES: Final = {
    "d": _bits(_DIGITS),
    "w": _bits(_DIGITS + "_abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"),
    "s": _bits(" \t\n\r\f\v"),
}


class PathPatterns:
    """The patterns of one policy."""

    __slots__ = ("_beyond", "_final", "_loop", "_skip", "_start", "_step")

    def __init__(self, patterns: Sequence[str], where: str = "excludes") -> None:
        """Compile the patterns.

        Raises:
            AttestationError: ST-ATTS-323, naming the pattern; ST-ATTS-325 when RE2 might read it,
                and is not installed.
        """
        if len(patterns) > MAX_PATTERNS:
            raise _bad(f"{len(patterns)} patterns, the limit is {MAX_PATTERNS}", where)
        self._step = [0] * 256
        self._loop = [0] * 256
        self._skip = self._final = start = state = 0
        beyond: list[tuple[str, str]] = []
        for index, pattern in enumerate(patterns):
            place = f"{where}[{index}] {pattern[:80]!r}"
            try:
                branches = _Parser(pattern, place).parse()
            except _BeyondError as error:
                if not re2_patterns.installed():
                    raise AttestationError("ST-ATTS-325", str(error), place) from error
                beyond.append((place, pattern))
                continue
            for branch in branches:
                if state + len(branch) >= MAX_STATES:
                    raise _bad("the patterns are too large together", where)
                start |= 1 << state
                for item in branch:
                    self._add(item, 1 << state)
                    state += 1
                self._final |= 1 << state
                state += 1
        self._start = self._closure(start)
        self._beyond = Re2Patterns(beyond) if beyond else None

    def matches(self, path: bytes) -> bool:
        """Tell whether any pattern matches the whole path."""
        return self._matches(path) or (self._beyond is not None and self._beyond.matches(path))

    def _matches(self, path: bytes) -> bool:
        step, loop = self._step, self._loop
        active = self._start
        for byte in path:
            active = self._closure(((active & step[byte]) << 1) | (active & loop[byte]))
            if not active:
                return False
        return bool(active & self._final)

    def _add(self, item: _Item, state: int) -> None:
        table = self._loop if item.repeats else self._step
        for byte in range(256):
            if item.bytes >> byte & 1:
                table[byte] |= state
        if item.repeats or item.optional:
            self._skip |= state

    def _closure(self, active: int) -> int:
        """The states and those that are reached from them without a byte."""
        new = active & self._skip
        while new:
            new = (new << 1) & ~active
            active |= new
            new &= self._skip
        return active


class _BeyondError(Exception):
    """A pattern is in another syntax than ours, or larger; not that it matches too much."""


class _Parser:
    """Reads one pattern into branches without alternatives."""

    def __init__(self, pattern: str, where: str) -> None:
        self._text = pattern
        self._position = 0
        self._where = where

    def parse(self) -> list[_Branch]:
        if not 0 < len(self._text) <= MAX_LENGTH:
            raise _bad(f"a pattern has 1 to {MAX_LENGTH} characters", self._where)
        branches = self._alternatives(0)
        if self._next() != _END:
            raise self._bad("a ) without its (")
        if any(map(_is_everything, branches)):
            raise _bad("this would exclude every path", self._where)
        return branches

    def _alternatives(self, depth: int) -> list[_Branch]:
        branches = self._sequence(depth)
        while self._take("|"):
            branches += self._sequence(depth)
        return branches

    def _sequence(self, depth: int) -> list[_Branch]:
        branches: list[_Branch] = [()]
        if depth == 0:
            self._take("^")
        while self._next() not in {_END, "|", ")"}:
            if depth == 0 and self._take("$"):
                if self._next() not in {_END, "|"}:
                    raise self._bad("$ stands at the end only")
                break
            parts = self._group(depth + 1) if self._take("(") else [self._items()]
            branches = [branch + part for branch in branches for part in parts]
            if len(branches) > MAX_BRANCHES:
                raise self._bad(f"more than {MAX_BRANCHES} combinations of alternatives")
        return branches

    def _group(self, depth: int) -> list[_Branch]:
        if depth > _MAX_DEPTH:
            raise self._bad(f"groups are nested more than {_MAX_DEPTH} deep")
        if self._take("?") and not self._take(":"):
            raise self._bad("(? is not supported, but for (?:")
        branches = self._alternatives(depth)
        if not self._take(")"):
            raise self._bad("a ( without its )")
        if self._take("?"):
            branches.append(())
        self._no_quantifier("a group can only be followed by ?")
        return branches

    def _items(self) -> _Branch:
        character = self._any()
        match character:
            case "[":
                items = [_Item(self._class())]
            case "\\":
                items = [_Item(self._escape())]
            case ".":
                items = [_Item(_ANY)]
            case _ if character in "*+?{}]^$":
                raise self._bad(
                    f"{character} is not supported here; write \\{character} for itself"
                )
            case _:
                items = [_Item(1 << byte) for byte in character.encode()]
        if self._next() in _QUANTIFIERS:
            if len(items) != 1:
                raise self._bad("a quantifier behind a character outside ASCII")
            items = _quantified(items[0].bytes, self._any())
        self._no_quantifier("two quantifiers in a row, or a counted one")
        return tuple(items)

    def _class(self) -> int:
        negated = self._take("^")
        found = 0
        while not self._take("]"):
            first = self._class_member()
            if self._next() == "-" and self._text[self._position + 1 : self._position + 2] != "]":
                self._position += 1
                first = self._range(first, self._class_member())
            found |= first
        if not found:
            raise self._bad("an empty character class")
        return _ANY & ~found if negated else found

    def _class_member(self) -> int:
        character = self._any()
        if character == "\\":
            return self._escape()
        if character == "[" or not character.isascii():
            raise self._bad(f"{character!r} is not supported in a character class")
        return 1 << ord(character)

    def _range(self, first: int, last: int) -> int:
        if first.bit_count() != 1 or last.bit_count() != 1 or last < first:
            raise self._bad("a range goes from one character up to another")
        return (last << 1) - first

    def _escape(self) -> int:
        character = self._any()
        if character in _PUNCTUATION:
            return 1 << ord(character)
        if character not in _ESCAPES:
            raise self._bad(f"\\{character} is not supported")
        return _ESCAPES[character]

    def _no_quantifier(self, what: str) -> None:
        if self._next() in _QUANTIFIERS or self._next() == "{":
            raise self._bad(what)

    def _next(self) -> str:
        return self._text[self._position : self._position + 1]

    def _take(self, character: str) -> bool:
        taken = self._next() == character
        self._position += taken
        return taken

    def _any(self) -> str:
        character = self._next()
        if character == _END:
            raise self._bad("the pattern ends too early")
        self._position += 1
        return character

    def _bad(self, what: str) -> "_BeyondError":
        return _BeyondError(f"{what} (position {self._position})")


def _quantified(fitting: int, quantifier: str) -> list[_Item]:
    match quantifier:
        case "?":
            return [_Item(fitting, optional=True)]
        case "*":
            return [_Item(fitting, repeats=True)]
        case _:
            return [_Item(fitting), _Item(fitting, repeats=True)]


def _is_everything(branch: _Branch) -> bool:
    """Tell whether nothing is asked of a path but perhaps its first slash and a length."""
    rest = branch[1:] if branch and branch[0] == _Item(_bits("/")) else branch
    return any(item.repeats for item in rest) and all(item.bytes == _ANY for item in rest)


def _bad(what: str, where: str) -> AttestationError:
    return AttestationError(
        "ST-ATTS-323", f"not a path pattern that is safe to match: {what}", where
    )
