# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Evidence against each rank, added up over steps: a conformal e-CUSUM. Pure, and deterministic.

Streams are statistics (rank_statistics.py) of slots: the whole gradient, the mean over the groups,
and each group. In each step and stream:

1. `z` is the residual over the honest spread: the median of the last 64 steps' deviations, or this
   step's where that is larger (a step that makes all ranks restless accuses nobody), clipped to 4;
2. each bet pays `w = exp(lambda z)` (bets.py), and `e = 1 - eps + eps w / mean(w)`, the mean taken
   over today's live ranks and over the honest past, which counts as one step like today for each
   32 steps of the training, at most as 16 (a young training's tails change: measured, without this
   rule one honest rank in 25,600 rank-steps was named, at step 48);
3. `M <- max(M, 1) e`, and a rank's evidence `E` is the weighted mean of its `M`.

Where honest ranks are exchangeable, `e` has mean one whatever the distribution, and so has the mean
of all streams whatever depends on what: the mean time until an honest rank reaches `E = L` is at
least `L` steps (e-detectors: Shin, Ramdas, Rinaldo, NEJSDS 2023; conformal e-values: Vovk 2025).

- **Quarantine**: values become the past after 16 steps, unless the rank was named meanwhile.
  Learning never stops on a mere suspicion: it would not begin again when data drift.
- A group that has no gradient in a step is skipped and keeps its state by name.
- Ranks with data of their own (`per-rank`) are measured against their own past too: own_scale.py.
- Only sums, products, quotients and sorts of the same numbers in the same order: every rank comes
  to the same evidence.
"""

import copy
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from securetrain.guard.assessment import BROAD, STATISTICS, WHOLE, Reason
from securetrain.guard.bets import CLIP, MISSING, Bets, Index, Powers, bets_for, index_of
from securetrain.guard.detector_state import EvidenceState, packed, unpacked
from securetrain.guard.medians import Floats, Mask, mean_of, median, spread, widened
from securetrain.guard.own_scale import OwnScale
from securetrain.policy.schema import GradientData

WINDOW: Final = 64
LAG: Final = 16
SLOTS: Final = 2
"""Slots before the groups': the whole gradient and the mean of the groups."""
_BROAD: Final = 1
_TRUST: Final = 16.0
_KEEP: Final = np.float32(1.0 - 1.0 / WINDOW)
_LEAST_SPREAD: Final = 2.0**-12
"""A residual of a four-thousandth is not told from none: 256 steps of the statistics' grid."""
_LARGEST: Final = np.float32(np.e**24)
"""Evidence is capped, so that it can sink again."""
_OUTSIDE: Final = 0.5
"""Ranks outside the reference are compared with one more than those in it: a small bias."""
_WARMUP: Final = 2 * (LAG + WINDOW)


@dataclass(slots=True, kw_only=True)
class Waiting:
    """Values of one step that are not yet the past."""

    index: Index
    """(slots, 4, ranks)"""
    raw: Floats | None
    good: Mask


@dataclass(slots=True, kw_only=True)
class Memory:
    """All that is remembered of the slots; arrays are replaced or written in place."""

    steps: int = 0
    cusum: Powers
    """(bets, slots, 4, ranks)"""
    pool: Powers
    """(bets, slots, 4, 1 or ranks): the past's sum of exp(lambda z), with decay."""
    count: Powers
    """(slots, 4, 1 or ranks): how many values that are."""
    spread: Floats
    """(WINDOW, slots, 4): the ranks' deviations in the last steps."""
    queue: deque[Waiting] = field(default_factory=deque)


