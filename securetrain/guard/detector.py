# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Evidence about each rank from fresh sketches, by a budget of false alarms. Pure.

Input of a step (rows.py): for each group of parameters one row per rank, and one for the
optimizer's momentum, under seeds that nobody knew before delivery. Nothing kept from step to step
depends on a seed, so that nothing can be aimed at the null space of one.

1. Rows that are not finite, and ranks on probation, are out of the reference.
2. **Copies** leave the reference too and are judged by the rest: who copied whom is not known, so a
   copy is no evidence; two ranks that repeat one lie are both named. With fewer than three others
   left nobody is judged.
3. **Gross**: a norm or distance of the whole gradient above a factor of four and twice the largest
   honest one (sixteen, of a single group) counts zero in this step. What is gross or not finite is
   also the strongest evidence that a step can give.
4. **Evidence** (evidence.py) adds up until `ln E >= ln(1e6 / budget)`; then **probation**
   (probation.py).
5. **Undecided**: more ranks are off than may be excluded, or somebody is off in every step and
   another one each time (somebody.py).
6. The median norm of all ranks is watched against its own past (own_past.py): when all leap
   together, nobody is named. Two ranks are a pair and have their own pasts besides.

All ranks come to the same answer: statistics are rounded to a grid, after that only sums, products,
quotients and sorts in one order decide. A rank that comes to another one all the same disagrees
aloud (watch.py).

