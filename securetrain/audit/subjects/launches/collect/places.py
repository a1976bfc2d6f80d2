# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Characters of a YAML scalar to their places in the file.

A parser keeps where a scalar begins and not where its parts are; blocks, folds and quotes move
them. The scalar's characters stand in the file in their order, with indentation, quotes and escapes
between them: they are found by walking along both.
"""

import bisect
import re
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
    """The places in one file."""

    def __init__(self, path: str, raw: str) -> None:
        self.path = path
        self.raw = raw
        self._starts: list[int] = []

    def of(self, line: int, column: int, text: str) -> "Place":
        """The places of a scalar's characters; its own for what is not found."""
        own = Location(path=self.path, line=line)
        if "\n" not in self.raw or len(text) > _MAX_TEXT:
            return lambda _: own
        if not self._starts:
            self._starts = [0, *(found.end() for found in re.finditer("\n", self.raw))]
        starts = self._starts
        if not 0 < line <= len(starts):
            return lambda _: own
        offsets = self._offsets(starts[line - 1], max(0, column - 1), text)

        def place(i: int) -> Location:
            if not offsets:
                return own
            offset = offsets[min(max(i, 0), len(offsets) - 1)]
            row = bisect.bisect_right(starts, offset) - 1
            return Location(path=self.path, line=row + 1, column=offset - starts[row] + 1)

        return place

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
