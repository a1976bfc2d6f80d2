# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The one place that prints a document, or turns it into the text of a file.

A renderer is loaded when its format is asked for: an audit that prints JSON loads no other.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import click

from securetrain.core import printable
from securetrain.core.files import whole_file
from securetrain.report.document import Document

WIDTH: Final = 80
MAX_WIDTH: Final = 120
MIN_WIDTH: Final = 40
ENDINGS: Final[Mapping[str, str]] = {
    ".json": "json",
    ".sarif": "sarif",
    ".xml": "junit",
    ".html": "html",
    ".md": "markdown",
}
"""The format of a file, by the ending of its name."""


def emit(document: Document, output: str, *, quiet: bool = False, verbose: bool = False) -> int:
    """Print a document in one format; the exit code of the command.

    Args:
        document: It.
        output: The format.
        quiet: Whether text is the verdict's line alone.
        verbose: Whether text leaves out nothing.
    """
    if output != "text":
        for piece in _pieces(document, output):
            click.echo(piece, nl=False)
        return document.exit_code
    from securetrain.report.render import text

    if document.answer:
        click.echo(printable(document.answer, keep="\n"))
        sys.stdout.flush()
    lines = text.lines(document, width(), quiet=quiet, verbose=verbose)
    click.echo("".join(f"{line}\n" for line in lines), nl=False, err=document.answer is not None)
    return document.exit_code


def written(document: Document, output: str, into: Path | None = None) -> str:
    """The text of a document in a format; text is as wide as for anything but a terminal.

    Args:
        document: It.
        output: The format.
        into: A file that gets it, whole or not at all: then nothing is returned.

    Raises:
        UsageError: ST-USAG-004 when a page needs the report extra; those of `whole_file`.
    """
    if into is None:
        return b"".join(_pieces(document, output)).decode()
    with whole_file(into) as file:
        file.writelines(_pieces(document, output))
    return ""


def _pieces(document: Document, output: str) -> Iterator[bytes]:
    """Yield it piece by piece: an audit of many machines is too large to be held."""
    match output:
        case "json":
            yield from _json(document.data)
        case "text":
            from securetrain.report.render import text

            for line in text.lines(document, WIDTH):
                yield f"{click.unstyle(line)}\n".encode()
        case "sarif" | "junit" | "markdown":
            from securetrain.report.render import ci

            for piece in getattr(ci, output)(document):
                yield piece.encode()
        case "html":
            from securetrain.report.render import html

            yield html.render(document).encode()
        case _:
            raise ValueError(f"unknown format {output!r}")


def _json(data: Any) -> Iterator[bytes]:
    """Yield the pieces of JSON; plain values are sorted, and times and paths are text."""
    if callable(data):
        yield from data()
    elif isinstance(data, str):
        yield data.encode()
    else:
        yield json.dumps(data, indent=2, sort_keys=True, default=str).encode()
    yield b"\n"


def width() -> int:
    """The columns of a terminal within bounds, and eighty of anything else."""
    if not sys.stdout.isatty():
        return WIDTH
    import shutil  # it brings three ways to compress

    return max(MIN_WIDTH, min(shutil.get_terminal_size().columns, MAX_WIDTH))
