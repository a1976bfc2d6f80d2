# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Draw who talks to whom along each axis of a mesh: the pictures of docs/explanation/parallelism.

``python tools/parallel_pictures.py`` writes docs/assets/parallel/*.svg. Groups come from the code
that `securetrain plan` prints them with, so that a picture cannot disagree with it.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import Circle, FancyBboxPatch, PathPatch
from matplotlib.path import Path as Curve

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from securetrain.parallel.degrees import Axis, Degrees
from securetrain.train.planning.axis_groups import Groups, groups_of

OUT: Final = Path(__file__).resolve().parent.parent / "docs" / "assets" / "parallel"
PER_NODE: Final = 4
GAP: Final = 0.7
COLOURS: Final = {
    Axis.PP: "#b5542b",
    Axis.DP_REPLICATE: "#3b6ea5",
    Axis.DP_SHARD: "#2f8f6b",
    Axis.CP: "#8a5fb0",
    Axis.TP: "#c79a1e",
    Axis.EP: "#b0386b",
}


@dataclass(frozen=True, kw_only=True)
class Picture:
    """One mesh of eight ranks on two nodes."""

    name: str
    degrees: Degrees
    holds: tuple[str, ...]
    """What each rank has, in two short lines."""
    says: Mapping[Axis, str]
    """What travels along each axis."""


PICTURES: Final = (
    Picture(
        name="data",
        degrees=Degrees(dp_replicate=8),
        holds=tuple(f"the model\nrows {2 * n}, {2 * n + 1}" for n in range(8)),
        says={Axis.DP_REPLICATE: "gradients, once a step (all-reduce)"},
    ),
    Picture(
        name="sharded",
        degrees=Degrees(dp_shard=8),
        holds=tuple(f"1/8 of all\nrows {2 * n}, {2 * n + 1}" for n in range(8)),
        says={Axis.DP_SHARD: "parameters of each block (gather), gradients (reduce-scatter)"},
    ),
    Picture(
        name="hybrid",
        degrees=Degrees(dp_replicate=2, dp_shard=4),
        holds=tuple(f"1/4 of all\nrows {2 * n}, {2 * n + 1}" for n in range(8)),
        says={
            Axis.DP_SHARD: "parameters and gradients, inside a node",
            Axis.DP_REPLICATE: "gradients of a quarter, between nodes",
        },
    ),
    Picture(
        name="tensor",
        degrees=Degrees(dp_shard=2, tp=4),
        holds=tuple(f"quarter {n % 4}\nrows of {n // 4}" for n in range(8)),
        says={
            Axis.TP: "activations, four times in every block",
            Axis.DP_SHARD: "parameters and gradients",
        },
    ),
    Picture(
        name="pipeline",
        degrees=Degrees(pp=4, dp_shard=2),
        holds=tuple(f"layers {8 * (n // 2)}-{8 * (n // 2) + 7}\nrows of {n % 2}" for n in range(8)),
        says={
            Axis.PP: "hidden states forward, their gradients back",
            Axis.DP_SHARD: "parameters and gradients of a stage",
        },
    ),
    Picture(
        name="context",
        degrees=Degrees(dp_shard=2, cp=4),
        holds=tuple(f"pieces {n % 4}, {7 - n % 4}\nrows of {n // 4}" for n in range(8)),
        says={
            Axis.CP: "keys and values, in every block",
            Axis.DP_SHARD: "parameters and gradients",
        },
    ),
    Picture(
        name="expert",
        degrees=Degrees(dp_shard=8, ep=4),
        holds=tuple(f"experts {2 * (n % 4)}, {2 * (n % 4) + 1}\nrows of {n}" for n in range(8)),
        says={
            Axis.EP: "tokens to their experts and back",
            Axis.DP_SHARD: "everything that is not an expert",
        },
    ),
    Picture(
        name="composed",
        degrees=Degrees(pp=2, dp_shard=2, tp=2),
        holds=tuple(f"stage {n // 4}\nhalf {n % 2}\nrows of {n // 2 % 2}" for n in range(8)),
        says={
            Axis.TP: "activations: the most, so the nearest",
            Axis.DP_SHARD: "parameters and gradients",
            Axis.PP: "hidden states: the least, so the farthest",
        },
    ),
)


def draw(picture: Picture, path: Path) -> None:
    """Write one picture."""
    figure, axes = plt.subplots(figsize=(9.2, 4.1))
    axes.set_xlim(-0.8, 7 + GAP + 0.8)
    axes.set_ylim(-1.75, 2.75)
    axes.set_aspect("equal")
    axes.axis("off")
    for node in range(2):
        _node(axes, node)
    for group in groups_of(picture.degrees, PER_NODE):
        _axis(axes, group, picture.degrees.world)
    for rank, text in enumerate(picture.holds):
        axes.add_patch(
            Circle((_x(rank), 0), 0.27, facecolor="#ffffff", edgecolor="#555555", lw=1.4)
        )
        axes.text(_x(rank), 0, str(rank), ha="center", va="center", fontsize=12)
        axes.text(_x(rank), -0.42, text, ha="center", va="top", fontsize=7.2, color="#555555")
    for number, (axis, text) in enumerate(picture.says.items()):
        axes.text(
            -0.7, 2.6 - 0.34 * number, f"{axis.value}: {text}", color=COLOURS[axis], fontsize=10.5
        )
    figure.savefig(path, format="svg", bbox_inches="tight", metadata={"Date": None})
    plt.close(figure)


def _node(axes: Axes, node: int) -> None:
    left, right = _x(node * PER_NODE) - 0.5, _x(node * PER_NODE + PER_NODE - 1) + 0.5
    axes.add_patch(
        FancyBboxPatch(
            (left, -1.25),
            right - left,
            1.7,
            boxstyle="round,pad=0.02,rounding_size=0.15",
            facecolor="#8080801a",
            edgecolor="#999999",
            lw=1,
        )
    )
    axes.text((left + right) / 2, -1.55, f"node {node}", ha="center", fontsize=9, color="#777777")


def _axis(axes: Axes, group: Groups, world: int) -> None:
    """Arcs between neighbours of every group of an axis."""
    for base in range(world):
        if base // group.stride % group.degree:
            continue
        members = [base + n * group.stride for n in range(group.degree)]
        for left, right in pairwise(members):
            _arc(axes, left, right, COLOURS[group.axis], 0.3 + 0.14 * list(Axis).index(group.axis))


def _arc(axes: Axes, left: int, right: int, colour: str, lift: float) -> None:
    a, b = _x(left), _x(right)
    height = min(1.6, lift + 0.26 * (b - a))
    curve = Curve(
        [(a, 0.27), (a, 0.27 + height), (b, 0.27 + height), (b, 0.27)],
        [Curve.MOVETO, Curve.CURVE4, Curve.CURVE4, Curve.CURVE4],
    )
    axes.add_patch(PathPatch(curve, fill=False, edgecolor=colour, lw=2, capstyle="round"))


def _x(rank: int) -> float:
    return rank + GAP * (rank // PER_NODE)


def main() -> int:
    """Write all pictures."""
    mpl.use("svg")
    mpl.rcParams |= {
        "svg.fonttype": "none",
        "svg.hashsalt": "securetrain",
        "font.family": "sans-serif",
    }
    OUT.mkdir(parents=True, exist_ok=True)
    for picture in PICTURES:
        draw(picture, OUT / f"{picture.name}.svg")
        print(OUT / f"{picture.name}.svg")
    return 0


if __name__ == "__main__":
    sys.exit(main())
