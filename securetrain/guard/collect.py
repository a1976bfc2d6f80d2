# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Local gradients on their way: delivered, kept until the seed is drawn, sketched, forgotten.

A hook (hooks.py) hands over each piece of the local gradient **after** its collective was
started, with the collective's result. Pieces are kept until `retain_bytes` of them have gathered
or the step ends; then the collector waits until all of them are delivered, draws **one** seed for
the batch (beacon.py) and sketches local pieces and results. So a small model costs one draw a
step and a large one one draw per `retain_bytes`; the extra memory is `retain_bytes` plus one
piece.

Every rank has the same pieces in the same order; a digest of names, sizes and draws goes into the
table, and ranks whose digests differ are ST-GRAD-004.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from securetrain.guard.beacon import Beacon
from securetrain.guard.integrity import unit_roundoff
from securetrain.guard.sketch import (
    SketchParameters,
    SketchShape,
    derive,
    product_roundoff,
    sketch,
    sketch_part,
)

RETAIN_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One delivered piece of the local gradient."""

    chunk: str
    """Name, the same on every rank and in every step."""
    local: Tensor
    """Flat, `parts` equal parts; not changed by anybody until it is sketched."""
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
    wire: torch.dtype | None = None
    """The type in which the numbers travelled; None for the result's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSketches:
    """The sketches of one step on this rank."""

    sent: Tensor
    """(parts, size) fp64."""
    received: Tensor
    """(size,) fp64."""
    window: Tensor
    """(size,) fp64."""
    roundoff: float
    """Of the coarsest reduction."""
    product_roundoff: float
    digest: bytes
    layout: bytes
    """Of names and sizes only: another layout means other directions of the window sketch."""
    unopened: tuple[int, ...]
    batches: int
    pieces: int


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
        self._window_seed = b""
        self._window: dict[tuple[str, int, int, torch.device], SketchParameters] = {}
        self._begin()

    def _begin(self) -> None:
        self._waiting: list[Piece] = []
        self._waiting_bytes = 0
        self._sent: Tensor | None = None
        self._received = torch.zeros(self._shape.size, dtype=torch.float64)
        self._window_sum = torch.zeros(self._shape.size, dtype=torch.float64)
        self._roundoff = 0.0
        self._product_roundoff = 0.0
        self._layout = hashlib.sha256(b"securetrain-layout-v1")
        self._digest = hashlib.sha256(b"securetrain-transcript-v1")
        self._liars: set[int] = set()
        self._batches = 0
        self._pieces = 0

    def draw_window_seed(self) -> None:
        """Fix the directions of the window sketch; collective, once per process."""
        draw = self._beacon.draw("window")
        self._window_seed = draw.seed
        self._liars.update(draw.unopened)

    def add(self, piece: Piece) -> None:
        """Take a piece over; draws and sketches when enough of them wait. Collective."""
        self._waiting.append(piece)
        self._waiting_bytes += piece.local.numel() * piece.local.element_size()
        if self._waiting_bytes >= self._retain:
            self.flush()

    @property
    def has_pieces(self) -> bool:
        """True when anything was delivered since the last step."""
        return bool(self._waiting) or self._sent is not None

    def flush(self) -> None:
        """Wait for delivery, draw, sketch, forget. Collective."""
        if not self._waiting:
            return
        batch, self._waiting, self._waiting_bytes = self._waiting, [], 0
        for piece in batch:
            piece.wait()
        draw = self._beacon.draw(f"batch|{self._batches}|{len(batch)}")
        self._batches += 1
        self._liars.update(draw.unopened)
        self._digest.update(draw.seed + bytes(len(draw.unopened)))
        self._product_roundoff = max(
            self._product_roundoff, product_roundoff(batch[0].local.device)
        )
        for piece in batch:
            self._sketch(piece, draw.seed)

    def end(self) -> StepSketches | None:
        """The step's sketches; None when nothing was delivered. Collective."""
        self.flush()
        try:
            if self._sent is None:
                return None
            layout = self._layout.digest()
            self._digest.update(layout)
            return StepSketches(
                sent=self._sent,
                received=self._received,
                window=self._window_sum,
                roundoff=self._roundoff,
                product_roundoff=self._product_roundoff,
                digest=self._digest.digest(),
                layout=layout,
                unopened=tuple(sorted(self._liars)),
                batches=self._batches,
                pieces=self._pieces,
            )
        finally:
            self._begin()

    def _sketch(self, piece: Piece, seed: bytes) -> None:
        numel = piece.local.numel() // piece.parts
        device = piece.local.device
        name = f"{self._pieces}|{piece.chunk}"  # a chunk delivered twice in a step has two names
        fresh = derive(seed, name, numel=numel, parts=piece.parts, shape=self._shape, device=device)
        sent = sketch(piece.local, fresh).cpu() * piece.local_scale
        received = sketch_part(piece.result, fresh, piece.part).cpu()
        window = sketch(piece.local, self._window_parameters(piece, numel)).sum(dim=0).cpu()
        self._sent = sent if self._sent is None else self._sent + sent
        self._received += received * piece.result_scale
        self._window_sum += window * piece.local_scale
        self._roundoff = max(self._roundoff, unit_roundoff(piece.wire or piece.result.dtype))
        self._layout.update(f"{name}|{numel}|{piece.parts}|{piece.result.dtype};".encode())
        self._pieces += 1

    def _window_parameters(self, piece: Piece, numel: int) -> SketchParameters:
        key = (piece.chunk, numel, piece.parts, piece.local.device)
        if key not in self._window:
            if len(self._window) > 4096:
                self._window.clear()
            self._window[key] = derive(
                self._window_seed,
                f"window|{piece.chunk}",
                numel=numel,
                parts=piece.parts,
                shape=self._shape,
                device=piece.local.device,
            )
        return self._window[key]