class Evidence:
    """The e-CUSUM of all streams and ranks.

    Args:
        ranks: of the group.
        data: whether ranks are exchangeable.
    """

    def __init__(self, ranks: int, data: GradientData) -> None:
        self._ranks = ranks
        self.bets: Bets = bets_for(data)
        self._own = OwnScale(ranks) if data is GradientData.PER_RANK else None
        self.groups: list[str] = []
        self.memory = Memory(
            cusum=np.ones((self.bets.count, SLOTS, len(STATISTICS), ranks), np.float32),
            pool=np.zeros((self.bets.count, SLOTS, len(STATISTICS), self._columns), np.float32),
            count=np.zeros((SLOTS, len(STATISTICS), self._columns), np.float32),
            spread=np.full((WINDOW, SLOTS, len(STATISTICS)), np.nan),
        )
        self._weights = self.bets.weights(0)
        self.unit: Floats = np.full((SLOTS, len(STATISTICS)), np.nan)
        """(slots, 4): the last step's honest deviation."""

    def copy(self) -> "Evidence":
        """A twin: what is written in place is copied, the rest is shared."""
        twin, memory = copy.copy(self), self.memory
        twin.groups = [*self.groups]
        twin._own = None if self._own is None else self._own.copy()  # noqa: SLF001
        twin.memory = replace(
            memory,
            cusum=memory.cusum.copy(),
            spread=memory.spread.copy(),
            queue=deque(replace(one, good=one.good.copy()) for one in memory.queue),
        )
        return twin

    @property
    def warming_up(self) -> bool:
        """True while there is no past to measure a rank's own offsets with."""
        return self._own is not None and self.memory.steps < _WARMUP

    @property
    def _columns(self) -> int:
        return 1 if self._own is None else self._ranks

    def slots(self, names: Sequence[str]) -> list[int]:
        """The slots of groups; a group that was not seen before gets one."""
        fresh = [name for name in names if name not in self.groups]
        if fresh:
            self.groups += fresh
            self._widen(len(fresh))
        place = {name: slot for slot, name in enumerate(self.groups, SLOTS)}
        return [place[name] for name in names]

    def observe(
        self, raw: Floats, base: Mask, good: Mask, *, silent: bool = False
    ) -> tuple[Floats, Floats]:
        """Bet on one step.

        Args:
            raw: (slots, 4, ranks) residuals; the slot of the groups' mean is filled in here.
            base: the ranks that are compared with.
            good: the ranks of `base` whose values may become the past.
            silent: the comparison says nothing in this step.

        Returns:
            E of each rank, and the step's z (slots, 4, ranks).
        """
        wide, raw = self._standardise(raw, base)
        z = np.sign(wide) * np.maximum(np.abs(wide) - np.where(base, 0.0, _OUTSIDE), 0.0)
        index = index_of(z)
        if not silent and not self.warming_up:
            factors = self._factors(index, base)
            memory = self.memory
            memory.cusum = np.minimum(np.maximum(memory.cusum, np.float32(1)) * factors, _LARGEST)
        self._learn(Waiting(index=index, raw=None if self._own is None else raw, good=good))
        self.memory.steps += 1
        return self.totals(), wide

    def totals(self) -> Floats:
        """E of each rank."""
        shares = self.memory.cusum * self._weights[..., None]
        total: Floats = shares.sum(axis=(0, 1, 2), dtype=np.float64)
        return total

    def by_group(self) -> Floats:
        """E of each rank if all were bet on one group, (groups, ranks)."""
        weights = self._weights[:, SLOTS:]
        shares = (self.memory.cusum[:, SLOTS:] * weights[..., None]).sum(axis=(0, 2))
        whole: Floats = shares / weights.sum(axis=(0, 2), dtype=np.float64)[:, None]
        return whole

    def reason(self, rank: int) -> Reason:
        """The stream that speaks loudest against a rank."""
        share = self.memory.cusum[..., rank] * self._weights
        bet, slot, statistic = np.unravel_index(int(share.argmax()), share.shape)
        return self.reason_at(int(slot), int(statistic), high=bool(self.bets.high[bet]))

    def reason_at(self, slot: int, statistic: int, *, high: bool = True) -> Reason:
        """The words for a place in the table."""
        return Reason([WHOLE, BROAD, *self.groups][slot], STATISTICS[statistic], high)

    def scale(self, rank: int, factor: float) -> None:
        """Multiply the evidence against a rank."""
        self.memory.cusum[..., rank] *= np.float32(factor)

    def cap(self, ranks: Sequence[int], most: float) -> None:
        """Cut the evidence against some ranks in every stream."""
        if ranks:
            cut = np.minimum(self.memory.cusum[..., ranks], np.float32(most))
            self.memory.cusum[..., ranks] = cut

    def disown(self, rank: int) -> None:
        """Keep what a rank said in the last steps out of the past."""
        for waiting in self.memory.queue:
            waiting.good[rank] = False

    # -- one step ----------------------------------------------------------------------------------

    def _standardise(self, raw: Floats, base: Mask) -> tuple[Floats, Floats]:
        memory, at = self.memory, self.memory.steps % WINDOW
        memory.spread[at] = spread(raw[..., base])
        z = raw / self._unit(at)[..., None]
        broad = mean_of(np.clip(z[SLOTS:], -CLIP, CLIP))
        memory.spread[at, _BROAD] = spread(broad[..., base])
        self.unit = self._unit(at)
        z[_BROAD] = broad / self.unit[_BROAD, :, None]
        if self._own is not None:
            z, raw = self._own.temper(raw, z, base, SLOTS)
        return z, raw

    def _unit(self, at: int) -> Floats:
        usual = median(self.memory.spread, 0)
        unit: Floats = np.maximum(np.fmax(usual, self.memory.spread[at]), _LEAST_SPREAD)
        return unit

    def _factors(self, index: Index, base: Mask) -> Powers:
        """The e-values, (bets, slots, 4, ranks)."""
        memory, one = self.memory, np.float32(1)
        powers = self.bets.powers(index)
        there = index != MISSING
        live = (there & base).astype(np.float32)
        today = live.sum(axis=-1, keepdims=True)
        pool, count = memory.pool, memory.count
        if self._own is not None:
            pool, count = pool.sum(axis=-1, keepdims=True), count.sum(axis=-1, keepdims=True)
        trust = np.float32(min(_TRUST, memory.steps / (2 * LAG)))
        trusted = np.minimum(one, trust * today / np.maximum(count, np.float32(1e-6)))
        top = trusted * pool + (powers * live).sum(axis=-1, keepdims=True)
        size = trusted * count + today
        outside = (top + powers) / (size + one)
        mean = np.where(live > 0, top / np.maximum(size, one), outside)
        if self._own is not None:  # and the rank's own past, where that pays more
            mean = np.maximum(mean, (memory.pool + powers) / (memory.count + one))
        epsilon = self.bets.epsilon[:, None, None, None]
        factors = (one - epsilon) + epsilon * powers / mean
        return np.where(there, factors, one)

    def _learn(self, now: Waiting) -> None:
        memory = self.memory
        memory.queue.append(now)
        if len(memory.queue) <= LAG:
            return
        past = memory.queue.popleft()
        live = ((past.index != MISSING) & past.good).astype(np.float32)
        values = self.bets.powers(past.index) * live
        count = live
        if self._own is None:
            values, count = values.sum(axis=-1, keepdims=True), live.sum(axis=-1, keepdims=True)
        memory.pool = np.where(count > 0, _KEEP * memory.pool + values, memory.pool)
        memory.count = np.where(count > 0, _KEEP * memory.count + count, memory.count)
        if self._own is not None and past.raw is not None:
            self._own.learn(past.raw, past.good)

    # -- checkpoints -------------------------------------------------------------------------------

    def state(self) -> EvidenceState:
        """The tables; without what is in quarantine."""
        memory, own = self.memory, self._own
        return EvidenceState(
            groups=list(self.groups),
            steps=memory.steps,
            cusum=packed(memory.cusum.astype(np.float64)),
            pool=packed(memory.pool.astype(np.float64)),
            count=packed(memory.count.astype(np.float64)),
            spread=packed(memory.spread),
            own_past="" if own is None else packed(own.memory.past),
            own_steps=0 if own is None else own.memory.steps,
        )

    def restart(self, state: EvidenceState) -> None:
        """Go on from `state`.

        Raises:
            ValueError: its tables do not fit, or hold numbers that no detector has.
        """
        self.groups = list(state.groups)
        if len(set(self.groups)) != len(self.groups):
            raise ValueError("a group stands in the state twice")
        bets, slots, kinds = self.bets.count, SLOTS + len(self.groups), len(STATISTICS)
        self.memory = Memory(
            steps=state.steps,
            cusum=_plain(state.cusum, (bets, slots, kinds, self._ranks)),
            pool=_plain(state.pool, (bets, slots, kinds, self._columns)),
            count=_plain(state.count, (slots, kinds, self._columns)),
            spread=unpacked(state.spread, (WINDOW, slots, kinds)),
        )
        self._weights = self.bets.weights(len(self.groups))
        if self._own is not None:
            past = unpacked(state.own_past, (WINDOW, slots, kinds, self._ranks))
            self._own.restart(past, state.own_steps)

    # -- slots -------------------------------------------------------------------------------------

    def _widen(self, fresh: int) -> None:
        memory = self.memory
        memory.cusum = widened(memory.cusum, 1, fresh, 1.0)
        memory.pool = widened(memory.pool, 1, fresh, 0.0)
        memory.count = widened(memory.count, 0, fresh, 0.0)
        memory.spread = widened(memory.spread, 1, fresh, np.nan)
        for waiting in memory.queue:
            waiting.index = widened(waiting.index, 0, fresh, MISSING)
            if waiting.raw is not None:
                waiting.raw = widened(waiting.raw, 0, fresh, np.nan)
        if self._own is not None:
            self._own.widen(fresh)
        self._weights = self.bets.weights(len(self.groups))


def _plain(text: str, shape: tuple[int, ...]) -> Powers:
    values = unpacked(text, shape)
    if not np.isfinite(values).all() or (values < 0).any():
        raise ValueError("a table of evidence holds numbers that no detector has")
    return values.astype(np.float32)
