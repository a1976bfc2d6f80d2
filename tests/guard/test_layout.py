# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A piece sketched by its kept layout has the bits of the plain way, slice by slice."""

import dataclasses
from bisect import bisect_right
from typing import Any

import numpy as np
import pytest
import torch

from securetrain.guard.beacon import Draw
from securetrain.guard.collect import Collector, Piece, Segment
from securetrain.guard.layout import Layout, Layouts, Shape
from securetrain.guard.sketch import Run, SketchShape, derive, sketch_runs
from tests.tables import items
from tests.vocabulary import refused

SIZES = (1, 31, 8192, 8193, 20_000, 5)
SEGMENTS = tuple(
    Segment(f"g{i % 4}", sum(SIZES[:i]), sum(SIZES[: i + 1])) for i in range(len(SIZES))
)
WHOLE = sum(SIZES)
SEED = bytes(range(32))


def plainly(piece, segments, moment, fresh):
    """Each slice by itself, as it was done before layouts were kept."""

    def cut(slices, own):
        starts = [one.start for one in own]
        for first, numbers in slices:
            at, end = first, first + numbers.numel()
            while at < end:
                row = bisect_right(starts, at) - 1
                stop = end if row + 1 == len(own) else min(end, own[row].stop)
                yield at, numbers.reshape(-1)[at - first : stop - first], row
                at = stop

    height = piece.parts + 2
    runs: list[Run] = []
    if piece.parts > 1:
        parts = piece.local.view(piece.parts, fresh.numel)
        runs += [Run(part, index, 0, index) for index, part in enumerate(parts)]
        own = (Segment(segments[0].group, 0, fresh.numel),)
    else:
        runs += [Run(x, 0, at, row * height) for at, x, row in cut([(0, piece.local)], segments)]
        own = segments
    for slices, place in (([(0, piece.result)], piece.parts), (moment, piece.parts + 1)):
        runs += [Run(x, piece.part, at, row * height + place) for at, x, row in cut(slices, own)]
    rows = sketch_runs(runs, fresh, rows=height * len(segments))
    by_segment = rows.view(len(segments), height, -1)
    by_segment[:, : piece.parts] *= piece.local_scale
    by_segment[:, piece.parts] *= piece.result_scale
    return rows.numpy()


