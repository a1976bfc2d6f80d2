# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Numbers that ranks say about their shards after the verdict: partial norms and found-inf flags.

The verdict is about gradients as they were delivered. What a script does next is decided by numbers
of which each rank says one, and which torch adds up on the way: the norm by which all clip, the
flag by which all skip a step. So:

1. each rank's number is gathered one by one and compared with what the step's sketches say about
   its shard (clip.py; a shard of which all sketches are finite has no infinity). The owner of a
   number that they contradict is named, or corrected when it may be an accident and named by the
   fourth in a row;
2. torch's own result is used, bit for bit, where it is the sum of what was gathered, up to
   rounding; else that sum is, and nobody is named for it;
3. the gathered numbers go into the hash that travels with the next step's first message: a rank
   that tells one number here and another there shows by it;
4. nothing is computed unless a norm or a flag is asked for: one all-gather of eight bytes then.

What an owner does to its own shard, which nobody else holds, this cannot see: see the seam for
parameters in docs/explanation/gradient-guard.md.
"""

import hashlib
import math
import struct
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from securetrain.guard.beacon import Beacon
from securetrain.guard.clip import BoundNorm, bind_norms
from securetrain.guard.dispute import OpenTable
from securetrain.guard.group_channel import Channel
from securetrain.guard.statements import Table

CODE: Final = "ST-GRAD-013"
NOT_SAME: Final = "most ranks do not say the same about numbers after the verdict"
NOT_THE_SUM: Final = "torch's norm is not that of the norms of all shards"
NOBODY: Final = "a flag says that gradients are not finite, and no rank does"
_OTHER_NORM: Final = "says another norm of its shard than it was delivered"
_WRONG_NORM: Final = "a shard's norm is not what was delivered"
_LOUD: Final = "says that its finite gradient is not finite"
_MOST: Final = "most ranks found infinities after the verdict"
TEXTS: Final = ("", _OTHER_NORM, _WRONG_NORM, _LOUD, _MOST, NOT_SAME, NOT_THE_SUM, NOBODY)
"""All sentences about contradictions."""
_STRIKES: Final = 4
"""Contradictions in a row that are no accident."""
_NUMBER: Final = struct.Struct("<d")
_ROUNDINGS: Final = 8
"""Times a unit of roundoff for each rank, by which torch's sum may differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardLengths:
    """The sketched length of each rank's shard."""

    values: tuple[float, ...]


Lengths = Callable[[], ShardLengths | None]
"""Works them out; None where they are not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contradictions:
    """The ranks, by place, whose numbers what they delivered contradicts, and what to say."""

    named: tuple[int, ...] = ()
    corrected: tuple[int, ...] = ()
    """Ranks whose numbers are not used, the named ones included."""
    text: str = ""
    """The sentence after a rank's name."""
    note: str = ""
    """A contradiction that nobody can be named for."""


class AfterVerdict:
    """The words of one group's ranks after a step was judged.

    Args:
        channel: the group.
        beacon: carries the hash.
    """

    def __init__(self, channel: Channel, beacon: Beacon) -> None:
        self._channel = channel
        self._beacon = beacon
        self._lengths: Lengths | None = None
        self._known: ShardLengths | None = None
        self._strikes = [0] * channel.size
        self.owners: tuple[int, ...] = (0,) * channel.size
        """The shard that each rank holds."""

    def begin(self, lengths: Lengths | None) -> None:
        """A step was judged.

        Args:
            lengths: of the shards; None when the step's numbers are not used, or are not bound.
        """
        self._lengths, self._known = lengths, None

    @property
    def lengths(self) -> ShardLengths | None:
        """Those of the step that was judged last; equal on every rank."""
        if self._lengths is not None:
            self._known, self._lengths = self._lengths(), None
        return self._known

    def norm(
        self, partial: float, *, order: float, whole: bool, numel: int
    ) -> tuple[BoundNorm, Contradictions]:
        """Gather the partial norms. Collective."""
        lengths = self.lengths
        assert lengths is not None
        said = [value for (value,) in map(_NUMBER.unpack, self._gather(_NUMBER.pack(partial)))]
        bound = bind_norms(said, lengths.values, self.owners, order=order, whole=whole, numel=numel)
        named = set(bound.gross)
        for rank in range(len(said)):
            self._strikes[rank] = self._strikes[rank] + 1 if rank in bound.wrong else 0
            if self._strikes[rank] >= _STRIKES and len(said) >= _STRIKES:
                named.add(rank)
        return bound, Contradictions(
            named=tuple(sorted(named)),
            corrected=bound.wrong,
            text=_OTHER_NORM,
            note="" if named or not bound.wrong else _WRONG_NORM,
        )

    def flag(self, mine: bool) -> Contradictions:  # noqa: FBT001 - a fact
        """Gather who says that its finite shard is not finite. Collective."""
        rows = self._gather(_NUMBER.pack(float(mine)))
        loud = tuple(rank for rank, row in enumerate(rows) if _NUMBER.unpack(row)[0] != 0.0)
        if 2 * len(loud) > len(rows):
            return Contradictions(note=_MOST)
        return Contradictions(named=loud, corrected=loud, text=_LOUD)

    def _gather(self, data: bytes) -> list[bytes]:
        rows = self._channel.all_gather(data)
        self._beacon.tell = hashlib.sha256(self._beacon.tell + b"".join(rows)).digest()
        return rows


def is_sum(torchs: float, bound: float, ranks: int, dtype: torch.dtype) -> bool:
    """True when torch's result is the gathered one, up to rounding."""
    if not math.isfinite(bound):
        return math.isfinite(torchs) == math.isfinite(bound)
    room = _ROUNDINGS * (ranks + 1) * torch.finfo(dtype).eps
    return abs(torchs - bound) <= room * abs(bound)


def lengths_of_table(
    table: Table, weights: Sequence[float], owners: Sequence[int]
) -> ShardLengths | None:
    """The lengths of the shards of what the ranks said they sent, as it was checked.

    Args:
        table: of the step.
        weights: of each rank in the mean.
        owners: the shard that each rank holds.
    """
    share = np.asarray(weights, dtype=np.float64) / len(weights)
    live = np.flatnonzero(share)
    mean = np.tensordot(share[live], table.parts[live], axes=1)
    lengths = np.linalg.norm(mean, axis=1)
    if not np.isfinite(lengths).all():
        return None
    return ShardLengths(values=tuple(float(lengths[part]) for part in owners))


def lengths_in_the_open(tables: Collection[OpenTable], owners: Sequence[int]) -> ShardLengths:
    """The same of reductions that were done in the open."""
    squares = np.zeros(max(owners) + 1)
    for table in tables:
        count = np.maximum(table.included.sum(axis=0), 1)
        mean = np.einsum("rp,rpk->pk", table.included, np.nan_to_num(table.sent)) / count[:, None]
        square = (mean**2).sum(axis=1)
        squares += square if len(square) == len(squares) else square.sum()
    return ShardLengths(values=tuple(float(np.sqrt(squares[part])) for part in owners))
