# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Pictures of pages: a job with its twelve trust boundaries, and a pack with all its links.

Positions only; the templates draw them. States are told by words and signs, not by colour alone. Of
a pack, green is verified, red is broken or required and missing, grey is missing or not asked, and
each link leads to its evidence by an anchor.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from securetrain.chain import Judged, Verdict
from securetrain.core.vocabulary import Boundary, ChainLink, LinkState
from securetrain.report.document import Section, table
from securetrain.report.graph.templating import rendered
from securetrain.report.run.model import BoundaryState, BoundaryView

# --- a job and its boundaries --------------------------------------------------------------------

_SIGNS: Final[Mapping[BoundaryState, str]] = {
    BoundaryState.CHECKED: "check",
    BoundaryState.PARTIAL: "bang",
    BoundaryState.REFUSED: "cross",
    BoundaryState.FAILED: "cross",
    BoundaryState.UNKNOWN: "question",
    BoundaryState.NOT_CROSSED: "dash",
}
_PLACES: Final[Mapping[Boundary, tuple[int, int]]] = {
    # left upper corners of the badges
    Boundary.IDENTITY: (270, 52),
    Boundary.SCHEDULER: (50, 178),
    Boundary.RENDEZVOUS: (484, 150),
    Boundary.SUPPLY_CHAIN: (172, 372),
    Boundary.HOST: (316, 228),
    Boundary.NODE: (652, 228),
    Boundary.NETWORK: (484, 312),
    Boundary.FABRIC: (484, 372),
    Boundary.GRADIENTS: (484, 432),
    Boundary.DEBUG: (484, 535),
    Boundary.DATASET: (806, 312),
    Boundary.CHECKPOINT: (806, 432),
}


def boundary_table(
    views: Sequence[BoundaryView],
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    ranks: Sequence[int] = (),
    **section: Any,
) -> Section:
    """The boundaries as a picture of a job with these ranks, and a table that it leads to."""
    figure = partial(boundaries, views, ranks)
    found = table(columns, rows, title="trust boundaries", figure=figure, **section)
    return replace(found, rows=[replace(row, anchor=f"b-{row.cells[0]}") for row in found.rows])


def boundaries(views: Sequence[BoundaryView], ranks: Sequence[int]) -> str:
    """The boundaries' states around a job with these ranks: a badge on the flow or the wall that
    each of them guards.
    """
    by_name = {view.boundary: view for view in views}
    words = "; ".join(f"{view.boundary}: {view.state} ({view.label})" for view in views)
    badges = [
        {"x": x, "y": y, "view": by_name[boundary], "sign": _SIGNS[by_name[boundary].state]}
        for boundary, (x, y) in _PLACES.items()
    ]
    return rendered(
        "picture.html.j2", badges=badges, workers=_workers(ranks), description=f"{words}."
    )


def _workers(ranks: Sequence[int]) -> tuple[str, str]:
    match len(ranks):
        case 0:
            return "Worker", "Worker"
        case 1:
            return f"Rank {ranks[0]}", "(no other)"
        case 2:
            return f"Rank {ranks[0]}", f"Rank {ranks[1]}"
        case count:
            return f"Rank {ranks[0]}", f"Ranks {ranks[1]}-{ranks[count - 1]}"


# --- a pack and its links ------------------------------------------------------------------------

MAX_CHECKPOINTS: Final = 50
"""Checkpoints in the graph; what is beyond is counted."""
_LEFT: Final = 6
_RIGHT: Final = len(ChainLink) - _LEFT
_STEP: Final = 62
_TOP: Final = 30
_MIDDLE: Final = _TOP + _RIGHT * _STEP // 2


def links(result: Verdict) -> str:
    """The graph of a pack that was verified, as it stands in a page."""
    shown = result.judged[:MAX_CHECKPOINTS]
    height = _TOP + _RIGHT * _STEP + 20
    return rendered(
        "graph.html.j2",
        title=_title(shown[0]),
        badges=list(_around(shown[0], result)),
        middle=_MIDDLE,
        rows=[
            _row(one, result, number, height - 40 + number * 70)
            for number, one in enumerate(shown[1:], 1)
        ],
        height=height + (40 + (len(shown) - 1) * 70 if len(shown) > 1 else 0),
        row_width=17 * len(ChainLink) + 26,
    )


def _title(judged: Judged) -> str:
    return f"step {judged.step}, {judged.digest[:12]}"


def _badge(judged: Judged, link: ChainLink, result: Verdict, **place: Any) -> dict[str, Any]:
    """A link of the graph: its state in words and as a colour, and where it is drawn."""
    state, required = judged.verdicts[link].state, link in result.required
    refuses = state is LinkState.BROKEN or (required and state is not LinkState.NOT_ASKED)
    kind = "checked" if state is LinkState.VERIFIED else "refused" if refuses else "grey"
    return {"link": str(link), "state": str(state), "required": required, "kind": kind, **place}


def _around(judged: Judged, result: Verdict) -> Iterator[dict[str, Any]]:
    """The links of the first checkpoint, on both sides of it."""
    lower = (_RIGHT - _LEFT) * _STEP // 2
    for number, link in enumerate(judged.verdicts):
        left = number < _LEFT
        x = 30 if left else 790
        y = _TOP + (number * _STEP + lower if left else (number - _LEFT) * _STEP)
        end, begin = (x + 310, 450) if left else (x, 680)
        bend = (end + begin) // 2
        wire = f"M{begin} {_MIDDLE} C{bend} {_MIDDLE} {bend} {y + 23} {end} {y + 23}"
        yield _badge(judged, link, result, x=x, y=y, anchor=f"c0-{link}", wire=wire)


def _row(judged: Judged, result: Verdict, number: int, y: int) -> dict[str, Any]:
    """An ancestor: its box, and a small square for each link."""
    badges = [
        _badge(judged, link, result, x=450 + 17 * at, y=y + 24, anchor=f"c{number}-{link}")
        for at, link in enumerate(judged.verdicts)
    ]
    return {"y": y, "title": f"run {judged.run[:40]}, {_title(judged)}", "badges": badges}
