# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Find outlier ranks. Robust tests on sketches; a pure function of the tables seen so far.

Every test compares a log-statistic of a rank with the median of the **other** ranks, divided by
the spread that accepted ranks showed in the last 32 steps (robust.py), and flags it from
`policy.threshold` on:

=========  ====  ==============================================================================
test       n     statistic
=========  ====  ==============================================================================
finite     any   NaN or infinity in any sketch number (a sketch never hides one)
norm       >=3   log norm
far        >=3   log of the median distance to the others
close      >=3   log of the distance to the nearest other (mimic, collusion, duplicated data)
cosine     >=3   log(1.02 - cosine with the coordinate-wise median of the others' unit vectors)
direction  >=3   the cosine test's z, clipped to 3, averaged over time; two-sided, because a
                 gradient made from the others' is more like them than they are
history    >=3   residuals averaged over time (residual_history.py)
pair       2     log norm ratio and cosine of the two, against their own past
spike      any   log of the group's median norm against its own past
=========  ====  ==============================================================================

Order: norm, copies, far, close, cosine; the worst rank is set aside and the rest is scored again,
so that a gross outlier does not make its honest neighbours look odd; a minority of the ranks.
During the warm-up the spread is not yet known, so coarse priors stand in for it (a sign flip
times 5 is found, a subtle attack is not), and the tests over time wait. Statistics that are
averaged over time have light tails, so their z counts 4/3.

False alarms, measured on a character transformer (71 k parameters, Python source, AdamW): none in
2,800 rank-steps of 400 tokens a rank (n = 4), largest z 5.5. With fewer than 100 tokens a rank the
norms have heavy tails (one row of text with five times the others' gradient): 0.2-0.7 % of steps.

What it cannot do:

- **name a rank of two**: the pair test names one only when it alone left its own past, else the
  step is refused as unattributed. With one rank only finite and spike remain;
- **tell a copy from its original**: close flags both and the verdict is unattributed;
- **an honest minority**: with half of the ranks lying the medians lie;
- **an adaptive rank** that stays inside every limit, or attacks one step in ten (reference: 2 %
  of rank-steps found), or hides its drift from the public window seed. The same holds for a few
  trigger texts in honest batches (38-77 %). Robust aggregation and the audit are for those;
- **noise-dominated training**: where the mean gradient is far below the noise of a rank, a sign
  flip without amplification is half noise itself.
"""

import math
import statistics
from dataclasses import dataclass
from typing import Final

import msgspec
import torch
from torch import Tensor

from securetrain.guard.group_statistics import GroupStatistics, statistics_of
from securetrain.guard.residual_history import Average, History
from securetrain.guard.robust import (
    Level,
    LevelState,
    Scale,
    against_others,
)
from securetrain.guard.sketch import SketchShape
from securetrain.guard.verdict import RankScore, Test, finite_or_none

_TINY: Final = 1e-30
_IDENTICAL: Final = 1e-2
"""Two gradients nearer than this, over the median norm, are copies, whoever else is far."""
_LIGHT_TAIL: Final = 4 / 3
_CLIP: Final = 3.0
_MAX_Z: Final = 1e6

_SCALES: Final = {
    # floor: at threshold 8 a norm that is 1.9 times the others' is never refused;
    # prior: what honest ranks do in the first steps of a training
    Test.NORM: (0.12, 0.18),
    Test.FAR: (0.2, 0.2),
    Test.CLOSE: (0.12, 0.25),
    Test.COSINE: (0.13, 0.3),
    Test.DIRECTION: (1.2, 1.2),
}
_DIRECTION_EVERY: Final = 8
"""Steps between values of the direction scale: its average has a memory of twenty."""
_SPIKE: Final = (0.25, 0.25)
_PAIR_NORM: Final = (0.1, 0.2)
_PAIR_ANGLE: Final = (0.15, 0.3)
_OWN: Final = (0.2, 0.2)


class DetectorState(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Everything a detector has learned, but the history (residual_history.py)."""

    ranks: int
    steps: int = 0
    scales: dict[str, list[list[float]]] = {}
    levels: dict[str, LevelState] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """The results of all tests for one step."""

    table: tuple[RankScore, ...]
    outliers: tuple[int, ...]
    attributed: bool
    spike: bool
    calibrating: bool

    @property
    def not_finite(self) -> tuple[int, ...]:
        """Ranks with NaN or infinity."""
        return tuple(score.rank for score in self.table if not score.finite)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ScoredGroup:
    """At least three ranks, and the z-scores of their statistics."""

    raw: GroupStatistics
    z: dict[Test, list[float]]


class Detector:
    """Scores step after step.

    Args:
        ranks: size of the group.
        warmup_steps: steps that only learn.
        threshold: robust z from which a rank is an outlier.
    """

    def __init__(self, ranks: int, *, warmup_steps: int, threshold: float) -> None:
        self._ranks = ranks
        self._warmup = warmup_steps
        self._threshold = threshold
        self.restart(DetectorState(ranks=ranks))

    def restart(self, state: DetectorState) -> None:
        """Begin from `state`; one of another group size is learned anew, with a new warm-up."""
        if state.ranks != self._ranks:
            state = DetectorState(ranks=self._ranks)
        self._steps = state.steps
        self._scales = {test: Scale(*_SCALES[test], self._ranks) for test in _SCALES}
        for test, scale in self._scales.items():
            if len(state.scales.get(test.value, ())) == self._ranks:
                scale.values = [list(values) for values in state.scales[test.value]]
        self._levels = {"spike": Level(*_SPIKE)}
        if self._ranks == 2:
            self._levels |= {"pair": Level(*_PAIR_NORM), "angle": Level(*_PAIR_ANGLE)}
            self._levels |= {"own-0": Level(*_OWN), "own-1": Level(*_OWN)}
        for name, level in self._levels.items():
            if name in state.levels:
                level.state = state.levels[name]
        self._direction = Average()
        self.forget_history()

    def forget_history(self) -> None:
        """The window sketches have other directions from now on."""
        self._history = History()

    def state(self) -> DetectorState:
        """The state that `restart` takes."""
        return DetectorState(
            ranks=self._ranks,
            steps=self._steps,
            scales={
                test.value: [list(values) for values in scale.values]
                for test, scale in self._scales.items()
            },
            levels={
                name: LevelState(values=level.state.values, residuals=level.state.residuals)
                for name, level in self._levels.items()
            },
        )

    def observe(self, fresh: Tensor, window: Tensor, shape: SketchShape) -> Assessment:
        """Score one step and learn from it.

        Args:
            fresh: (ranks, size) fp64 sketches under this step's seeds.
            window: (ranks, size) fp64 sketches under the fixed seed; ignored below three ranks.
            shape: of the sketches.
        """
        if fresh.shape[0] != self._ranks:
            raise ValueError(f"{fresh.shape[0]} sketches for {self._ranks} ranks")
        calibrating = self._steps < self._warmup
        self._steps += 1
        finite = torch.isfinite(fresh).all(dim=1) & torch.isfinite(window).all(dim=1)
        alive = [int(i) for i in finite.nonzero().flatten()]
        fresh = fresh / math.sqrt(shape.rows)  # lengths of rows estimate lengths of gradients
        size = torch.linalg.vector_norm(fresh, dim=1)
        spike = self._spike(size, alive, calibrating=calibrating)
        if len(alive) >= 3:
            flags, details = self._group_tests(fresh, window, size, alive, calibrating=calibrating)
            attributed = True
        elif len(alive) == 2 and self._ranks == 2:
            flags, details, attributed = self._pair_tests(fresh, size, calibrating=calibrating)
        else:
            flags, details, attributed = {}, {}, True
        return self._assess(
            size, alive, flags, details, attributed=attributed, spike=spike, calibrating=calibrating
        )

    # -- the tests ---------------------------------------------------------------------------------

    def _spike(self, size: Tensor, alive: list[int], *, calibrating: bool) -> bool:
        if not alive:
            return False
        value = math.log(statistics.median(size[alive].tolist()) + _TINY)
        level = self._levels["spike"]
        z = level.z(value, calibrating=calibrating)
        level.add(value, calibrating=calibrating)
        return not calibrating and abs(z) >= self._threshold

    def _group_tests(
        self, fresh: Tensor, window: Tensor, size: Tensor, alive: list[int], *, calibrating: bool
    ) -> tuple[dict[int, set[Test]], dict[int, dict[str, float]]]:
        first = self._score_group(fresh[alive], size[alive], calibrating=calibrating)
        flags, last, current = self._exclude(fresh, size, alive, first, calibrating=calibrating)
        clean = not any(rank in flags for rank in current)
        if clean:
            self._learn(last, current)
        details = _details(first, alive)
        # Ranks that a test of this step refuses stay out of the averages, which are for the rest: a
        # fault that is over must not echo.
        history = self._history.observe(window, [rank for rank in alive if rank not in flags])
        if calibrating or any(Test.CLOSE in tests for tests in flags.values()):
            return flags, details
        # The last scoring counts; ranks set aside, and all when a liar is among them, count zero.
        cosine = torch.zeros(self._ranks, dtype=torch.float64)
        if clean:
            cosine[current] = torch.tensor(last.z[Test.COSINE], dtype=torch.float64)
        direction = self._direction.add(cosine.clamp(-_CLIP, _CLIP)).tolist()
        scale = self._scales[Test.DIRECTION]
        self._over_time(
            Test.DIRECTION, direction, scale.get(calibrating=False), alive, flags, details
        )
        if history is not None:
            self._over_time(Test.HISTORY, *history, alive, flags, details)
        if not flags and self._steps % _DIRECTION_EVERY == 0:
            for rank, value in enumerate(against_others(direction)):
                scale.add(rank, value)
        return flags, details

    def _over_time(  # noqa: PLR0917
        self,
        test: Test,
        values: list[float],
        scale: float,
        alive: list[int],
        flags: dict[int, set[Test]],
        details: dict[int, dict[str, float]],
    ) -> None:
        """Score averages; set the worst rank aside and score again while three remain."""
        current = list(alive)
        while True:
            spread = against_others([values[rank] for rank in current])
            z = [value / scale * _LIGHT_TAIL for value in spread]
            if test is Test.DIRECTION:
                z = [abs(value) for value in z]
            for rank, value in zip(current, z, strict=True):
                details[rank].setdefault(test.value, value)
            worst = max(range(len(z)), key=z.__getitem__)
            if z[worst] < self._threshold:
                return
            flags.setdefault(current[worst], set()).add(test)
            current.pop(worst)
            if len(current) < 3:
                return

    def _exclude(
        self,
        fresh: Tensor,
        size: Tensor,
        alive: list[int],
        scored: _ScoredGroup,
        *,
        calibrating: bool,
    ) -> tuple[dict[int, set[Test]], _ScoredGroup, list[int]]:
        """Set the worst rank aside and score the rest again, until nobody stands out."""
        flags: dict[int, set[Test]] = {}
        current = list(alive)
        while True:
            worst = _worst(scored, Test.NORM, self._threshold)
            if worst is None and (copies := self._copies(scored, nearer_than=_IDENTICAL)):
                flags |= {current[i]: {Test.CLOSE} for i in copies}
                break  # they make the consensus their own: who else is off is not known
            if worst is None:
                worst = _worst(scored, Test.FAR, self._threshold)
            if worst is None and (copies := self._copies(scored)):
                flags |= {current[i]: {Test.CLOSE} for i in copies}
                break
            if worst is None:
                worst = _worst(scored, Test.COSINE, self._threshold)
            if worst is None:
                break
            rank = current[worst]
            flags[rank] = {t for t, z in scored.z.items() if z[worst] >= self._threshold}
            rest = [r for r in current if r != rank]
            if len(rest) < 3 or len(flags) > (len(alive) - 1) // 2:
                break
            current = rest
            scored = self._score_group(fresh[current], size[current], calibrating=calibrating)
        return flags, scored, current

    def _copies(self, scored: _ScoredGroup, nearer_than: float = math.inf) -> list[int]:
        return [
            i
            for i, z in enumerate(scored.z[Test.CLOSE])
            if z >= self._threshold and scored.raw.nearest[i] < nearer_than
        ]

    def _score_group(self, fresh: Tensor, size: Tensor, *, calibrating: bool) -> _ScoredGroup:
        raw = statistics_of(fresh, size)
        z = {}
        for test, values in raw.values.items():
            spread = against_others(values)
            match test:
                case Test.CLOSE:
                    spread = [-x for x in spread]
                case Test.NORM:
                    spread = [abs(x) for x in spread]
            scale = self._scales[test].get(calibrating=calibrating)
            z[test] = [x / scale for x in spread]
        return _ScoredGroup(raw=raw, z=z)

    def _learn(self, scored: _ScoredGroup, current: list[int]) -> None:
        for test, values in scored.raw.values.items():
            for rank, value in zip(current, against_others(values), strict=True):
                self._scales[test].add(rank, value)

    def _pair_tests(
        self, fresh: Tensor, size: Tensor, *, calibrating: bool
    ) -> tuple[dict[int, set[Test]], dict[int, dict[str, float]], bool]:
        logs = [math.log(float(s) + _TINY) for s in size]
        cosine = float(torch.nn.functional.cosine_similarity(fresh[0], fresh[1], dim=0))
        observed = {
            "pair": logs[0] - logs[1],
            "angle": math.log(1.02 - cosine),
            "own-0": logs[0],
            "own-1": logs[1],
        }
        z = {
            name: self._levels[name].z(value, calibrating=calibrating)
            for name, value in observed.items()
        }
        worst = max(abs(z["pair"]), z["angle"])
        for name, value in observed.items():
            # Two honest ranks stay alike, so a refused step teaches nothing about the pair.
            if worst < self._threshold or name.startswith("own"):
                self._levels[name].add(value, calibrating=calibrating)
        details = {rank: {"cosine": cosine, "z": worst} for rank in (0, 1)}
        if worst < self._threshold:
            return {}, details, True
        own = [abs(z["own-0"]), abs(z["own-1"])]
        culprit = max((0, 1), key=lambda rank: own[rank])
        clear = own[culprit] >= self._threshold / 2 and own[1 - culprit] <= own[culprit] / 2
        return ({culprit: {Test.PAIR}} if clear else {}), details, clear

    # -- the result --------------------------------------------------------------------------------

    def _assess(
        self,
        size: Tensor,
        alive: list[int],
        flags: dict[int, set[Test]],
        details: dict[int, dict[str, float]],
        *,
        attributed: bool,
        spike: bool,
        calibrating: bool,
    ) -> Assessment:
        table = []
        for rank in range(self._ranks):
            found = set(flags.get(rank, set()))
            if rank not in alive:
                found = {Test.FINITE}
            row = {name: _bounded(value) for name, value in details.get(rank, {}).items()}
            table.append(
                RankScore(
                    rank=rank,
                    finite=rank in alive,
                    norm=finite_or_none(float(size[rank])) if rank in alive else None,
                    flags=tuple(sorted(found)),
                    **row,
                )
            )
        minority = len(flags) <= (self._ranks - 1) // 2 or self._ranks <= 2
        copied = any(tests == {Test.CLOSE} for tests in flags.values())
        return Assessment(
            table=tuple(table),
            outliers=tuple(sorted(flags)),
            attributed=attributed and minority and not copied,
            spike=spike,
            calibrating=calibrating,
        )


def _worst(scored: _ScoredGroup, test: Test, threshold: float) -> int | None:
    z = scored.z[test]
    index = max(range(len(z)), key=z.__getitem__)
    return index if z[index] >= threshold else None


def _details(scored: _ScoredGroup, alive: list[int]) -> dict[int, dict[str, float]]:
    worst = [max(column) for column in zip(*scored.z.values(), strict=True)]
    return {
        rank: {
            "z": worst[i],
            "distance": scored.raw.distance[i],
            "nearest": scored.raw.nearest[i],
            "cosine": scored.raw.cosine[i],
        }
        for i, rank in enumerate(alive)
    }


def _bounded(value: float) -> float | None:
    return finite_or_none(min(max(value, -_MAX_Z), _MAX_Z)) if not math.isnan(value) else None
