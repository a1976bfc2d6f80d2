# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Characters to their places in a file: of a text, of parts of it, and of a YAML scalar.

A parser keeps where a scalar begins and not where its parts are; blocks, folds and quotes move
them. The scalar's characters stand in the file in their order, with indentation, quotes and escapes
between them: they are found by walking along both.
"""

import bisect
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from securetrain.audit.facts import Location

if TYPE_CHECKING:
    from securetrain.audit.shell.values import Place

_BLOCK: Final = re.compile(r"[|>][-+0-9]*[ \t]*(?:#[^\n]*)?\Z")
_KEY: Final = re.compile(r"(?:\"[^\"\n]*\"|'[^'\n]*'|[^\s:\"'][^:\n]*):[ \t]+")
"""What stands before a value whose place is its key's."""
_BETWEEN: Final = " \t\r\n\"'"
_MAX_TEXT: Final = 1 << 20


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

    def through(self, at: Sequence[int], otherwise: Location) -> "Place":
        """The places of a text whose characters stand at these offsets."""
        last = len(at) - 1
        return lambda i: self.at(at[min(max(i, 0), last)]) if at else otherwise

    def of(self, line: int, column: int, text: str) -> "Place":
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
