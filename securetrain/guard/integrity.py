# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Is what the ranks say about a step bound to what was delivered? Pure arithmetic on a table.

Every rank says of its local gradient one row for each **part** (each rank's shard, P of them) and
one for each **group** (FSDP module or block of parameters, G), of what it received one row for each
group, and one for each group of the optimizer's first moment (collect.py). All rows are sketches
under one seed that was drawn after delivery (beacon.py), so sums of vectors are sums of rows:

1. **parts**: the row received for a part is the weighted mean of the ranks' rows for it;
2. **groups**: of each group the received rows of all parts add up to the mean of the ranks' rows;
3. **one gradient**: a rank's part rows and its group rows have one sum;
4. **independent signs**: parts, and groups, are sketched with signs of their own. So a row is
   almost orthogonal to the sum of the other rows of its rank, unless the rank made it up: what it
   invents for its own shard, which nobody else received, cannot cancel what it says of the rest.

Rules 1 and 2 have a limit for each number:

    limit = (u * 2 * (1 + growth(n)) + 16 * v) * length / sqrt(keys) + floor
    length = max(norm(received), median_i norm(sent, rank i))
    growth(n) = min((n + 1) / 2, 2 * sqrt(n))

where `u` is the unit roundoff of the dtype of the reduction and `v` that of fp32, in which the
sketches are summed. `growth` bounds the rounding of a sum of n numbers that is all in **one**
coordinate, and 16 v the rounding of two sketches of such a gradient: the worst case for one sketch
number. A dense gradient is far below, so a clean reduction does not alarm, whatever the shape of
its gradient. No number that one rank says moves the limit: the median needs
half of them, and whoever claims to have received much claims a difference of the same size.
`floor` is for fp16, whose smallest numbers are 2^-24 apart: what is smaller rounds to zero, so a
gradient of tiny numbers arrives as another one, and nobody has lied. Each number may be off by half
of that for each rank and once more; other types have numbers that are smaller than any gradient.

Catches: corruption in flight (any fabric, without encryption), by the NIC, by the collective
library, and a rank that sketches something else than it sends. In fp32 a single element that is
off by 1.8e-6 of the norm is found (the tests measure it, four ranks); in bf16 by about 3e-2,
because bf16 rounds that much itself.

Does not catch:

- **the FSDP owner's own shard.** A rank owns 1/n of the parameters and of the optimizer state and
  can change both after the check. What it says of its own part, both sent and received, only rules
  3 and 4 bind: it may invent there something that is orthogonal to the rest, which hides nothing
  of the other shards. No gradient-level check protects a shard from its owner;
- **who.** A mismatch of rules 1 and 2 names a part; sender, link and owner look alike, and no rank
  is named. Rules 3 and 4 are about one rank's own words and name it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Rows: TypeAlias = NDArray[np.float64]

SKETCH_ROUNDING: Final = 16 * 2.0**-24
"""Of two sketches, relative to the norm. Measured for one, the worst of 600 draws: 7 units of
roundoff for one huge coordinate among small ones, 10 for a gradient that is made to lose half a
unit in each addition, 0.4 for a dense one. Sketches made by torch have none."""
_WIRE_ROUNDING: Final = 16 * 2.0**-24
"""Rows travel in fp32; a sum of some of them is off by no more than this of their lengths."""
_ORTHOGONAL: Final = 6.0
"""Standard deviations of the cosine of two independent rows, 1 / sqrt(numbers)."""
_SIGNS: Final = 4.5
"""Standard deviations of the product of two rows with these numbers and signs by chance, whatever
the numbers: by chance it is larger in one of 12,000 at most (Hoeffding)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IntegrityResult:
    """One check of all parts and groups."""

    ratio: float
    """The largest difference as a multiple of its limit; the reduction is refused above 1."""
    holders: tuple[int, ...] = ()
    """Ranks that say they received something else than the mean of what was sent. It may be them,
    a sender or a link: nobody is named."""
    groups: tuple[int, ...] = ()
    """Groups whose parts do not add up to the mean of what was sent."""

    @property
    def ok(self) -> bool:
        """True when everything received is what the ranks sent."""
        return not self.holders and not self.groups


def check(
    parts: Rows,
    received: Rows,
    *,
    roundoff: float,
    groups: Rows | None = None,
    owners: Sequence[int] | None = None,
    weights: Sequence[float] | None = None,
    keys: int = 1,
    rounding: float = 0.0,
) -> IntegrityResult:
    """Compare what was received with the mean of what was sent (rules 1 and 2).

    Args:
        parts: (ranks, parts, size) rows of the local gradients, finite.
        received: (ranks, groups, size); row r is what rank r received: its part, scaled to be a
            mean.
        roundoff: of the reduction's dtype.
        groups: (ranks, groups, size) rows of the local gradients; None where parts say it all.
        owners: which part each rank receives; by default the one part of all (DDP), or each its own
            (FSDP). With HSDP every part has a copy in each replica.
        weights: of each rank in the mean; all 1 by default. A rank without weight is not believed
            about what it received either.
        keys: of the sketches. A number of one key is divided by the root of it.
        rounding: what a number near zero can lose in one rounding, over all numbers (`near_zero`).
    """
    ranks, count, _ = parts.shape
    if owners is None:
        owners = [0] * ranks if count == 1 else range(ranks)
    if len(owners) != ranks or set(owners) != set(range(count)):
        raise ValueError(f"{count} parts for {ranks} ranks, owned {owners}")
    share = np.ones(ranks) if weights is None else np.asarray(weights, dtype=np.float64)
    live = np.flatnonzero(share)
    mean_weights = share[live] / ranks
    relative = _relative(ranks, roundoff) / math.sqrt(keys) * max(1.0, float(share.max(initial=0)))
    floor = rounding * (ranks + 1) / math.sqrt(keys) * max(1.0, float(share.max(initial=0)))
    place = np.asarray(owners)
    mine = place[live]
    said, heard = _of(parts, live), _of(received, live)
    with np.errstate(all="ignore"):
        ratios = _ratios(
            heard.sum(axis=1),
            _weighted(mean_weights, said)[mine],
            middle(_norms(said))[mine],
            relative,
            floor,
        )
        holders = tuple(int(live[i]) for i in np.flatnonzero(~(ratios <= 1)))
        worst, wrong = float(ratios.max(initial=0.0)), tuple[int, ...]()
        if groups is not None and (replicas := _replicas(place, live, count)):
            by_group = _of(groups, live)
            ratios = _ratios(
                received[np.array(replicas)].sum(axis=1),
                _weighted(mean_weights, by_group),
                middle(_norms(by_group)),
                relative * count,
                floor * count,
            )
            worst = max(worst, float(ratios.max(initial=0.0)))
            wrong = tuple(int(i) for i in np.flatnonzero(~(ratios <= 1).all(axis=0)))
    return IntegrityResult(ratio=worst, holders=holders, groups=wrong)


def unequal(parts: Rows, groups: Rows) -> tuple[int, ...]:
    """Ranks whose part rows and group rows have different sums (rule 3): no accident does that.

    Args:
        parts: (ranks, parts, size), finite.
        groups: (ranks, groups, size), finite.
    """
    lengths = _norms(parts).sum(axis=1) + _norms(groups).sum(axis=1)
    apart = np.abs(parts.sum(axis=1) - groups.sum(axis=1)).max(axis=1)
    return tuple(int(rank) for rank in np.flatnonzero(~(apart <= _WIRE_ROUNDING * lengths)))


def leaning(rows: Rows) -> NDArray[np.bool_]:
    """(ranks, rows): rows that lean on the sum of the rank's others (rule 4).

    Two rows of a few numbers each, as small layers have, may be long in the same place by accident:
    then their cosine is no word, and the signs in that place are asked as well. Where a gradient is
    concentrated in a few numbers of the sketch, all ranks' rows lean the same way: that much is
    taken off. One step may show it by accident, seldom.
    """
    ranks, _, size = rows.shape
    with np.errstate(all="ignore"):
        rest = rows.sum(axis=1, keepdims=True) - rows
        lengths = _norms(rows) * _norms(rest)
        product = np.einsum("nmk,nmk->nm", rows, rest)
        by_chance = np.sqrt(np.einsum("nmk,nmk->nm", rows**2, rest**2))
        cosine = product / np.where(lengths > 0, lengths, 1.0)
        if ranks > 2:
            cosine = cosine - np.median(cosine, axis=0)
        # A row that is the other one has sqrt(numbers / 3) at most.
        signs = min(_SIGNS, math.sqrt(size / 12))
        straight = np.abs(cosine) <= _ORTHOGONAL / math.sqrt(size)
        found: NDArray[np.bool_] = ~(straight | (np.abs(product) <= signs * by_chance))
    return found


def copies(rows: Rows, tolerance: float = 1e-4) -> tuple[Rows, tuple[int, ...]]:
    """The word of most ranks where all should say the same, and who says something else.

    Args:
        rows: (ranks, groups, size).
        tolerance: of the length of what most say.

    Returns:
        (groups, size), and the ranks that differ; nobody where no majority says one thing.
    """
    usual = middle(np.where(np.isfinite(rows), rows, 0.0))
    apart = np.sqrt(((rows - usual) ** 2).sum(axis=(1, 2)))
    odd = ~(apart <= tolerance * math.sqrt(float((usual**2).sum())))
    if 2 * int(odd.sum()) >= len(rows):
        return np.zeros_like(usual), ()
    return usual, tuple(int(rank) for rank in np.flatnonzero(odd))


def middle(rows: Rows) -> Rows:
    """The median along the first axis, the bits of `np.median`, soon where there are two rows."""
    if len(rows) == 2:
        both: Rows = 0.5 * (rows[0] + rows[1])
        return both
    ordered = np.sort(rows, axis=0)  # NaN goes last
    count = len(ordered)
    result: Rows = 0.5 * (ordered[(count - 1) // 2] + ordered[count // 2])
    return np.where(np.isnan(ordered[-1]), np.nan, result)


def _of(rows: Rows, live: NDArray[Any]) -> Rows:
    """The rows of live ranks; no copy where all are."""
    return rows if len(live) == len(rows) else rows[live]


def _weighted(weights: Rows, rows: Rows) -> Rows:
    """The weighted sum over the first axis: `np.tensordot` without its search for axes."""
    flat: Rows = np.dot(weights[None], rows.reshape(len(weights), -1))
    return flat.reshape(rows.shape[1:])


def _replicas(place: NDArray[Any], live: NDArray[Any], count: int) -> list[list[int]]:
    """Sets of live ranks that hold each part once: one for each replica; none where one is missing.

    A DDP copy is a replica of one part.
    """
    holders = [[int(r) for r in live if place[r] == part] for part in range(count)]
    return [list(row) for row in zip(*holders, strict=False)]


def _ratios(got: Rows, mean: Rows, robust: Rows, relative: float, floor: float) -> Rows:
    """Largest difference of each row as a multiple of its limit; NaN is infinitely wrong."""
    worst = np.abs(got - mean).max(axis=-1)
    limit = relative * np.maximum(_norms(got), robust) + floor
    ratio = np.where(worst == 0, 0.0, worst / limit)
    return np.where(np.isnan(ratio), math.inf, ratio)


def _relative(ranks: int, roundoff: float) -> float:
    growth = min((ranks + 1) / 2, 2 * math.sqrt(ranks))
    return 2 * roundoff * (1 + growth) + SKETCH_ROUNDING


def _norms(rows: Rows) -> Rows:
    lengths: Rows = np.sqrt(np.einsum("...k,...k->...", rows, rows))
    return lengths