What it cannot do, measured (docs/explanation/limits.md): name one that stays below about
`5.6 / sqrt(T)` deviations for T steps; name a rotating liar; tell a copy from its original; with
two or three ranks, exclude anybody; find offsets that were there from the first step, or slower
than 64 steps, where data are `per-rank`; with half of the ranks lying, the medians lie.
"""

import copy
import math
from dataclasses import replace
from types import MappingProxyType
from typing import Final

import numpy as np

from securetrain.guard.assessment import Assessment
from securetrain.guard.bets import bets_for
from securetrain.guard.detector_state import VERSION, DetectorState, packed, unpacked
from securetrain.guard.evidence import SLOTS, Evidence
from securetrain.guard.gross import TURNED, Gross
from securetrain.guard.medians import Floats, Mask, median, middle_of
from securetrain.guard.own_past import EARLY, Series
from securetrain.guard.probation import Probation
from securetrain.guard.rank_statistics import GRID, bounded, copies, measure, residuals
from securetrain.guard.rows import StepRows
from securetrain.guard.somebody import Somebody
from securetrain.policy.schema import GradientData, Gradients

_COMPARABLE: Final = 3
_INFINITE: Final = 64.0
"""The residual of a row that is not finite: more than any number of the others."""
_TINY: Final = 1e-300
_GRID: Final = 1024.0
_AUDIBLE: Final = 1.0
"""ln E of a group from which on it is told."""
_LAYERS: Final = 16
"""Groups that one step tells of."""


class Detector:
    """Judges step after step.

    Args:
        ranks: size of the group.
        budget: false alarms per million rank-steps.
        data: whether the ranks' data are exchangeable.
    """

    def __init__(
        self, ranks: int, *, budget: float = 20.0, data: GradientData = GradientData.SHUFFLED
    ) -> None:
        self._ranks = ranks
        self._limit = rounded(math.log(1e6 / budget))
        self._data = data
        self._pair_bets = bets_for(GradientData.PER_RANK)
        self._begin()

    @classmethod
    def of(cls, ranks: int, settings: Gradients) -> "Detector":
        """The detector that a policy asks for."""
        return cls(ranks, budget=settings.budget, data=settings.data)

    def _begin(self) -> None:
        self._steps = 0
        self._peak = 0.0
        self._evidence = Evidence(self._ranks, self._data)
        self._gross = Gross(SLOTS)
        self._somebody = Somebody(self._evidence.bets)
        self._probation = Probation(max(0, (self._ranks - 1) // 3))
        self._series = {"spike": Series()}
        if self._ranks == 2:
            self._series |= {"ratio": Series(level=64, lag=16), "angle": Series(level=64, lag=16)}
            self._series |= {"own-0": Series(), "own-1": Series()}

    @property
    def learned(self) -> int:
        """Steps that it has learned from, and has not taken back."""
        return self._steps

    def observe(self, rows: StepRows) -> Assessment:
        """Judge one step and learn from it."""
        gradients = np.asarray(rows.gradients, dtype=np.float64)
        if gradients.shape[:2] != (len(rows.groups), self._ranks):
            raise ValueError(
                f"rows {gradients.shape} for {len(rows.groups)} groups and {self._ranks} ranks"
            )
        finite = np.asarray(np.isfinite(gradients).all(axis=(0, 2)))
        live = finite.copy()
        live[list(self._probation.out)] = False
        found = Assessment(
            ranks=self._ranks,
            norms=(None,) * self._ranks,
            limit=self._limit,
            not_finite=_places(~finite),
            named=tuple(sorted(self._probation.out)),
            learning=self._steps < EARLY or self._evidence.warming_up,
        )
        if len(rows.groups) and live.any():
            table = bounded(np.concatenate([gradients.sum(axis=0)[None], gradients]), live)
            norms = np.sqrt(np.square(table[0]).sum(axis=-1))
            found = replace(found, norms=_where(norms, finite))
            if live.sum() >= _COMPARABLE:
                found = self._compare(found, rows, table, finite, live)
            elif self._ranks == 2 and live.all():
                found = self._compare_pair(found, table[0])
            leaps = self._leaps("spike", float(middle_of(np.sort(norms[live]))[0]))
            found = replace(found, spike=leaps and not found.gross)
        self._steps += 1
        return replace(found, peak=self._peak)

    # -- checkpoints, and steps that are taken back ------------------------------------------------

    def state(self) -> DetectorState:
        """The state that `restart` takes."""
        known = sorted({*self._probation.out, *self._probation.offences})
        evidence = self._evidence.state()
        evidence.largest = packed(self._gross.largest)
        return DetectorState(
            ranks=self._ranks,
            data=self._data,
            steps=self._steps,
            peak=self._peak,
            probation=[self._probation.record(rank) for rank in known],
            series={name: one.copy() for name, one in self._series.items()},
            evidence=evidence,
        )

    def restart(self, state: DetectorState) -> bool:
        """Begin from `state`; False when it is of another kind, and all is learned anew.

        Raises:
            ValueError: the state contradicts itself.
        """
        self._begin()
        fits = (state.version, state.ranks, state.data) == (VERSION, self._ranks, self._data)
        if not fits or set(state.series) != set(self._series):
            return False
        if not 0.0 <= state.peak < math.inf:
            raise ValueError(f"a share of evidence cannot be {state.peak}")
        self._evidence.restart(state.evidence)
        slots = SLOTS + len(self._evidence.groups)
        self._gross.largest = unpacked(state.evidence.largest, (slots, 2))
        self._probation.restart(state.probation, self._ranks)
        self._series = {name: one.copy() for name, one in state.series.items()}
        self._steps, self._peak = state.steps, state.peak
        return True

    def snapshot(self) -> "Detector":
        """A twin with the same memory, quarantine included: what `rewind` takes. Cheap."""
        twin = copy.copy(self)
        for name in ("_evidence", "_gross", "_somebody", "_probation"):
            setattr(twin, name, getattr(self, name).copy())
        twin._series = {name: one.copy() for name, one in self._series.items()}  # noqa: SLF001
        return twin

    def rewind(self, before: "Detector") -> None:
        """Forget what was observed since `before`: ranks did not agree on it."""
        self.__dict__.update(before.snapshot().__dict__)

    # -- three ranks or more -----------------------------------------------------------------------

    def _compare(
        self, found: Assessment, rows: StepRows, table: Floats, finite: Mask, live: Mask
    ) -> Assessment:
        slots = [0, *self._evidence.slots(rows.groups)]
        self._gross.widen(SLOTS + len(self._evidence.groups))
        pairs = copies(table[0], live)
        base = live.copy()
        base[sorted({rank for pair in pairs for rank in pair})] = False
        silent = bool(base.sum() < _COMPARABLE)  # too few are left to compare with
        if silent:
            base = live.copy()
        momentum = _momentum(rows)
        values = measure(table, momentum, base)
        raw = np.full((SLOTS + len(self._evidence.groups), *values.shape[1:]), np.nan)
        raw[slots] = residuals(values, base)
        raw[..., ~finite] = np.nan
        turned = np.round(values[0, 2] / GRID) * GRID < TURNED
        gross = self._gross.find(raw, live, self._steps, turned)
        # A row without numbers is as far out as a row can be.
        there = np.isfinite(raw[:, :2, base]).any(axis=-1)
        raw[:, :2, ~finite] = np.where(there, _INFINITE, np.nan)[..., None]
        good = base & (not silent)
        good[list(gross)] = False
        totals, z = self._evidence.observe(raw, base, good, silent=silent)
        found = replace(found, copies=pairs, cosines=_where(np.tanh(values[0, 2]), finite))
        found = self._decide(found, totals, gross)
        if silent or found.excluded or self._evidence.warming_up:
            return found  # the odd ones are known
        level = np.full(raw.shape[:2], np.nan)
        level[slots] = median(values[..., base], -1)
        unit = self._evidence.unit
        total = self._somebody.observe(z[SLOTS:], level[SLOTS:], unit[SLOTS:], base)
        return self._suspect(found, total)

    def _suspect(self, found: Assessment, total: float) -> Assessment:
        somebody = rounded(math.log(max(total, 1.0)))
        if somebody >= self._limit:
            self._somebody.scale(math.exp(self._limit / 2 - somebody))
            return replace(found, somebody=somebody, undecided=True)
        return replace(found, somebody=somebody)

    def _decide(
        self, found: Assessment, totals: Floats, gross: dict[int, tuple[int, int]]
    ) -> Assessment:
        evidence = tuple(rounded(math.log(max(one, 1.0))) for one in totals.tolist())
        layers = self._layers()
        decision = self._probation.decide(evidence, self._limit)
        why = {}
        too_many = len(gross) > max(1, self._probation.most)
        if not too_many:
            why = {rank: self._evidence.reason_at(*place) for rank, place in gross.items()}
        named = decision.named
        if named is not None:
            why[named] = self._evidence.reason(named)
            self._evidence.disown(named)
            # A liar bends its neighbours' numbers: the rest is judged again without it.
            rest = [rank for rank in range(self._ranks) if rank not in self._probation.out]
            self._evidence.cap(rest, math.exp(self._limit / 2))
        for rank in (*decision.again, *(() if named is None else (named,))):
            self._evidence.scale(rank, math.exp(self._limit / 2 - evidence[rank]))
        out = self._probation.out
        shares = [one / self._limit for rank, one in enumerate(evidence) if rank not in out]
        self._peak = max(self._peak, *shares, 0.0)
        return replace(
            found,
            evidence=evidence,
            gross=() if too_many else tuple(sorted(gross)),
            named=tuple(sorted(out)),
            newly_named=() if named is None else (named,),
            readmitted=decision.readmitted,
            why=MappingProxyType(why),
            layers=layers,
            undecided=decision.undecided or too_many,
        )

    def _layers(self) -> tuple[tuple[str, int, float], ...]:
        """The rank that each group speaks against loudest, where it says anything."""
        table = self._evidence.by_group()
        loudest = table.argmax(axis=1).tolist()
        rows = zip(self._evidence.groups, loudest, table.max(axis=1).tolist(), strict=True)
        said = [(name, rank, rounded(math.log(max(one, 1.0)))) for name, rank, one in rows]
        loud = sorted((one for one in said if one[2] >= _AUDIBLE), key=lambda one: -one[2])
        return tuple(sorted(loud[:_LAYERS]))

    # -- two ranks, and one ------------------------------------------------------------------------

    def _compare_pair(self, found: Assessment, rows: Floats) -> Assessment:
        norms = [max(one, _TINY) for one in found.norms if one is not None]
        cosine = float((rows[0] * rows[1]).sum()) / (norms[0] * norms[1])
        ratio = self._leaps("ratio", norms[0] / norms[1])
        turned = self._leaps("angle", math.exp(math.atanh(min(max(cosine, -0.999), 0.999))))
        own = [self._leaps(f"own-{rank}", norms[rank]) for rank in (0, 1)]
        culprit = tuple(rank for rank in (0, 1) if own[rank] and not own[1 - rank])
        pair = ratio or turned
        return replace(found, cosines=(cosine, cosine), pair=pair, gross=culprit if pair else ())

    def _leaps(self, name: str, value: float) -> bool:
        series = self._series[name]
        leaps, evidence = series.observe(rounded(math.log(max(value, _TINY))), self._pair_bets)
        if evidence >= self._limit:
            series.settle(self._limit / 2)
            return True
        return leaps


def rounded(value: float) -> float:
    """A logarithm, on a grid on which all processors agree."""
    return round(value * _GRID) / _GRID


def _momentum(rows: StepRows) -> Floats | None:
    if rows.momentum is None or not np.isfinite(rows.momentum).all():
        return None
    momentum = np.asarray(rows.momentum, dtype=np.float64)
    largest = np.abs(momentum).max(initial=0.0)
    scaled = momentum / largest if largest > 0 else momentum
    return np.concatenate([scaled.sum(axis=0)[None], scaled])


def _places(mask: Mask) -> tuple[int, ...]:
    return tuple(int(place) for place in np.flatnonzero(mask))


def _where(values: Floats, mask: Mask) -> tuple[float | None, ...]:
    pairs = zip(values.tolist(), mask.tolist(), strict=True)
    return tuple(value if known and math.isfinite(value) else None for value, known in pairs)
