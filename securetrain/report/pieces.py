# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The pieces that pages on a terminal are made of.

Facts stand under their names; words are wrapped, digests never, so that they can be copied. A table
is fitted to the terminal; `lines` gives all of it, one row a line. Whatever comes from elsewhere is
printed as text, never as markup, and made printable first.
"""

import shutil
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import click
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from securetrain.core import printable

_MIN_TEXT: Final = 30


def plain() -> Console:
    """A console without markup (subjects hold square brackets) and without highlighting."""
    return Console(markup=False, highlight=False)


def wide() -> Console:
    """A console whose lines are not wrapped: they are searched and copied."""
    return Console(highlight=False, soft_wrap=True)


def safe(text: str) -> str:
    """One line of printable text."""
    return printable(text, keep="")


def title(text: str, label: str = "") -> None:
    """A heading, and what everything below it is worth."""
    tail = f"  {click.style(safe(label), fg='yellow', bold=True)}" if label else ""
    click.echo(click.style(safe(text), bold=True) + tail)


def say(text: str) -> None:
    """A sentence, wrapped."""
    click.echo("\n".join(_wrapped(text, 0)))


def warn(text: str) -> None:
    """A remark that must be seen."""
    click.echo("  " + click.style("! " + "\n    ".join(_wrapped(text, 4)), fg="yellow"))


def facts(rows: Iterable[tuple[str, str]], bad: Callable[[int], bool] = lambda _: False) -> None:
    """``name  value`` in rows, words wrapped below themselves; `bad` rows, by number, in red."""
    every = list(rows)
    width = max((len(name) for name, _ in every), default=0)
    for number, (name, value) in enumerate(every):
        head = click.style(safe(name).ljust(width), dim=True)
        words = _wrapped(value, width + 4) or [""]
        shown = [click.style(line, fg="red") if bad(number) else line for line in words]
        click.echo(f"  {head}  " + ("\n" + " " * (width + 4)).join(shown))


def lines(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table in full, one row a line."""
    every = [tuple(columns), *(tuple(map(safe, row)) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*every, strict=True)]
    for number, row in enumerate(every):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        line = f"  {'  '.join(cells)}".rstrip()
        click.echo(click.style(line, dim=True) if number == 0 else line)


def bare_table(*columns: str, wrapped: str = "") -> Table:
    """A table without lines; only the column `wrapped` is wrapped, all when none is named."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        no_wrap = bool(wrapped) and column != wrapped
        table.add_column(column, overflow="ellipsis" if wrapped else "fold", no_wrap=no_wrap)
    return table


def indented(what: Table | Text, by: int) -> Padding:
    """Something that stands `by` columns to the right."""
    return Padding(what, (0, 0, 0, by))


def _wrapped(text: str, indent: int) -> list[str]:
    width = max(shutil.get_terminal_size().columns - indent, _MIN_TEXT)
    return textwrap.wrap(safe(text), width, break_long_words=False, break_on_hyphens=False)
