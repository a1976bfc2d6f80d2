# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The ranks whose gradients count zero, for how long, and the bound that nothing exceeds. Pure.

Rules, in order:

1. **at most (n - 1) // 3 ranks** of a group are excluded at a time. More offenders than that:
   nobody is excluded for it and the step is `undecided`, because whoever brings so many down may be
   the liar. Of two or three ranks one that is itself not finite may be left out all the same: it
   says so of itself, so nobody can be framed with it. When **all** ranks are not finite nobody is
   named;
2. **one node per window**: what statistics say excludes ranks of one node in `WINDOW` steps. A
   second node has to wait, and the step is undecided;
3. **sticky, on probation**: an excluded rank counts zero for `TERM` steps (`GROSS_TERM` for a gross
   fault, which may be a passing one), doubled by each further offence that it commits in freedom.
   Its evidence goes on being collected, and an offence during the term begins the term again. A
   rank that the detector itself keeps on probation (`held`) comes back when the detector says so;
4. a rank that **another group** has excluded (`impose`: the same rank's gradient of another piece
   of the model) counts zero here too, and not against the bound: that group had the majority for
   it;
5. the weights of the others are rescaled, so that the result stays the mean over the live ranks.

An exclusion is never an eviction: only the audit's evidence takes a node out of the job.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import msgspec

TERM: Final = 50
GROSS_TERM: Final = 8
WINDOW: Final = 16
_MOST_DOUBLINGS: Final = 12


class Ground(StrEnum):
    """The evidence that a rank is excluded on."""

    NOT_FINITE = "not-finite"
    """Its own numbers are NaN or infinite."""
    GROSS = "gross"
    """Its gradient is so far off that one step is enough."""
    STATISTICS = "statistics"
    """Evidence that was collected over steps."""
    PROOF = "proof"
    """The protocol's: what it said contradicts what it sent, in front of a majority."""


