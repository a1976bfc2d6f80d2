# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Read what ranks say about buffers that one of them has broadcast. Pure.

DDP overwrites every rank's buffers (running statistics, codebooks, counters) with those of its
first rank before each forward pass. What is right cannot be known, but every other rank has just
computed its own from data of its own, and what arrives should be like these. Each rank says a
digest of what it got and, for each buffer, a sketch of its own and one of how far what arrives has
drifted from its own. Rules:

1. most ranks must have got what the first rank says that it sent; who got something else goes on
   with its own;
2. a buffer that is not finite, where that of most others is, is refused and its sender named: all
   hold the proof;
3. how far honest buffers lie apart is read from the **other** ranks' own, pair by pair, as a
   median, so that neither the sender nor one liar widens a limit. With fewer than three ranks there
   is no pair;
4. a deviation of eight times that is too much. Smaller ones are added up as vectors: honest ones
   wander, a lie that is repeated goes one way. Where each rank has data of its own they always go
   one way, and each sync counts alone;
5. a buffer is refused when more than half of the others say so. Its sender is named only when it
   is off beyond all proportion. It is not where the others do not differ at all: then a script may
   compute that buffer on its first rank alone;
6. the seed of the sketches is the digest of what was sent. A sender that wants another one has to
   send something else, and 16 numbers cannot be made small by trying.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from securetrain.guard.statements import read_numbers

DIGEST: Final = 32
NUMBERS: Final = 16
"""Of one sketch."""
_ROW: Final = np.dtype("<f4")
_MOST: Final = 32.0
"""Times the sum of squares that a sum of honest deviations has."""
_AT_ONCE: Final = 64.0
"""Times the usual square of one deviation: eight times as far as the others are from each other."""
_GROSS: Final = 1e6
"""The same, for a sender that is named: a thousand times as far."""
_EARLY: Final = 8
"""Syncs in which a spread is hardly known."""
_EARLY_TIMES: Final = 32.0
MEMORY: Final = 128
"""Syncs over which deviations add up."""
_LISTED: Final = 3

Numbers = NDArray[np.float64]


def weight(*, shuffled: bool) -> float:
    """The weight of what was added up before."""
    return 1.0 - 1.0 / MEMORY if shuffled else 0.0


@dataclass(frozen=True, slots=True)
class Words:
    """One rank's."""

    digest: bytes
    own: Numbers
    """(buffers, NUMBERS): its own, before the sync."""
    drift: Numbers
    """The same of the deviations from its own, added up."""

    def encode(self) -> bytes:
        """As many bytes on every rank."""
        with np.errstate(over="ignore"):
            numbers = np.stack([self.own, self.drift]).astype(_ROW)
        return self.digest + numbers.tobytes()

    @classmethod
    def decode(cls, data: bytes) -> "Words":
        """Read one."""
        own, drift = read_numbers([data], DIGEST).reshape(2, -1, NUMBERS)
        return cls(data[:DIGEST], own, drift)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The conclusions from one sync; equal on every rank that got the same."""

    refused: frozenset[int] = frozenset()
    """Buffers that no rank takes."""
    not_finite: bool = False
    gross: bool = False
    """The sender is named."""
    apart: tuple[int, ...] = ()
    """Ranks that did not get what the sender says it sent."""
    text: str = ""
    """The sentence after the sender's name; empty when nothing is wrong."""
    source: int = 0

    @property
    def is_named(self) -> bool:
        """The sender is, by what all hold."""
        return self.not_finite or self.gross


