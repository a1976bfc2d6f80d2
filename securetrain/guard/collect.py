# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Local gradients on their way: delivered, kept until the seed is drawn, sketched, forgotten.

A hook (hooks.py) hands over each piece of the local gradient **after** its collective was
started, with the collective's result. Pieces are kept until `retain_bytes` of them have gathered
or the step ends; then the collector waits until all of them are delivered, draws **one** seed for
the batch (beacon.py) and sketches local pieces, results and the optimizer's first moments. So a
small model costs one draw a step and a large one one draw per `retain_bytes`; the extra memory is
`retain_bytes` plus one piece.

Rows are added up twice, over the parts (ranks' shards) and over the groups (modules or blocks), so
that each sum can be checked against what was received (integrity.py). No row depends on a seed that
was known before: nothing is kept from step to step but the running mean of reduced gradients, as
numbers of the model's own size, where the optimizer has no first moment.

Every rank has the same pieces in the same order; a digest of names, sizes, weights and draws goes
into the table, and ranks whose digests differ are ST-GRAD-004.
"""

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import torch
from torch import Tensor

from securetrain.core.errors import GuardError
from securetrain.guard.beacon import Beacon, Draw
from securetrain.guard.integrity import Rows
from securetrain.guard.layout import Layouts, Shape, spans_of
from securetrain.guard.moments import Slices
from securetrain.guard.openings import TRANSCRIPT
from securetrain.guard.roundoff import near_zero, unit_roundoff
from securetrain.guard.sketch import SketchParameters, SketchShape, derive

RETAIN_BYTES: Final = 64 << 20
_MEAN_WEIGHT: Final = 0.1
"""Of the newest gradient in the running mean."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive numbers of a flat piece that belong to one group."""

    group: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One delivered piece of the local gradient."""

    chunk: str
    """Name, the same on every rank and in every step."""
    local: Tensor
    """Flat, `parts` equal parts; not changed by anybody until it is sketched. Not weighted."""
    parts: int
    part: int
    """Which part this rank receives."""
    result: Tensor
    """The result on this rank: its part (parts > 1) or the whole; likewise unchanged."""
    result_scale: float
    """Makes the result a mean over the ranks."""
    local_scale: float
    """Makes the local piece the gradient that the result is the mean of."""
    wait: Callable[[], None]
    """Returns when the collective is over and the result is there."""
    segments: tuple[Segment, ...] = ()
    """The groups in it, without gaps; none: the chunk is one. A piece in parts is of one group."""
    weights: tuple[float, ...] = ()
    """Each rank's in the mean, the same for all pieces of a step; none: all 1."""
    moment: Callable[[], Slices] = tuple
    """The optimizer's first moment, by where its slices are in the result."""
    wire: torch.dtype | None = None
    """The type in which the numbers travelled; None for the result's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSketches:
    """The sketches of one step on this rank."""

    groups: tuple[str, ...]
    """Names, in the order of the rows."""
    sent: Rows
    """(groups, size): the local gradient, not weighted."""
    parts: Rows
    """(parts, size): the same, added up over the groups."""
    received: Rows
    """(groups, size)."""
    moments: Rows
    """(groups, size) of what this rank holds of the first moment; zero where there is none."""
    weights: tuple[float, ...]
    roundoff: float
    """Of the coarsest reduction."""
    near_zero: float
    """The norm of what one rounding of all numbers can change near zero."""
    digest: bytes
    unopened: tuple[int, ...]
    told: tuple[bytes, ...]
    """What each rank told with the first draw: its hash of the table before."""
    batches: int
    pieces: int
    draws: tuple[Draw, ...]
    """Of each batch."""
    texts: tuple[tuple[str, ...], ...]
    """Of each batch, what the digest has of each piece."""


@dataclass(slots=True)
class _Step:
    """Everything gathered since the step began."""

    groups: dict[str, Rows] = field(default_factory=dict)
    parts: Rows | None = None
    weights: tuple[float, ...] = ()
    roundoff: float = 0.0
    near_zero: float = 0.0
    unopened: set[int] = field(default_factory=set)
    told: tuple[bytes, ...] = ()
    batches: int = 0
    pieces: int = 0
    draws: list[Draw] = field(default_factory=list)
    texts: list[list[str]] = field(default_factory=list)
    unlearned: list[tuple[str, Tensor, float]] = field(default_factory=list)
    objection: str = ""
    silence: GuardError | None = None
    digest: "hashlib._Hash" = field(default_factory=lambda: hashlib.sha256(TRANSCRIPT))


class Collector:
    """Gathers the pieces of one step at a time.

    Args:
        beacon: the group's randomness.
        shape: of all sketches.
        retain_bytes: local gradient bytes that may wait for a draw.
    """

    def __init__(
        self, beacon: Beacon, shape: SketchShape, retain_bytes: int = RETAIN_BYTES
    ) -> None:
        self._beacon = beacon
        self._shape = shape
        self._retain = retain_bytes
        self._waiting: list[Piece] = []
        self._waiting_bytes = 0
        self._step = _Step()
        self._unlearned: list[tuple[str, Tensor, float]] = []
        self._means: dict[str, Tensor] = {}
        self._learned = 0
        self._layouts = Layouts()
        self._recorded: list[bytes] = []
        self.on_add: Callable[[], None] = _nothing
        """Called before each piece."""

    def add(self, piece: Piece) -> None:
        """Take a piece over; draws and sketches when enough of them wait. Collective."""
        self.on_add()
        self._waiting.append(piece)
        self._waiting_bytes += piece.local.numel() * piece.local.element_size()
        if self._waiting_bytes >= self._retain:
            self.flush()

    def follow(self, seeds: Sequence[bytes]) -> None:
        """Use the recorded seeds of a step that is done again for its draws, in this order.

        Everybody knows them: a gradient that was made for them could evade the sketches.
        """
        self._recorded = list(seeds)

    @property
    def has_pieces(self) -> bool:
        """True when anything was delivered since the last step."""
        return bool(self._waiting) or self._step.parts is not None or self._step.silence is not None

    def flush(self) -> None:
        """Wait for delivery, draw, sketch, forget. Collective."""
        if not self._waiting:
            return
        batch, self._waiting, self._waiting_bytes = self._waiting, [], 0
        for piece in batch:
            piece.wait()
        step = self._step
        if step.silence is not None:
            return
        try:
            draw = self._beacon.draw(f"batch|{step.batches}|{len(batch)}")
        except GuardError as error:  # this may be a backward pass, which must not end here
            step.silence = error
            return
        if self._recorded:
            draw = replace(draw, seed=self._recorded.pop(0))
        step.told = step.told if step.batches else draw.told
        step.batches += 1
        step.unopened.update(draw.unopened)
        step.digest.update(draw.seed + bytes(len(draw.unopened)))
        step.draws.append(draw)
        step.texts.append([])
        rows = [self._sketch(piece, draw.seed) for piece in batch]
        # One copy from the device for the whole batch.
        self._add_up(batch, torch.cat(rows).cpu().numpy())

    def end(self) -> StepSketches | None:
        """The step's sketches; None when nothing was delivered. Collective.

        Raises:
            GuardError: ST-GRAD-006, the pieces of the step do not belong together; ST-GRAD-010, a
                rank did not speak.
        """
        self.flush()
        step, self._step = self._step, _Step()
        if step.silence is not None:
            raise step.silence
        if step.objection:
            raise GuardError("ST-GRAD-006", step.objection, "the model given to the guard")
        self._unlearned = step.unlearned
        if step.parts is None:
            return None
        rows = np.stack(list(step.groups.values()), axis=1)
        return StepSketches(
            groups=tuple(step.groups),
            sent=rows[0],
            received=rows[1],
            moments=rows[2],
            parts=step.parts,
            weights=step.weights,
            roundoff=step.roundoff,
            near_zero=step.near_zero,
            digest=step.digest.digest(),
            unopened=tuple(sorted(step.unopened)),
            told=step.told,
            batches=step.batches,
            pieces=step.pieces,
            draws=tuple(step.draws),
            texts=tuple(map(tuple, step.texts)),
        )

    def learn(self, *, applied: bool) -> None:
        """Add the step's reduced gradients to the running mean, unless they were refused."""
        pieces, self._unlearned = self._unlearned, []
        if not applied:
            return
        self._learned += 1
        for name, result, scale in pieces:
            mean = self._means.get(name)
            if mean is None or mean.shape != result.shape:
                self._means[name] = result.float() * scale
            else:
                mean.lerp_(result.float() * scale, _MEAN_WEIGHT)

    def _sketch(self, piece: Piece, seed: bytes) -> Tensor:
        """Rows of one piece: for each segment its parts, then received and moment."""
        step = self._step
        if step.pieces and step.weights != piece.weights:
            step.objection = f"{piece.chunk} is reduced with other weights than the rest"
        step.weights = piece.weights
        dtype = piece.wire or piece.result.dtype
        step.roundoff = max(step.roundoff, unit_roundoff(dtype))
        step.near_zero = math.hypot(step.near_zero, near_zero(dtype, piece.local.numel()))
        # A chunk delivered twice in a step has two names.
        name, numel = f"{step.pieces}|{piece.chunk}", piece.local.numel() // piece.parts
        fresh = derive(
            *(seed, name),
            numel=numel,
            parts=piece.parts,
            shape=self._shape,
            device=piece.local.device,
        )
        segments = _segments(piece)
        rows = self._rows(piece, segments, self._moment(piece), fresh)
        told = ",".join(f"{one.group}:{one.start}" for one in segments)
        text = f"{name}|{numel}|{piece.parts}|{piece.result.dtype}|{piece.weights!r}|{told};"
        step.digest.update(text.encode())
        step.texts[-1].append(text)
        step.pieces += 1
        return rows

    def _rows(
        self,
        piece: Piece,
        segments: tuple[Segment, ...],
        moment: Slices,
        fresh: SketchParameters,
    ) -> Tensor:
        """(segments * (parts + 2), size), all in one call: a call costs as much as many numbers."""
        shape = Shape(
            numel=fresh.numel,
            parts=piece.parts,
            part=piece.part,
            result=piece.result.numel(),
            spans=spans_of(segments),
            moment=tuple((first, numbers.numel()) for first, numbers in moment),
        )
        layout = self._layouts.of(piece.chunk, shape)
        sources = [piece.local, piece.result, *(numbers for _, numbers in moment)]
        rows = layout.sketch(sources, fresh)
        if piece.local_scale != 1.0 or piece.result_scale != 1.0:
            by_segment = rows.view(len(segments), layout.height, -1)
            by_segment[:, : piece.parts] *= piece.local_scale
            by_segment[:, piece.parts] *= piece.result_scale
        return rows

    def _add_up(self, batch: list[Piece], flat: Rows) -> None:
        step, start = self._step, 0
        for piece in batch:
            segments, parts = _segments(piece), piece.parts
            stop = start + (parts + 2) * len(segments)
            rows, start = flat[start:stop].reshape(len(segments), parts + 2, -1), stop
            sent = rows[:, :1] if parts == 1 else rows[:, :parts].sum(axis=1, keepdims=True)
            threes = np.concatenate([sent, rows[:, parts:]], axis=1)
            for segment, three, of_parts in zip(segments, threes, rows[:, :parts], strict=True):
                known = step.groups.get(segment.group)
                step.groups[segment.group] = three if known is None else known + three
                # One by one: a sum has other bits in another order.
                step.parts = of_parts if step.parts is None else step.parts + of_parts

    def _moment(self, piece: Piece) -> Slices:
        """The optimizer's, or the running mean; none in the first steps."""
        moment = piece.moment()
        if moment:
            return moment
        if self._learned:  # an optimizer has stepped, and left no moment
            self._step.unlearned.append((piece.chunk, piece.result, piece.result_scale))
        mean = self._means.get(piece.chunk)
        # A module whose parameters were thawed meanwhile sends other numbers than before.
        return ((0, mean),) if mean is not None and mean.shape == piece.result.shape else ()


def _nothing() -> None:
    """Nobody wants to know."""


def _segments(piece: Piece) -> tuple[Segment, ...]:
    return piece.segments or (Segment(piece.chunk, 0, piece.local.numel()),)
