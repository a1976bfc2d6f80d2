# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The HTML report: one file that needs nothing else.

Rules: everything that comes from a run is escaped; there are no scripts and no addresses of other
machines, and a content security policy in the page says so; drawings are inline SVG; the page reads
without colour, in light and dark, on paper and by a screen reader.
"""

from datetime import datetime
from pathlib import Path
from typing import Final

from securetrain import __version__
from securetrain.core import RunDir
from securetrain.core.files import write_atomic
from securetrain.core.vocabulary import Severity, State
from securetrain.report import guard_record, picture, plots
from securetrain.report.model import BoundaryState, FindingView, ProofState, RunRecord
from securetrain.report.run_record import read_run
from securetrain.report.templating import rendered

TEMPLATE: Final = "report.html.j2"
_ORDER: Final = (State.FAIL, State.UNKNOWN, State.WAIVED, State.PASS, State.NOT_APPLICABLE)


def write_report(run_dir: Path, now: datetime, out: Path | None = None) -> Path:
    """Write a run's report and return its path (`RunDir.report` when `out` is not given).

    Raises:
        UsageError: ST-USAG-002 not a run directory or not writable, ST-USAG-004 the report extra is
            not installed.
    """
    return write_page(read_run(run_dir, now), out or RunDir(run_dir).report)


def write_page(record: RunRecord, path: Path) -> Path:
    """Write the page for a record; see `write_report`."""
    write_atomic(path, render(record).encode())
    return path


def render(record: RunRecord) -> str:
    """The page for a record."""
    ranks = sorted({point.rank for point in record.guard.points}) if record.guard else []
    return rendered(
        TEMPLATE,
        record=record,
        version=__version__,
        picture=picture.draw(record.boundaries, ranks),
        badge=(picture.BADGE_WIDTH, picture.BADGE_HEIGHT),
        size=(picture.WIDTH, picture.HEIGHT),
        plots=plots.draw(record.metrics, record.guard),
        tiles=tiles(record),
        budget=guard_record.budget_words(record.guard) if record.guard else "",
        labels=sorted({label for view in record.boundaries for label in view.labels}),
        findings=sorted(record.audit.findings, key=_by_weight) if record.audit else [],
    )


def tiles(record: RunRecord) -> list[dict[str, str]]:
    """The few numbers at the top, each with a state for its colour."""
    crossed = [v for v in record.boundaries if v.state is not BoundaryState.NOT_CROSSED]
    refused = sum(view.state is BoundaryState.REFUSED for view in crossed)
    open_ones = sum(
        view.state in {BoundaryState.PARTIAL, BoundaryState.UNKNOWN} for view in crossed
    )
    bits = [p for p in record.metrics if p.val_bits_per_byte is not None]
    signed = sum(c.proof.state is ProofState.VERIFIED for c in record.checkpoints)
    held = sum(drill.ok for drill in record.drills)
    judged = record.guard
    return [
        _tile(
            "Boundaries crossed",
            f"{len(crossed)} of {len(record.boundaries)}",
            f"{refused} refused, {open_ones} with open points",
            "bad" if refused else "warn" if open_ones else "good",
        ),
        _tile(
            "Held-out loss",
            f"{bits[-1].val_bits_per_byte:.2f} bits/byte" if bits else "not recorded",
            f"bigram {bits[-1].bigram_bits:.2f}" if bits and bits[-1].bigram_bits else "",
            "plain",
        ),
        _tile(
            "Signed checkpoints",
            f"{signed} of {len(record.checkpoints)}",
            "signatures verified for this report",
            "plain" if not record.checkpoints else _good(signed == len(record.checkpoints)),
        ),
        _tile(
            "Gradient steps judged",
            str(judged.num_steps) if judged else "none",
            f"{len(judged.refused_steps)} refused, {len(judged.exclusions)} exclusions"
            if judged
            else "",
            "warn" if judged is None or judged.refused_steps else "good",
        ),
        _tile(
            "Drills held",
            f"{held} of {len(record.drills)}" if record.drills else "not run",
            "attack works on the plain stack, refused by ours" if record.drills else "",
            "plain" if not record.drills else _good(held == len(record.drills)),
        ),
    ]


def _good(value: bool) -> str:  # noqa: FBT001 - a truth value is what it is about
    return "good" if value else "bad"


def _tile(name: str, value: str, note: str, state: str) -> dict[str, str]:
    return {"name": name, "value": value, "note": note, "state": state}


def _by_weight(finding: FindingView) -> tuple[int, int, str]:
    severities = list(Severity)
    return _ORDER.index(finding.state), -severities.index(finding.severity), finding.check
