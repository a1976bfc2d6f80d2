# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The picture of a job with its twelve trust boundaries: where everything stands.

Positions only; the template draws them. Boxes are the parties of a job, a badge stands on the flow
or the wall that its boundary guards. States are told by words and signs, not by colour alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from securetrain.core.vocabulary import Boundary
from securetrain.report.model import BoundaryState, BoundaryView

WIDTH: Final = 1130
HEIGHT: Final = 600
BADGE_WIDTH: Final = 152
BADGE_HEIGHT: Final = 42

SIGNS: Final[Mapping[BoundaryState, str]] = {
    BoundaryState.CHECKED: "check",
    BoundaryState.PARTIAL: "bang",
    BoundaryState.REFUSED: "cross",
    BoundaryState.FAILED: "cross",
    BoundaryState.UNKNOWN: "question",
    BoundaryState.NOT_CROSSED: "dash",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A party of the job."""

    x: int
    y: int
    width: int
    height: int
    title: str
    lines: tuple[str, ...] = ()
    kind: str = "party"


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """An arrow, as an SVG path."""

    path: str
    both: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Badge:
    """A boundary on the picture."""

    x: int
    y: int
    view: BoundaryView
    sign: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """Everything that the template draws, in order."""

    boxes: tuple[Box, ...]
    flows: tuple[Flow, ...]
    badges: tuple[Badge, ...]
    description: str


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


def draw(views: Sequence[BoundaryView], ranks: Sequence[int]) -> Picture:
    """Lay out the boundaries' states around a job with these ranks."""
    first, last = _workers(ranks)
    boxes = (
        Box(
            x=30, y=30, width=192, height=86, title="You",
            lines=("policy, job file,", "trust root"),
        ),
        Box(
            x=470, y=30, width=180, height=86, title="Coordinator",
            lines=("admits nodes,", "signs the membership"),
        ),
        Box(
            x=916, y=30, width=190, height=86, title="Ledger",
            lines=("every decision,", "signed and chained"),
        ),
        Box(
            x=30, y=350, width=130, height=86, title="Code",
            lines=("torch, packages,", "plug-ins"),
        ),
        Box(x=300, y=250, width=520, height=306, title="", kind="node"),
        Box(x=336, y=304, width=128, height=178, title=first, lines=("launcher shim,", "guard")),
        Box(x=656, y=304, width=128, height=178, title=last, lines=("launcher shim,", "guard")),
        Box(
            x=978, y=290, width=128, height=86, title="Dataset",
            lines=("signed,", "read verified"),
        ),
        Box(
            x=978, y=410, width=128, height=86, title="Checkpoints",
            lines=("hashed, signed,", "with lineage"),
        ),
    )  # fmt: skip
    flows = (
        Flow(path="M222 73 H470"),
        Flow(path="M126 116 V270 H300"),
        Flow(path="M560 116 V250", both=True),
        Flow(path="M160 393 H336"),
        Flow(path="M464 333 H656", both=True),
        Flow(path="M464 393 H656", both=True),
        Flow(path="M464 453 H656", both=True),
        Flow(path="M978 333 H784"),
        Flow(path="M784 453 H978"),
        Flow(path="M650 73 H916"),
    )
    by_name = {view.boundary: view for view in views}
    badges = tuple(
        Badge(x=x, y=y, view=by_name[boundary], sign=SIGNS[by_name[boundary].state])
        for boundary, (x, y) in _PLACES.items()
    )
    words = "; ".join(f"{view.boundary}: {view.state} ({view.label})" for view in views)
    return Picture(boxes=boxes, flows=flows, badges=badges, description=f"{words}.")


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
