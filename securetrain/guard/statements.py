# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The table of one step: what every rank of a group says, and what of it can be used. Pure.

A row is the digest of the rank's transcript, then fp32 numbers in this order: its part rows, its
group rows, what it received for each group, and its first moment for each group. Every rank sends
as many bytes as every other.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from securetrain.guard.integrity import Rows, copies, leaning

if TYPE_CHECKING:
    from securetrain.guard.collect import StepSketches

DIGEST: Final = 32
_ROW_TYPE: Final = np.dtype("<f4")
_MOST_MOMENT: Final = 4.0
"""An owner's moment, over its gradient, may be this many times what it is in most parts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The words of all ranks; row r is rank r's."""

    digests: tuple[bytes, ...]
    parts: Rows
    """(ranks, parts, size)."""
    groups: Rows
    """(ranks, groups, size)."""
    received: Rows
    """(ranks, groups, size)."""
    moments: Rows
    """(ranks, groups, size)."""

    @property
    def apart(self) -> tuple[int, ...]:
        """Ranks whose transcript is not that of most; all, when no half has one."""
        digest, count = Counter(self.digests).most_common(1)[0]
        if 2 * count <= len(self.digests):
            return tuple(range(len(self.digests)))
        return tuple(r for r, other in enumerate(self.digests) if other != digest)

    @property
    def finite(self) -> NDArray[np.bool_]:
        """(ranks,) true where a rank's gradient is finite by its own words."""
        parts, groups = np.isfinite(self.parts), np.isfinite(self.groups)
        return np.asarray(parts.all(axis=(1, 2)) & groups.all(axis=(1, 2)))


def encode(sketches: "StepSketches") -> bytes:
    """This rank's row."""
    numbers = np.concatenate([sketches.parts, sketches.sent, sketches.received, sketches.moments])
    with np.errstate(over="ignore"):  # what fp32 cannot hold counts as infinite
        return sketches.digest + numbers.astype(_ROW_TYPE).tobytes()


def read_numbers(rows: Sequence[bytes], begin: int) -> Rows:
    """(rows, numbers): what ranks have sent behind `begin` bytes; any bytes at all."""
    sent = np.stack([np.frombuffer(row, dtype=_ROW_TYPE, offset=begin) for row in rows])
    with np.errstate(invalid="ignore"):  # signalling numbers make a warning, which may be an error
        return sent.astype(np.float64)


def decode(rows: Sequence[bytes], parts: int, groups: int, size: int) -> Table:
    """The table; every row is as long as this rank's own."""
    said = read_numbers(rows, DIGEST).reshape(len(rows), -1, size)
    received, moments = parts + groups, parts + 2 * groups
    return Table(
        digests=tuple(row[:DIGEST] for row in rows),
        parts=said[:, :parts],
        groups=said[:, parts:received],
        received=said[:, received:moments],
        moments=said[:, moments:],
    )


def first_moment(table: Table, owners: Sequence[int]) -> tuple[Rows | None, tuple[int, ...]]:
    """The sketch of the whole first moment, (groups, size), and the ranks whose copy of it differs.

    Every holder of a part says what its first moment is there. Of several copies the one that most
    have counts. Where a part has one holder, that one may make it up; so its length is bounded by
    what it is in most parts, and a row that leans on the other parts' is not used: it cannot take
    away a direction that the others' shards hold.
    """
    held: list[Rows] = []
    odd: set[int] = set()
    for part in sorted(set(owners)):
        holders = [rank for rank, owned in enumerate(owners) if owned == part]
        if len(holders) > 1:
            row, differ = copies(table.moments[holders])
            odd.update(holders[i] for i in differ)
        else:
            row = np.nan_to_num(table.moments[holders[0]], nan=0.0, posinf=0.0, neginf=0.0)
        held.append(row)
    rows = np.stack(held)
    if not rows.any():
        return None, ()
    if len(rows) > 1:
        gradient = np.stack([table.received[list(owners).index(p)] for p in range(len(rows))])
        rows = _plausible(rows, gradient)
    return rows.sum(axis=0), tuple(sorted(odd))


def _plausible(moments: Rows, gradients: Rows) -> Rows:
    """(parts, groups, size) with what an owner cannot honestly say taken out."""
    whole = moments.sum(axis=1)
    with np.errstate(all="ignore"):
        length = np.sqrt((whole**2).sum(axis=1))
        of_gradient = np.sqrt((np.nan_to_num(gradients).sum(axis=1) ** 2).sum(axis=1))
        ratio = np.where(of_gradient > 0, length / of_gradient, 0.0)
        most = _MOST_MOMENT * float(np.median(ratio))
        factor = np.where(ratio > most, most / ratio, 1.0)
    factor = np.nan_to_num(factor)
    # What takes away what the others hold is longer than each of theirs, and makes theirs lean too.
    while (lean := leaning((whole * factor[:, None])[None])[0]).any():
        factor[int(np.argmax(np.where(lean, length * factor, -1.0)))] = 0.0
    kept: Rows = moments * factor[:, None, None]
    return kept
