# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A document as one HTML page that needs nothing else.

Rules: everything that comes from elsewhere is escaped; there are no scripts and no addresses of
other machines, and a content security policy in the page says so; drawings are inline SVG; the page
reads without colour, in light and dark, on paper and by a screen reader. Rows that are open stand
first, the worst first, whatever section they belong to.
"""

from pathlib import Path
from typing import Final

from securetrain import __version__
from securetrain.core.files import write_atomic
from securetrain.report.document import Document, Section, open_rows, tone
from securetrain.report.graph.templating import rendered

TEMPLATE: Final = "page.html.j2"
MAX_ROWS: Final = 5000
MAX_DETAILS: Final = 500


def write(document: Document, path: Path) -> Path:
    """Write the page, whole or not at all, and return its path.

    Raises:
        UsageError: ST-USAG-002 or 006 when it cannot be written, ST-USAG-004 when the report extra
            is not installed.
    """
    write_atomic(path, render(document).encode())
    return path


def render(document: Document) -> str:
    """The page.

    Raises:
        UsageError: ST-USAG-004 when the report extra is not installed.
    """
    found = open_rows(document.sections)
    untitled = [row for one in document.sections if not one.title for row in one.rows]
    bare = [row for row in untitled if not row.name and not row.open]
    sections = [one for one in document.sections if one.title and not _is_found(one)]
    drawn = next((at for at, one in enumerate(sections, 1) if one.figure is not None), 0)
    judged = bool(found) or any(row.passed for one in document.sections for row in one.rows)
    notices = document.findings.notices if document.findings is not None else ()
    return rendered(
        TEMPLATE,
        document=document,
        version=__version__,
        head=[row for row in untitled if row.name],
        labels=sorted({one.label for one in document.sections if one.label and not one.title}),
        notices=[*notices, *(one.text for one in bare if tone(one.state) == "bad")],
        notes=[one.text for one in bare if tone(one.state) != "bad"],
        first=sections[:drawn],
        judged=judged,
        found=found,
        rest=sections[drawn:],
        passed=[
            (one.title, rows)
            for one in document.sections
            if (rows := [row for row in one.rows if row.passed])
        ],
        rows=MAX_ROWS,
        most=MAX_DETAILS,
    )


def _is_found(section: Section) -> bool:
    """True for a section of findings: its open rows stand first, those that passed last."""
    return bool(section.rows) and all(row.passed or row.open for row in section.rows)