class Term(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One rank's record."""

    rank: int
    offences: int = 0
    """Those that were committed in freedom."""
    left: int = 0
    """Steps until it counts again; 0 for a rank that counts."""
    ground: Ground = Ground.STATISTICS


class ExclusionState(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The part that survives in a checkpoint; ranks count from zero in their group."""

    ranks: int
    steps: int = 0
    terms: list[Term] = []
    recent: list[tuple[int, int]] = []
    """Step and node of what statistics excluded lately."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The consequences of one step's offences; ranks count from zero in their group."""

    excluded: tuple[int, ...]
    """Count zero from this step on, those of before included."""
    newly: tuple[int, ...] = ()
    readmitted: tuple[int, ...] = ()
    undecided: tuple[int, ...] = ()
    """Offenders that the bound kept from being excluded."""


class Exclusion:
    """The record of one group of ranks.

    Args:
        ranks: of the group.
        nodes: the node of each rank, for rule 2; without them all ranks count as one node's.
    """

    def __init__(self, ranks: int, nodes: Sequence[int] | None = None) -> None:
        self.limit: int = max(0, (ranks - 1) // 3)
        self._ranks = ranks
        self._nodes = tuple(nodes) if nodes is not None else (0,) * ranks
        if len(self._nodes) != ranks:
            raise ValueError(f"{len(self._nodes)} nodes for {ranks} ranks")
        self._state = ExclusionState(ranks=ranks)
        self._held: frozenset[int] = frozenset()
        self._imposed: frozenset[int] = frozenset()

    def impose(self, ranks: Collection[int]) -> None:
        """Leave out whom another group has excluded, until it says otherwise."""
        self._imposed = frozenset(ranks)

    @property
    def held(self) -> tuple[int, ...]:
        """The ranks that the detector keeps on probation, as far as the bound lets it."""
        return tuple(sorted(self._held))

    @property
    def excluded(self) -> tuple[int, ...]:
        """The ranks that count zero in the next step."""
        own = {term.rank for term in self._state.terms if term.left}
        return tuple(sorted(own | self._held | self._imposed))

    def state(self) -> ExclusionState:
        """The record, for `restart`."""
        return msgspec.convert(msgspec.to_builtins(self._state), ExclusionState)

    def restart(self, state: ExclusionState) -> None:
        """Go on from a record; one of another group says nothing about this one."""
        if state.ranks == self._ranks:
            self._state = msgspec.convert(msgspec.to_builtins(state), ExclusionState)

    def preview(
        self, offences: Sequence[tuple[int, Ground]], *, held: Collection[int] = ()
    ) -> Decision:
        """Return what `decide` would; changes nothing."""
        other = Exclusion(self._ranks, self._nodes)
        other.restart(self._state)
        other._held, other._imposed = self._held, self._imposed
        return other.decide(offences, held=held)

    def add(self, offences: Sequence[tuple[int, Ground]]) -> Decision:
        """Judge what came to light after a step was judged; no time passes."""
        return self.decide(offences, held=self._held, passes=0)

    def decide(
        self,
        offences: Sequence[tuple[int, Ground]],
        *,
        held: Collection[int] = (),
        passes: int = 1,
    ) -> Decision:
        """Judge one step; changes nothing but this record.

        Args:
            offences: ranks and what is said against them in this step, excluded ones included.
            held: ranks that the detector keeps on probation; a rank that is not among them any more
                is free as far as the detector is concerned.
            passes: steps.
        """
        state, before = self._state, frozenset(self.excluded)
        serving = {term.rank for term in state.terms if term.left}
        state.steps += passes
        state.recent = [(at, node) for at, node in state.recent if state.steps - at < WINDOW]
        grounds: dict[int, Ground] = {}
        for rank, ground in offences:
            grounds[rank] = max(grounds.get(rank, ground), ground, key=_ORDER.index)
        if self._ranks > 1 and len(_of(grounds, Ground.NOT_FINITE)) == self._ranks:
            grounds = {}  # nobody is named: the cause is upstream
        held = frozenset(held)
        kept_back: set[int] = set()
        fresh = [rank for rank in {*grounds, *held} if rank not in before]
        admitted = self._admissible(sorted(fresh), grounds, before)
        kept_back.update(set(fresh) - set(admitted))
        self._held = held - kept_back
        for term in state.terms:
            if term.left:  # an offender's is set anew below
                term.left -= passes
        for rank, ground in grounds.items():
            if rank in admitted or rank in serving:
                self._sentence(rank, ground, again=rank in before)
        after = frozenset(self.excluded)
        return Decision(
            excluded=tuple(sorted(after)),
            newly=tuple(sorted(after - before)),
            readmitted=tuple(sorted(before - after)),
            undecided=tuple(sorted(kept_back)),
        )

    def _admissible(
        self, fresh: list[int], grounds: dict[int, Ground], before: frozenset[int]
    ) -> list[int]:
        """The new offenders that may be excluded under rules 1 and 2: all that one rule lets by."""
        if not fresh:
            return []
        told = all(grounds.get(rank) is Ground.NOT_FINITE for rank in fresh)
        limit = max(self.limit, 1) if told and self._ranks > 1 else self.limit
        if len(before - self._imposed) + len(fresh) > limit:
            return []
        admitted = []
        for rank in fresh:
            if grounds.get(rank, Ground.STATISTICS) is Ground.STATISTICS:
                nodes = {node for _, node in self._state.recent}
                if nodes and nodes != {self._nodes[rank]}:
                    continue
                self._state.recent.append((self._state.steps, self._nodes[rank]))
            admitted.append(rank)
        return admitted

    def _term(self, rank: int) -> Term:
        for term in self._state.terms:
            if term.rank == rank:
                return term
        term = Term(rank=rank)
        self._state.terms.append(term)
        return term

    def _sentence(self, rank: int, ground: Ground, *, again: bool) -> None:
        term = self._term(rank)
        if not again:
            term.offences += 1
            term.ground = ground
        term.ground = max(term.ground, ground, key=_ORDER.index)
        short = term.ground in {Ground.NOT_FINITE, Ground.GROSS}
        doublings = min(term.offences - 1, _MOST_DOUBLINGS)
        term.left = (GROSS_TERM if short else TERM) << doublings


_ORDER: Final = list(Ground)
"""From the weakest claim on a term to the strongest."""


def weights_of(ranks: int, excluded: Collection[int]) -> tuple[float, ...]:
    """The factor of each rank's gradient: the mean of the weighted is the mean over live ranks."""
    live = ranks - len(set(excluded))
    if live < 1:
        raise ValueError(f"all of {ranks} ranks are excluded")
    return tuple(0.0 if rank in excluded else ranks / live for rank in range(ranks))


def _of(grounds: dict[int, Ground], wanted: Ground) -> list[int]:
    return [rank for rank, ground in grounds.items() if ground is wanted]
