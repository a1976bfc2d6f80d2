# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The pages of ``securetrain fleet``: the state of a fleet, for terminals, programs and browsers.

The rules of the HTML page are those of `html`.
"""

from dataclasses import asdict
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from securetrain import __version__
from securetrain.attest.fleet import FleetStatus
from securetrain.core import ExitCode
from securetrain.core.files import write_atomic
from securetrain.core.vocabulary import tier_label
from securetrain.report.document import Document, moment, plural
from securetrain.report.pieces import facts, lines, say, title, warn
from securetrain.report.templating import rendered

TEMPLATE: Final = "fleet.html.j2"
MAX_ROWS: Final = 5000
"""Nodes in a page; beyond, those that are barred or hold no lease come first."""
_SHOWN: Final = 20


def status_page(status: FleetStatus, written: Path | None = None) -> Document:
    """The state of a fleet. Exit code 3 when a part is not known, or something ends soon."""

    def text() -> None:
        title(f"{status.place}: version {status.version}, {moment(status.at)}")
        facts([(name, f"{value} {note}".strip()) for name, value, note, _ in tiles(status)])
        for problem in status.problems:
            warn(problem)
        for one in status.soon:
            warn(f"{one.kind} {one.name}: {left(one.ends, status.at)}")
        if status.nodes:
            lines(
                ("node", "group", "tier", "lease", "last evidence", "job"),
                [row[:6] for row in rows(status)],
            )
        for entry in status.revoked:
            title(entry.subject, "BARRED")
            facts([("since", entry.since), ("reason", entry.reason)])
        short = [one for one in status.endings if one not in status.soon and one.kind != "lease"]
        if short:
            title("next to end")
            facts((one.kind, f"{one.name}: {left(one.ends, status.at)}") for one in short[:_SHOWN])
            if len(short) > _SHOWN:
                say(f"  and {len(short) - _SHOWN} more: --json")
        if written is not None:
            say(f"{written}: the page")

    data = {**asdict(status), "soon": [asdict(one) for one in status.soon]}
    code = ExitCode.OK if status.complete else ExitCode.INCOMPLETE
    return Document(data=data, text=text, exit_code=int(code))


def rows(status: FleetStatus) -> list[tuple[str, str, str, str, str, str, str, str]]:
    """The columns of each node; at the end why it is barred, and the state for its colour."""
    found = []
    for node in status.nodes:
        live = node.lease is not None and node.lease > status.at
        state = "bad" if node.barred else "good" if live else "none"
        lease = left(node.lease, status.at) if node.lease is not None else "none"
        found.append(
            (
                node.name,
                node.group or "-",
                tier_label(node.tier) if node.tier is not None else "not seen",
                "BARRED" if node.barred else lease,
                moment(node.evidence) if node.evidence is not None else "never",
                node.job or ("-" if node.enrolled else "not enrolled"),
                node.barred,
                state,
            )
        )
    return found


def tiles(status: FleetStatus) -> list[tuple[str, str, str, str]]:
    """The few numbers at the top: name, value, note, and a state for its colour."""
    enrolled = sum(node.enrolled for node in status.nodes)
    soon, problems = len(status.soon), len(status.problems)
    groups = len({node.group for node in status.nodes if node.group})
    return [
        ("nodes", str(len(status.nodes)), f"({enrolled} enrolled)", "plain"),
        ("image groups", str(groups), "", "plain"),
        ("leases", str(status.leases), "", "good" if status.leases else "plain"),
        ("barred", str(len(status.revoked)), "", "bad" if status.revoked else "good"),
        ("ends soon", str(soon), "", "warn" if soon else "good"),
        ("not known", str(problems), "", "bad" if problems else "good"),
    ]


def left(ends: datetime, now: datetime) -> str:
    """The time until a moment, for people."""
    away = abs(ends - now)
    if away < timedelta(hours=2):
        span = plural(int(away.total_seconds()) // 60, "minute")
    elif away < timedelta(days=2):
        span = plural(int(away.total_seconds()) // 3600, "hour")
    else:
        span = plural(away.days, "day")
    return f"ended {span} ago" if ends <= now else f"{span} left"


def write_status(status: FleetStatus, path: Path) -> Path:
    """Write the HTML page, whole or not at all.

    Raises:
        UsageError: ST-USAG-002 or 006 when it cannot be written, ST-USAG-004 without jinja2.
    """
    write_atomic(path, render(status).encode())
    return path


def render(status: FleetStatus) -> str:
    """The page."""
    order = {"bad": 0, "none": 1, "good": 2}
    found = sorted(rows(status), key=lambda row: (order[row[-1]], row[0]))
    return rendered(
        TEMPLATE,
        heading="securetrain fleet",
        version=__version__,
        status=status,
        at=moment(status.at),
        tiles=tiles(status),
        rows=found[:MAX_ROWS],
        hidden=max(0, len(found) - MAX_ROWS),
        endings=[
            (one.kind, one.name, moment(one.ends), left(one.ends, status.at), one in status.soon)
            for one in status.endings
            if one.kind != "lease"
        ][:MAX_ROWS],
    )


def moved(place: str) -> Document:
    """The database that a machine's coordinators share their state in from now on."""
    text = [f"{place}: the fleet's state is kept there from now on", "start coordinators again"]
    return Document(data={"place": place}, text=text)