def moment_of(kind, numel, dtype=torch.float32):
    match kind:
        case "none":
            return ()
        case "one":
            return ((0, torch.randn(numel)),)
        case "gaps":  # a frozen parameter, padding at the end
            return ((3, torch.randn(numel // 2, dtype=dtype)), (numel - 40, torch.randn(31)))
        case "shaped":
            return ((1, torch.randn(numel // 8, 4)), (numel - 9, torch.randn(9)))
    raise AssertionError(kind)


def piece_of(parts, moment, **changes):
    numel = WHOLE if parts == 1 else 9000
    whole: dict[str, Any] = {
        "chunk": "c",
        "local": torch.randn(parts * numel),
        "parts": parts,
        "part": parts - 1,
        "result": torch.randn(numel),
        "result_scale": 1.0,
        "local_scale": 1.0,
        "wait": lambda: None,
        "segments": SEGMENTS if parts == 1 else (Segment("m", 0, parts * numel),),
        "moment": lambda: moment_of(moment, numel),
    }
    return Piece(**{**whole, **changes})


class Draws:
    """A beacon of one rank."""

    def draw(self, context):
        del context
        return Draw(seed=SEED, unopened=())


def collector_of(shape=None) -> Any:
    beacon: Any = Draws()
    return Collector(beacon, shape or SketchShape())


@pytest.mark.parametrize("keys", [1, 2])
@pytest.mark.parametrize("moment", ["none", "one", "gaps", "shaped"])
@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_bits_are_those_of_the_plain_way(parts, moment, keys, dtype):
    shape = SketchShape(keys=keys)
    piece = piece_of(parts, moment, local_scale=0.5, result_scale=0.25)
    held = moment_of(moment, piece.result.numel())
    local, result = piece.local.to(dtype), piece.result.to(dtype)
    piece = dataclasses.replace(piece, local=local, result=result, moment=lambda: held)
    collector = collector_of(shape)
    for _ in range(2):  # by a new layout, and by the one that was kept
        collector.add(piece)
        sketches = collector.end()
        fresh = derive(SEED, "0|c", numel=piece.result.numel(), parts=parts, shape=shape)
        rows = plainly(piece, piece.segments, held, fresh)
        rows = rows.reshape(len(piece.segments), parts + 2, -1)
        of_parts: Any = 0.0
        groups: dict[str, Any] = {}
        for segment, three in zip(piece.segments, rows, strict=True):
            of_parts = of_parts + three[:parts]
            said = np.stack([three[:parts].sum(axis=0), *three[parts:]])
            groups[segment.group] = groups.get(segment.group, 0.0) + said
        assert sketches.groups == tuple(groups)
        assert np.array_equal(sketches.parts, of_parts)
        said = np.stack([sketches.sent, sketches.received, sketches.moments], axis=1)
        assert np.array_equal(said, np.stack(list(groups.values())))


def test_numbers_that_moved_are_read_where_they_are_now():
    collector = collector_of()
    seen = []
    for _ in range(2):
        piece = piece_of(1, "one")
        collector.add(piece)
        seen.append(collector.end().sent)
        alone = collector_of()
        alone.add(piece)
        assert np.array_equal(alone.end().sent, seen[-1])
    assert not np.array_equal(*seen)


@items(
    "change",
    {"segments": (Segment("other", 0, WHOLE),)},
    {"moment": lambda: moment_of("gaps", WHOLE)},
    {"parts": 2, "part": 1, "segments": (), "result": torch.ones(WHOLE // 2)},
)
def test_a_piece_that_is_another_than_before_gets_another_layout(change):
    collector, plain = (collector_of() for _ in range(2))
    collector.add(piece_of(1, "one"))
    collector.end()
    piece = dataclasses.replace(piece_of(1, "one"), **change)
    held = piece.moment() if piece.parts == 1 else ()
    piece = dataclasses.replace(piece, moment=lambda: held)
    found = []
    for one in (collector, plain):
        one.add(piece)
        found.append(one.end())
    assert found[0].groups == found[1].groups
    for name in ("sent", "parts", "received", "moments"):
        assert np.array_equal(getattr(found[0], name), getattr(found[1], name)), name


def shape_of(**changes):
    spans = tuple((one.group, one.start, one.stop) for one in SEGMENTS)
    whole: dict[str, Any] = {
        "numel": WHOLE,
        "parts": 1,
        "part": 0,
        "result": WHOLE,
        "spans": spans,
        "moment": (),
    }
    return Shape(**{**whole, **changes})


@items(
    "changes",
    {"result": WHOLE + 1},
    {"moment": ((WHOLE - 3, 4),)},
    {"part": 1},
)
def test_a_slice_outside_of_its_part_is_refused(changes):
    refused(ValueError, "outside of", Layout, shape_of(**changes))


def test_what_is_sketched_is_as_long_as_what_was_laid_out():
    layout = Layout(shape_of())
    fresh = derive(SEED, "c", numel=WHOLE, parts=1, shape=SketchShape())
    refused(ValueError, "changed", layout.sketch, [torch.ones(WHOLE - 1), torch.ones(WHOLE)], fresh)
    other = derive(SEED, "c", numel=WHOLE + 1, parts=1, shape=SketchShape())
    with pytest.raises(ValueError, match="another piece"):
        layout.sketch([torch.ones(WHOLE), torch.ones(WHOLE)], other)


def test_layouts_are_kept_by_name_and_bounded():
    layouts = Layouts()
    first = layouts.of("a", shape_of())
    assert layouts.of("a", shape_of()) is first
    assert layouts.of("b", shape_of()) is not first
    for number in range(1100):
        layouts.of(str(number), shape_of(spans=(("all", 0, WHOLE),)))
    assert len(layouts._known) <= 1024
