# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Find out of a reduction that was done in the open who said something that is not so. Pure.

In the open (rereduction.py) every part of the gradient has an owner, every rank sends each owner
its part, and after a seed that nobody knew, all say in one table what they **sent**, what they, as
owners, **heard** from each rank, and what they **got** in the end. Everything in the table is said
by one rank about two, so a contradiction is a *dispute* between two ranks and never more than that:

1. sender i says that it sent other numbers than owner j says it heard: a dispute of i and j;
2. rank r says that it got other numbers for a part than the mean of what its owner heard: a dispute
   of r and the owner, or, when more than half of the ranks say so, a lie of the owner;
3. a rank that contradicts **itself** (what it sent to itself, what it got out of what it heard) is
   guilty, and so is, by its own word, one whose numbers are not finite.

With at most f = (n - 1) // 3 liars or broken links, an honest rank has disputes with at most f
others. So who has disputes with **more than f** others, in this step or lately, is guilty,
whichever side of them it was on: a rank that accuses many without proof loses its standing by it. A
dispute below that names nobody. It is the *pair* that is set aside: what the one sends to the other
is left out of that part's mean, and all else stays, so that the honest majority is kept and nobody
pays for the word of one accuser.

Equality is relative to the two numbers themselves, and numbers that are out of all proportion to
the others' are left out first: nothing that a third rank says widens a limit.
"""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from securetrain.guard.integrity import SKETCH_ROUNDING

REMEMBERED: Final = 64
"""Steps for which a dispute counts."""
_RELATIVE: Final = 2.0**-18
"""Two sketches of the same numbers on unlike machines, sent as fp32, differ by less."""

_MOST: Final = 16.0
"""Times the usual length of a whole gradient: one part of an honest one is not as long."""

Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Digests:
    """One rank's, of the bytes of one reduction in the open."""

    whole: bytes
    """Of its gradient."""
    sent: tuple[bytes, ...]
    """Of its part for each owner."""
    heard: tuple[bytes, ...]
    """Of each rank's part that it owns; empty where it owns none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTable:
    """The words of all ranks about one reduction in the open."""

    owners: tuple[int, ...]
    """The rank that owns each part; a rank may own none, or one."""
    sent: Numbers
    """(ranks, parts, k)."""
    heard: Numbers
    """(parts, ranks, k): said by the owner of the part."""
    got: Numbers
    """(ranks, parts, k); where only the owner gets its part, the others' rows are not looked at."""
    included: NDArray[np.bool_]
    """(ranks, parts): whose numbers are in the mean of each part."""
    shared: bool
    """Every rank gets every part, and not only its own."""
    roundoff: float
    """Of the reduction's dtype."""
    own: Numbers = field(default_factory=lambda: np.zeros((0, 0)))
    """(ranks, k): what each rank got of the shard that it holds."""
    moments: Numbers = field(default_factory=lambda: np.zeros((0, 0)))
    """(ranks, k): the optimizer's first moment of that shard."""
    digests: tuple[Digests, ...] = ()
    """Of every rank, for the record; what they say is held against them too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """The findings of one table; ranks count from zero in their group."""

    not_finite: tuple[int, ...] = ()
    """Live ranks that say so of their own numbers."""
    guilty: dict[int, str] = field(default_factory=dict)
    """Ranks that contradict themselves, or a majority; and what they did."""
    disputes: tuple[tuple[int, int], ...] = ()
    """Pairs that contradict each other, the smaller rank first."""
    apart: tuple[tuple[int, int], ...] = ()
    """Sender and part that are not to be added up together."""
    complaints: tuple[tuple[int, int], ...] = ()
    """Live ranks, each with an owner from whom it says it got something else: as long as the rank
    has a word, another one is to own that part."""


def rule(table: OpenTable, live: Collection[int]) -> Ruling:
    """Read one table.

    Args:
        table: equal on all ranks.
        live: the ranks that count. What the others say about what they sent is compared too (an
            offence on probation), but is in no mean.
    """
    ranks = table.sent.shape[0]
    guilty: dict[int, str] = {}
    pairs: set[tuple[int, int]] = set()
    apart: set[tuple[int, int]] = set()
    complaints: list[tuple[int, int]] = []
    finite = [bool(np.isfinite(row).all()) for row in table.sent]
    not_finite = [rank for rank in range(ranks) if rank in live and not finite[rank]]
    for part, owner in enumerate(table.owners):
        for rank in range(ranks):
            if rank in not_finite or _agree(table, rank, part, owner):
                continue
            if rank == owner:
                guilty.setdefault(rank, "contradicts itself about what it sent to itself")
            else:
                pairs.add(_pair(rank, owner))
            if table.included[rank, part]:
                apart.add((rank, part))
    apart.update(_huge(table))
    for part, owner in enumerate(table.owners):
        unlike = _unlike(table, part)
        if not_finite or any(at == part for _, at in apart):
            continue
        if owner in unlike:
            guilty.setdefault(owner, "gave out another sum than that of what it says it heard")
        elif len(unlike) > ranks / 2:
            guilty.setdefault(owner, "gave most ranks another sum than that of what it heard")
        else:
            complaints += [(rank, owner) for rank in unlike if rank in live]
            pairs.update(_pair(rank, owner) for rank in unlike)
    return Ruling(
        not_finite=tuple(not_finite),
        guilty=guilty,
        disputes=tuple(sorted(pairs)),
        apart=tuple(sorted(apart)),
        complaints=tuple(complaints),
    )


class Standing:
    """The disputes of the last steps, and who has too many.

    Args:
        ranks: of the group.
        limit: how many may lie.
    """

    def __init__(self, ranks: int, limit: int) -> None:
        self._ranks = ranks
        self._limit = limit
        self._step = 0
        self._recent: dict[tuple[int, int], int] = {}

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Those that count."""
        return sorted(self._recent)

    def begin(self) -> None:
        """A step begins."""
        self._step += 1
        self._recent = {
            pair: at for pair, at in self._recent.items() if self._step - at < REMEMBERED
        }

    def add(self, pairs: Iterable[tuple[int, int]]) -> dict[int, tuple[int, ...]]:
        """Note disputes; returns who has them with more than the limit, and with whom."""
        for pair in pairs:
            self._recent[pair] = self._step
        return {rank: found for rank in range(self._ranks) if (found := self._too_many(rank))}

    def forget(self, rank: int) -> None:
        """A rank was found guilty: its disputes say nothing about the others any more."""
        self._recent = {pair: at for pair, at in self._recent.items() if rank not in pair}

    def _too_many(self, rank: int) -> tuple[int, ...]:
        # With fewer than four ranks nobody can be outvoted: no number of disputes says who it is.
        others = tuple(sorted({b if a == rank else a for a, b in self._recent if rank in (a, b)}))
        return others if self._limit and len(others) > self._limit else ()


