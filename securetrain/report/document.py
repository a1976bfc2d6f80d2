# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""One answer of a command, for people and for programs; `emit` is the one place that prints it.

Lines of plain text are made printable here: a name from elsewhere never repaints a terminal.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import click

from securetrain.core import printable


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One answer in every format that it has."""

    text: Sequence[str] | Callable[[], None]
    """For people: plain lines, or what prints them."""
    data: Any = None
    """For ``json``: plain values, or JSON that is written already."""
    machine: Mapping[str, Callable[[], str]] = field(default_factory=dict)
    """Other formats by name."""
    exit_code: int = 0


def emit(document: Document, output: str, *, quiet: bool = False, verbose: bool = False) -> int:
    """Print a document in one format; the exit code of the command.

    Args:
        document: It.
        output: The format.
        quiet: Whether text is the verdict's line alone.
        verbose: Whether text leaves out nothing.
    """
    del verbose  # no page leaves out anything yet
    text, data = document.text, document.data
    if quiet and output == "text":
        text = text[:1] if isinstance(text, Sequence) else ()
    match output:
        case "json":
            click.echo(data if isinstance(data, str) else to_json(data))
        case "text" if isinstance(text, Sequence):
            click.echo("".join(f"{printable(line, keep='')}\n" for line in text), nl=False)
        case "text":
            assert callable(text)
            text()
        case name if name in document.machine:
            click.echo(document.machine[name](), nl=False)
        case _:
            raise ValueError(f"unknown format {output!r}")
    return document.exit_code


def to_json(data: object) -> str:
    """Plain values as JSON, sorted; times and paths as text."""
    return json.dumps(data, indent=2, sort_keys=True, default=str)


def aligned(rows: Sequence[tuple[str, str]], width: int = 0) -> list[str]:
    """Lines of names and values, the values below each other."""
    width = max([width, *(len(name) for name, _ in rows)])
    return [f"{name:{width}}  {value}" for name, value in rows]


def moment(time: datetime) -> str:
    """A time in UTC, to the second."""
    return f"{time:%Y-%m-%dT%H:%M:%SZ}"


def plural(count: int, noun: str, many: str = "") -> str:
    """``1 problem``, ``2 problems``."""
    return f"{count} {noun if count == 1 else many or noun + 's'}"
