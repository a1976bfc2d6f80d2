# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The one place that prints a document, or turns it into the text of a file.

A renderer is loaded when its format is asked for: an audit that prints JSON loads no other.
"""

import json
import shutil
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Final

import click

from securetrain.core import printable
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
        pieces = _json(document.data) if output == "json" else [written(document, output)]
        for piece in pieces:
            click.echo(piece, nl=False)
        return document.exit_code
    from securetrain.report.render import text

    if document.answer:
        click.echo(printable(document.answer, keep="\n"))
        sys.stdout.flush()
    lines = text.lines(document, width(), quiet=quiet, verbose=verbose)
    click.echo("".join(f"{line}\n" for line in lines), nl=False, err=document.answer is not None)
    return document.exit_code


def written(document: Document, output: str) -> str:
    """The text of a file in a format; text is as wide as for anything but a terminal.

    Raises:
        UsageError: ST-USAG-004 when a page needs the report extra.
    """
    match output:
        case "text":
            from securetrain.report.render import text

            return "".join(f"{click.unstyle(line)}\n" for line in text.lines(document, WIDTH))
        case "json":
            return b"".join(_json(document.data)).decode()
        case "sarif" | "junit" | "markdown":
            from securetrain.report.render import ci

            if output == "sarif":
                return json.dumps(ci.sarif(document), indent=2) + "\n"
            return ci.junit(document) if output == "junit" else ci.markdown(document)
        case "html":
            from securetrain.report.render import html

            return html.render(document)
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
    return max(MIN_WIDTH, min(shutil.get_terminal_size().columns, MAX_WIDTH))