def guilty_by_standing(
    standing: Standing, disputes: Sequence[tuple[int, int]]
) -> dict[int, tuple[int, ...]]:
    """Note a table's disputes and take out who has too many, worst first.

    The others' disputes with such a rank are explained by it, and count no more.
    """
    found: dict[int, tuple[int, ...]] = {}
    over = standing.add(disputes)
    while over:
        worst = max(over, key=lambda rank: (len(over[rank]), -rank))
        found[worst] = over[worst]
        standing.forget(worst)
        over = standing.add(())
    return found


def _pair(one: int, other: int) -> tuple[int, int]:
    return (one, other) if one < other else (other, one)


def _agree(table: OpenTable, rank: int, part: int, owner: int) -> bool:
    """True when sender and owner say the same of one part: its sketch and its digest."""
    if table.digests:
        sent, heard = table.digests[rank].sent, table.digests[owner].heard
        if sent[part] != heard[rank]:
            return False
    return _same(table.sent[rank, part], table.heard[part, rank])


def _same(said: Numbers, heard: Numbers) -> bool:
    """True when both are sketches of the same numbers."""
    finite = bool(np.isfinite(said).all()), bool(np.isfinite(heard).all())
    if not all(finite):
        return not any(finite)
    size = max(float(np.linalg.norm(said)), float(np.linalg.norm(heard)))
    return float(np.linalg.norm(said - heard)) <= _RELATIVE * size


def _huge(table: OpenTable) -> set[tuple[int, int]]:
    """Senders and parts with numbers so large that the rounding of the others' is lost in them.

    Whoever has them would widen the limit of that part for everybody, or bring down its owner.
    """
    found: set[tuple[int, int]] = set()
    whole = np.linalg.norm(table.sent.reshape(len(table.sent), -1), axis=1)
    for part in range(len(table.owners)):
        senders = np.flatnonzero(table.included[:, part])
        if len(senders) > 2:
            most = _MOST * float(np.median(whole[senders]))
            sizes = np.linalg.norm(table.heard[part, senders], axis=1)
            found.update((int(rank), part) for rank in senders[sizes > most])
    return found


def _unlike(table: OpenTable, part: int) -> list[int]:
    """The ranks whose result for a part is not the mean of what its owner heard."""
    senders = np.flatnonzero(table.included[:, part])
    heard = table.heard[part, senders]
    if not len(senders) or not np.isfinite(heard).all():
        return []  # a part that nobody is left for is zero
    mean = heard.mean(axis=0)
    growth = min((len(senders) + 1) / 2, 2 * math.sqrt(len(senders)))
    relative = 2 * table.roundoff * (1 + growth) + SKETCH_ROUNDING + _RELATIVE
    limit = relative * float(np.linalg.norm(heard, axis=1).max(initial=0.0))
    receivers = range(table.sent.shape[0]) if table.shared else [table.owners[part]]
    return [
        rank
        for rank in receivers
        if not float(np.abs(table.got[rank, part] - mean).max(initial=0.0)) <= limit
    ]
