# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A document as text: the verdict first, then the counts, then the details.

Rules: lines are wrapped at spaces; a name that is longer than its column is never broken, it stands
on a line of its own. A table that does not fit is shown row by row. What is left out is counted.
Everything is made printable here: a name from elsewhere never repaints a terminal.
"""

import re
import textwrap
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any, Final

import click

from securetrain.core import printable
from securetrain.report.document import Document, Row, Section, tone

_MIN_ROOM: Final = 24
_MIN_CELL: Final = 14
_SHORT: Final = 16
_DIGEST: Final = re.compile(r"(?<![\w/.-])(?:[a-z0-9-]+:)?([0-9a-f]{40,})(?![\w/.-])")
_DEVICES: Final = re.compile(r"[0-9a-f]{16}(, [0-9a-f]{16})+")
_GAP: Final = "  "
_STYLES: Final[dict[str, dict[str, Any]]] = {
    "good": {"fg": "green"},
    "bad": {"fg": "red", "bold": True},
    "warn": {"fg": "yellow"},
    "none": {"dim": True},
    "plain": {},
}


def lines(
    document: Document, width: int, *, quiet: bool = False, verbose: bool = False
) -> Iterator[str]:
    """The lines; `quiet` is the verdict alone, `verbose` leaves out nothing."""
    verbose = verbose or document.whole
    head = _safe(_GAP.join(filter(None, (document.word, document.about))))
    if quiet:
        yield from [_verdict(head, document.word)] if head else _first(document)
        return
    for number, line in enumerate(_wrapped(head, width, 0, 2) if head else ()):
        yield _verdict(line, document.word) if number == 0 else line
    counts = ", ".join(f"{number:,} {name}" for name, number in document.counts.items())
    yield from _wrapped(counts, width, 0, 2)
    yield from _wrapped(document.sentence, width, 0, 0)
    for notice in document.findings.notices if document.findings else ():
        for line in _wrapped(f"The facts cannot be relied on: {notice}", width, 0, 2):
            yield _styled(line, "bad")
    blank = bool(head or document.sentence)
    for section in document.sections:
        if section.page_only and not verbose:
            continue
        for line in _section(section, width, verbose=verbose, blank=blank):
            blank = True
            yield line


def _first(document: Document) -> Iterator[str]:
    """The first line of an answer without a verdict; none where the answer stands alone."""
    if document.answer is None:
        rows = (row for section in document.sections for row in section.rows[:1])
        yield from (_safe(f"{row.name} {row.text}".strip()) for row in rows)


def _section(section: Section, width: int, *, verbose: bool, blank: bool) -> Iterator[str]:
    shown = [row for row in section.rows if verbose or not row.passed]
    if not (shown or (section.empty and not section.rows) or (section.title and not section.rows)):
        return
    indent = 0
    if section.title:
        if blank:
            yield ""
        label = _GAP + _styled(_safe(section.label), "warn", bold=True) if section.label else ""
        title = _wrapped(section.title, width, 0, 2)
        yield from [click.style(line, bold=True) for line in title[:-1]]
        yield click.style(title[-1], bold=True) + label
        indent = 2
    yield from _wrapped(section.lead, width, indent, 0)
    if not section.rows:
        yield from _wrapped(section.empty, width, indent, 0)
        return
    most = len(shown) if verbose or section.most is None else section.most
    cut, left = shown[:most], len(shown) - most
    if section.verbatim and section.columns:
        full = [[_safe(cell) for cell in row.cells] for row in section.rows]
        yield from _aligned([section.columns, *full], _widths([section.columns, *full]))
    elif section.verbatim:
        yield from (_safe(row.text) for row in cut)
    elif section.columns:
        cells = [[_safe(cell) if verbose else _short(cell) for cell in row.cells] for row in cut]
        yield from _table(section.columns, cells, width)
    else:
        yield from _rows(cut, width, indent, verbose=verbose)
    if left > 0:
        yield from _wrapped(f"and {left:,} more (-v or --json)", width, indent, 0)


def _rows(rows: Sequence[Row], width: int, indent: int, *, verbose: bool) -> Iterator[str]:
    """State, name, weight and text in columns; source, details and fix below."""
    heads = [tuple(map(_safe, (row.state, row.name, row.label))) for row in rows]
    widths = [max(map(len, column)) for column in zip(*heads, strict=True)]
    widths = [min(size, 2 * width // 5) for size in widths]
    last = {(row.name, row.fix): number for number, row in enumerate(rows)}
    for number, (row, head) in enumerate(zip(rows, heads, strict=True)):
        start = indent + 2 * row.depth
        cells = [cell.ljust(size) for cell, size in zip(head, widths, strict=True) if size]
        size = start + sum(size + 2 for size in widths if size)
        plain = " " * start + _GAP.join(cells)
        shown = plain.replace(head[0], _styled(head[0], tone(head[0])), 1) if head[0] else plain
        yield from _beside(shown, plain, size, row.text, width)
        below = start + (widths[0] + 2 if widths[0] else 2)
        details = row.detail if verbose else row.detail[: row.most]
        more = len(row.detail) - len(details)
        for text in (
            row.source,
            *details,
            f"and {more:,} more (-v or --json)" if more else "",
            row.about if verbose else "",
            f"fix: {row.fix}" if row.fix and last[row.name, row.fix] == number else "",
        ):
            yield from (_shifted(line, width, below) for line in _wrapped(text, width, below, 2))


def _beside(shown: str, plain: str, size: int, text: str, width: int) -> Iterator[str]:
    """Text in a column beside a head; below it where one of them is too long for that."""
    least = len(plain) - len(plain.lstrip()) + 2
    if not plain.strip():
        yield from _wrapped(text, width, len(plain), 0)
        return
    narrow = width - size < _MIN_ROOM
    wrapped = _wrapped(text, width, least if narrow else size, 0)
    if not wrapped:
        yield shown.rstrip()
        return
    alone = len(wrapped[0]) > width
    if narrow or alone or len(plain.rstrip()) > size - 2:
        yield from [shown.rstrip()] if len(plain.rstrip()) <= width else shown.split()
    else:
        yield shown + " " * (size - len(plain)) + wrapped.pop(0).strip()
    yield from (_shifted(line, width, least) for line in wrapped)


def _shifted(line: str, width: int, least: int) -> str:
    """A name that does not fit there stands further left."""
    if len(line) <= width:
        return line
    return " " * max(least, width - len(line.strip())) + line.strip()


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> Iterator[str]:
    """Columns where they fit, the roomiest wrapped at spaces; else one record after the other."""
    every = [columns, *rows]
    widths = _widths(every)
    words = [
        [word for cell in column for word in cell.split()] for column in zip(*every, strict=True)
    ]
    least = [max(map(len, those), default=0) for those in words]
    while sum(widths) + 2 * len(widths) > width:
        room, at = max(
            (size - floor, at) for at, (size, floor) in enumerate(zip(widths, least, strict=True))
        )
        if room <= 0 or widths[at] <= _MIN_CELL:
            yield from _records(columns, rows, width)
            return
        widths[at] -= 1
    yield from _aligned(every, widths)


def _widths(rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*rows, strict=True)]


def _aligned(rows: Sequence[Sequence[str]], widths: Sequence[int]) -> Iterator[str]:
    """The first row is the headings; cells are wrapped in their columns."""
    for number, row in enumerate(rows):
        parts = [_wrapped(cell, size, 0, 0) for cell, size in zip(row, widths, strict=True)]
        for cells in zip_longest(*parts, fillvalue=""):
            padded = (cell.ljust(size) for cell, size in zip(cells, widths, strict=True))
            line = f"  {_GAP.join(padded)}".rstrip()
            yield click.style(line, dim=True) if number == 0 else _coloured(line, row)


def _short(cell: str) -> str:
    """A cell of an overview, with digests shortened and the ids of many devices counted."""
    if _DEVICES.fullmatch(cell):
        return str(cell.count(",") + 1)
    return _DIGEST.sub(lambda match: match[1][:_SHORT] + "...", _safe(cell))


def _coloured(line: str, cells: Sequence[str]) -> str:
    """A row whose cells name a bad state is red."""
    return _styled(line, "bad") if any(tone(cell) == "bad" for cell in cells) else line


def _records(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> Iterator[str]:
    size = max(map(len, columns[1:]), default=0)
    for row in rows:
        yield from _wrapped(row[0] or "-", width, 2, 2)
        for name, value in zip(columns[1:], row[1:], strict=True):
            if value:
                plain = f"    {name.ljust(size)}"
                yield from _beside(plain, plain, size + 6, value, width)


def _wrapped(text: str, width: int, indent: int, hanging: int) -> list[str]:
    """Text wrapped at its spaces, below a margin."""
    margin = " " * indent
    return textwrap.wrap(
        _safe(text),
        max(width, 1),
        initial_indent=margin,
        subsequent_indent=margin + " " * hanging,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _verdict(line: str, word: str) -> str:
    """The line with the verdict's word in its colour."""
    return _styled(word, tone(word), bold=True) + line.removeprefix(word)


def _styled(text: str, kind: str, **more: Any) -> str:
    style = {**_STYLES[kind], **more}
    return click.style(text, **style) if style and text else text


def _safe(text: str) -> str:
    return printable(text, keep="")
