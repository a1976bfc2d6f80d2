# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The slices of a piece that are sketched, worked out once and used in every step.

A piece has the same parts, groups and first moments step after step. So where each slice begins,
which signs it has and which row it is added to is kept by the piece's name, and a step only looks
up where the numbers are now: one table for the kernel instead of a hundred small objects. Nothing
that a seed or a gradient says is kept. Numbers that the kernel cannot take are sketched by
`sketch_runs`, slice by slice; the same slices in the same order, so that both ways give the same
bits where the kernel does the work.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from securetrain.guard.sketch import Run, SketchParameters, addressed, sketch_addressed, sketch_runs

Sizes: TypeAlias = tuple[tuple[int, int], ...]
"""Of the slices of a moment: where the first number of each is in the result, and how many."""
Spans: TypeAlias = tuple[tuple[str, int, int], ...]
"""Names, begins and ends of the groups in a flat piece."""
_LOCAL: Final = 0
_RESULT: Final = 1
_KEPT: Final = 1024
"""Pieces whose layouts are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """All that a layout depends on."""

    numel: int
    """Of one part."""
    parts: int
    part: int
    result: int
    """Numbers in the result."""
    spans: Spans
    moment: Sizes


class Layout:
    """The slices of one piece: of the local numbers, then the result, then the first moment.

    Args:
        shape: of the piece.

    Raises:
        ValueError: a slice is outside of its part.
    """

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.height = shape.parts + 2
        """Rows of one group: its parts, what was received, the moment."""
        slices = list(_slices(shape))
        for source, begin, part, offset, count, row in slices:
            inside = 0 <= offset <= shape.numel - count and 0 <= part < shape.parts
            if not inside or begin < 0 or not 0 <= row < self.rows:
                raise ValueError(
                    f"{count} numbers of source {source} at {offset} of part {part}, row {row}, are"
                    f" outside of {shape.parts} parts of {shape.numel} and {self.rows} rows"
                )
        self._table = np.array([one for one in slices if one[4]], dtype=np.int64).reshape(-1, 6)
        self._sizes = (shape.parts * shape.numel, shape.result, *(size for _, size in shape.moment))

    @property
    def rows(self) -> int:
        """Sketches that come out."""
        return self.height * len(self.shape.spans)

    def sketch(self, sources: Sequence[Tensor], fresh: SketchParameters) -> Tensor:
        """Sketch a piece: (rows, size).

        Args:
            sources: the local numbers, the result, and the slices of the moment.
            fresh: the signs.

        Raises:
            ValueError: it has another shape than was said.
        """
        if tuple(one.numel() for one in sources) != self._sizes:
            raise ValueError("a piece changed while it was sketched")
        if (fresh.parts, fresh.numel) != (self.shape.parts, self.shape.numel):
            raise ValueError("signs of another piece")
        where = addressed(sources, fresh)
        if where is not None:
            return sketch_addressed(self._runs(where, fresh), fresh, rows=self.rows)
        flat = [one.detach().reshape(-1) for one in sources]
        runs = (
            Run(flat[source][begin : begin + count], part, offset, row)
            for source, begin, part, offset, count, row in self._table.tolist()
        )
        return sketch_runs(runs, fresh, rows=self.rows)

    def _runs(self, where: NDArray[np.int64], fresh: SketchParameters) -> NDArray[np.int64]:
        """The table for the kernel: address, kind, first number, count and row of each slice."""
        source, begin, part, offset, count, row = self._table.T
        address, kind, width = where[source].T
        first = fresh.first_of(part) + offset
        return np.stack([address + begin * width, kind, first, count, row], axis=1)


class Layouts:
    """The layouts of the pieces of one model, by name."""

    def __init__(self) -> None:
        self._known: dict[str, Layout] = {}

    def of(self, name: str, shape: Shape) -> Layout:
        """The layout of a piece; a new one where the piece is not what it was."""
        known = self._known.get(name)
        if known is None or known.shape != shape:
            if len(self._known) >= _KEPT:
                self._known.clear()
            known = self._known[name] = Layout(shape)
        return known


def _slices(shape: Shape) -> Iterator[tuple[int, ...]]:
    """Source, begin in it, part, offset in the part, count and row."""
    height, spans = shape.parts + 2, shape.spans
    starts = [start for _, start, _ in spans]
    if shape.parts > 1:  # of one group
        for part in range(shape.parts):
            yield _LOCAL, part * shape.numel, part, 0, shape.numel, part
        ends, starts = [shape.numel], [0]
    else:
        ends = [stop for _, _, stop in spans]
        for begin, at, count, group in _cut(0, shape.numel, starts, ends):
            yield _LOCAL, begin, 0, at, count, group * height
    moments: list[tuple[int, int, int]] = [
        (_RESULT + 1 + i, first, size) for i, (first, size) in enumerate(shape.moment)
    ]
    for source, first, size in [(_RESULT, 0, shape.result), *moments]:
        place = shape.parts + int(source != _RESULT)
        for begin, at, count, group in _cut(first, size, starts, ends):
            yield source, begin, shape.part, at, count, group * height + place


def _cut(
    first: int, size: int, starts: Sequence[int], ends: Sequence[int]
) -> Iterator[tuple[int, int, int, int]]:
    """Cut a slice where a group ends: begin in it, offset in the part, count and group."""
    at, end = first, first + size
    while at < end:
        group = bisect_right(starts, at) - 1
        stop = end if group + 1 == len(starts) else min(end, ends[group])
        yield at - first, at, stop - at, group
        at = stop


def spans_of(segments: Sequence[Any]) -> Spans:
    """The names and bounds of segments, to be compared quickly."""
    return tuple((one.group, one.start, one.stop) for one in segments)
