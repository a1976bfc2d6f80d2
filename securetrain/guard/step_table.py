# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The table of one step as it is kept: bytes that whoever has them can judge again. No torch.

Rules:

1. `StepTable.data` is a line, the digest of the layout, what the draws and the loss scale say, and
   the ranks' rows as they were heard. It depends on nothing that another run of the same step under
   the same seeds would not have, so that equal steps have equal tables, byte by byte;
2. the layout (which groups, parts and pieces there are) is kept once, by its digest: it is the same
   in every step. Of each batch it has the texts of the transcript, so that the rows' own digests
   show under which seeds the ranks say that they sketched;
3. seeds have openings of their own (openings.py).
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from securetrain.core import canonical
from securetrain.core.errors import UsageError, reason
from securetrain.guard.openings import TRANSCRIPT

LAYOUT: Final = "application/vnd.securetrain.guard.layout.v1+json"
LAYOUT_LIMIT: Final = 16 << 20
HEAD_LIMIT: Final = 1 << 20
MOST_ROUNDOFF: Final = 2.0**-8
"""Of bfloat16: no gradient is reduced in a coarser type."""
_LABEL: Final = b"securetrain/step-table/1\n"
_MOST: Final = 1 << 16

Float = Annotated[str, Meta(max_length=32, pattern=r"^-?0x[01]\.[0-9a-f]{1,13}p[+-][0-9]{1,4}\Z")]
Small = Annotated[int, Meta(ge=0, lt=_MOST)]
Word = Annotated[str, Meta(max_length=1 << 20)]


class Layout(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything about a table that is the same in every step."""

    media_type: Annotated[
        str, Meta(pattern=rf"^{LAYOUT.replace('.', '[.]').replace('+', '[+]')}\Z")
    ] = LAYOUT
    ranks: Annotated[int, Meta(ge=1, lt=_MOST)]
    groups: Annotated[tuple[Word, ...], Meta(min_length=1, max_length=_MOST)]
    parts: Annotated[int, Meta(ge=1, lt=_MOST)]
    size: Annotated[int, Meta(ge=1, lt=_MOST)]
    keys: Annotated[int, Meta(ge=1, lt=_MOST)]
    owners: Annotated[tuple[Small, ...], Meta(max_length=_MOST)]
    """Which part each rank holds."""
    roundoff: Float
    near_zero: Float
    batches: Annotated[tuple[tuple[Word, ...], ...], Meta(max_length=_MOST)]
    """Of each batch, what the transcript says of each piece."""


class _Head(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    layout: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
    unopened: Annotated[tuple[tuple[Small, ...], ...], Meta(max_length=_MOST)]
    """Of each batch, the ranks that did not open their commitment."""
    scaled: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTable:
    """One step's."""

    layout: Layout
    unopened: tuple[tuple[int, ...], ...]
    scaled: bool
    """Whether a loss scaler looked at the gradients next."""
    rows: Sequence[bytes]
    """Of each rank."""

    @property
    def layout_data(self) -> bytes:
        """The layout, as it is kept."""
        return canonical.encode(self.layout)

    def data(self, layout: str) -> bytes:
        """The table, as it is kept (rule 1).

        Args:
            layout: SHA-256 of `layout_data`.
        """
        head = _Head(layout=layout, unopened=self.unopened, scaled=self.scaled)
        return b"".join((_LABEL, canonical.encode(head), b"\n", *self.rows))

    def transcript(self, seeds: Sequence[bytes]) -> bytes:
        """The digest that honest ranks' rows begin with, under some seeds (rule 2)."""
        digest = hashlib.sha256(TRANSCRIPT)
        for seed, out, texts in zip(seeds, self.unopened, self.layout.batches, strict=True):
            digest.update(seed + bytes(len(out)))
            for text in texts:
                digest.update(text.encode())
        return digest.digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """The remains of a step that a guard has judged."""

    table: StepTable
    seeds: tuple[bytes, ...]
    openings: tuple[bytes, ...]
    """What each seed is the SHA-256 of."""
    anchors: bytes
    """What the ranks committed to since the step before; empty if nothing."""
    learned: int
    """The steps that the detector has learned from by now."""


def layout_of(data: bytes) -> str:
    """The layout that a kept table names.

    Raises:
        ValueError: it is no table.
    """
    return _head(data)[0].layout


def read_layout(data: bytes) -> Layout:
    """A layout that was kept.

    Raises:
        ValueError: it is none.
    """
    try:
        made = canonical.decode(data, Layout, limit=LAYOUT_LIMIT, where="layout", canonical=True)
        roundoff, near_zero = float.fromhex(made.roundoff), float.fromhex(made.near_zero)
    except (UsageError, OverflowError) as error:
        text = reason(error) if isinstance(error, UsageError) else str(error)
        raise ValueError(text) from error
    if len(made.owners) != made.ranks or set(made.owners) != set(range(made.parts)):
        raise ValueError(f"{made.parts} parts for {made.ranks} ranks")
    if not (0 < roundoff <= MOST_ROUNDOFF and 0 <= near_zero <= 1):
        raise ValueError(f"a rounding of {roundoff} and {near_zero}")
    return made


def read_table(data: bytes, layout: Layout) -> StepTable:
    """A table that was kept, of a layout that it names.

    Raises:
        ValueError: it is none.
    """
    head, rows = _head(data)
    numbers = (layout.parts + 3 * len(layout.groups)) * layout.size
    width = hashlib.sha256().digest_size + 4 * numbers
    if len(rows) != width * layout.ranks or len(head.unopened) != len(layout.batches):
        raise ValueError(f"{len(rows)} bytes are not the rows of {layout.ranks} ranks")
    return StepTable(
        layout=layout,
        unopened=head.unopened,
        scaled=head.scaled,
        rows=[bytes(rows[n : n + width]) for n in range(0, len(rows), width)],
    )


def _head(data: bytes) -> tuple[_Head, memoryview]:
    end = data.find(b"\n", len(_LABEL), HEAD_LIMIT)
    if not data.startswith(_LABEL) or end < 0:
        raise ValueError("no table of a step")
    try:
        head = canonical.decode(
            data[len(_LABEL) : end], _Head, limit=HEAD_LIMIT, where="table", canonical=True
        )
    except UsageError as error:
        raise ValueError(reason(error)) from error
    return head, memoryview(data)[end + 1 :]