class BufferRecord:
    """The spread of honest buffers of one model, as far as it is known.

    Args:
        shuffled: all ranks draw from one shuffled set.
    """

    def __init__(self, *, shuffled: bool) -> None:
        self._weight = weight(shuffled=shuffled)
        self._expected = np.zeros(0)
        """The sum of squares that honest deviations would have by now, for each buffer."""
        self._counted = 0.0
        """As many syncs, weighed alike."""
        self._syncs = 0

    def read(
        self,
        words: Sequence[Words],
        got: Numbers,
        *,
        source: int,
        names: Sequence[str],
        roundoff: Sequence[float],
    ) -> Reading:
        """Read one sync.

        Args:
            words: of all ranks.
            got: (buffers, NUMBERS) sketches of what arrived, under the seed of this sync.
            source: who sent it.
            names: of the buffers.
            roundoff: relative difference of equal buffers on unlike machines.
        """
        alike = [r for r, one in enumerate(words) if one.digest == words[source].digest]
        apart = tuple(r for r in range(len(words)) if r not in alike)
        if 2 * len(alike) <= len(words):
            text = "says that it broadcast other buffers than most ranks got"
            return Reading(
                refused=frozenset(range(len(names))), apart=apart, text=text, source=source
            )
        others = [r for r in alike if r != source]
        own = np.stack([words[r].own for r in others])
        drift = np.stack([words[r].drift for r in others])
        arrived = got.astype(_ROW).astype(np.float64)
        with np.errstate(all="ignore"):
            broken = self._not_finite(own, arrived)
            far, gross = self._far(own, drift, arrived, np.asarray(roundoff))
        refused = broken | far
        text = ""
        if broken.any():
            text = f"broadcasts buffers that are not finite: {_listed(names, broken)}"
        elif far.any():
            text = f"broadcasts buffers unlike the others' own: {_listed(names, far)}"
        elif apart:
            text = "says that it broadcast other buffers than some ranks say they got"
        return Reading(
            refused=frozenset(np.flatnonzero(refused).tolist()),
            not_finite=bool(broken.any()),
            gross=bool((gross & far).any()),
            apart=apart,
            text=text,
            source=source,
        )

    @staticmethod
    def _not_finite(own: Numbers, arrived: Numbers) -> NDArray[np.bool_]:
        finite = np.isfinite(own).all(axis=2).sum(axis=0)
        most: NDArray[np.bool_] = 2 * finite > len(own)
        return most & ~np.isfinite(arrived).all(axis=1)

    def _far(
        self, own: Numbers, drift: Numbers, arrived: Numbers, roundoff: Numbers
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Buffers that are off, and those beyond all proportion."""
        count, buffers = own.shape[:2]
        if len(self._expected) != buffers:
            self.forget()
            self._expected = np.zeros(buffers)
        if count < 2:
            return np.zeros(buffers, dtype=bool), np.zeros(buffers, dtype=bool)
        one, other = np.triu_indices(count, 1)
        pairs = ((own[one] - own[other]) ** 2).sum(axis=2)
        spread = np.median(np.where(np.isfinite(pairs), pairs, np.inf), axis=0)
        before = self._expected / max(self._counted, 1.0)
        if self._syncs > _EARLY:  # a liar who is the median once shall not be remembered
            spread = np.where(before > 0, np.minimum(spread, _AT_ONCE * before), spread)
        unknown = ~np.isfinite(spread)
        spread = np.where(unknown, before, spread)
        sizes = np.median(np.nan_to_num((own**2).sum(axis=2)), axis=0)
        floor = roundoff**2 * sizes
        self._expected = self._weight**2 * self._expected + spread + floor
        self._counted = self._weight**2 * self._counted + 1.0
        self._syncs += 1
        length = (drift**2).sum(axis=2)
        now = ((own - arrived) ** 2).sum(axis=2)
        # A rank that says it drifted far, while what arrives is its own, is not believed.
        said = np.where(np.isfinite(length), length, np.inf) * (now > 0)
        usual = np.maximum(self._expected / self._counted, spread + floor)
        known = (self._syncs > _EARLY) | (spread <= floor)
        times = np.where(known, 1.0, _EARLY_TIMES)
        far = (said > self._expected * _MOST * times) | (now > usual * _AT_ONCE * times)
        gross = now > usual * _GROSS
        differ = usual > 4 * floor
        far &= ~unknown
        return 2 * far.sum(axis=0) > count, (2 * (gross & far).sum(axis=0) > count) & differ

    def forget(self) -> None:
        """The model has other buffers."""
        self._expected, self._counted, self._syncs = np.zeros(0), 0.0, 0


def seed_of(digest: bytes, sync: int) -> bytes:
    """The seed of one sync's sketches (rule 6)."""
    return digest[:24] + struct.pack("<q", sync)


def _listed(names: Sequence[str], which: NDArray[np.bool_]) -> str:
    found = [name for name, is_it in zip(names, which, strict=True) if is_it]
    more = len(found) - _LISTED
    return ", ".join(found[:_LISTED]) + (f" and {more} more" if more > 0 else "")


def same_up_to(eps: float) -> float:
    """The relative difference of equal numbers on unlike machines, by their type's precision."""
    return max(2.0**-18, 2.0 * eps)
