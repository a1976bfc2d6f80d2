# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""D-GRAD-POISON, -NAN, -LIES, -DRIFT and -NULL: many cases in one group of ranks.

Plain: the same rank does the same to a training without a guard, and the model that all have is
ruined, or worse than that of a clean training, and no rank says a word. Hardened: no honest rank is
named in any verdict, at most two steps are lost, the run is not halted, and the model keeps what it
learned.
"""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from securetrain.drills.gradient_group import BAD, Case, Seen, train
from securetrain.drills.ranks import run_ranks
from securetrain.drills.registry import DRILLS, Attack, Outcome, Sides

WORLD: Final = 4
MOST_LOST: Final = 2
_WORSE: Final = 0.02
"""Nats above the clean training's loss at which a model counts as harmed."""
_SLACK: Final = 0.15


def plain(cases: Sequence[Case], harmful: Sequence[str]) -> Attack:
    """The side without a guard.

    Args:
        cases: All cases of the drill.
        harmful: Those that harm a plain training by themselves. What a rank says to the guard has
            no object there.
    """

    def side(_workdir: Path) -> Outcome:
        chosen = [case for case in cases if case.name in harmful]
        found, clean = run_ranks(twins, WORLD, chosen, False, timeout=100.0)[0]
        harmed = [seen.name for seen, good in zip(found, clean, strict=True) if harms(seen, good)]
        losses = "; ".join(
            f"{seen.name}: {seen.after:.2f} ({good.after:.2f} clean)"
            for seen, good in zip(found, clean, strict=True)
        )
        return Outcome.of_plain(
            len(harmed) == len(chosen),
            f"Rank {BAD} of {WORLD}. Held-out loss {losses}. No rank raised an error.",
        )

    return side


def hardened(cases: Sequence[Case], drill: str, *, caught: Sequence[str]) -> Attack:
    """The side with the guard.

    Args:
        cases: All cases of the drill.
        drill: Its id.
        caught: Cases in which the bad rank must be named.
    """

    def side(_workdir: Path) -> Outcome:
        found, clean = run_ranks(twins, WORLD, list(cases), True, timeout=100.0)[0]
        return judge(found, clean, DRILLS[drill].expected_code, caught)

    return side


def harms(seen: Seen, clean: Seen) -> bool:
    """True when a model counts as harmed."""
    return not (seen.finite and seen.after < clean.after + _WORSE)


def twins(cases: list[Case], guarded: bool) -> tuple[list[Seen], list[Seen]]:  # noqa: FBT001 - called through run_ranks
    """Every case, with the guard or without, and its clean twin without; collective."""
    found = [train(case, guarded=guarded) for case in cases]
    return found, [train(case, guarded=False, clean=True) for case in cases]


def judge(
    found: Sequence[Seen], clean: Sequence[Seen], code: str, caught: Sequence[str]
) -> Outcome:
    """Refused means: in every case nothing was lost, and nobody but the bad rank was named."""
    problems, codes = [], set()
    for seen, good in zip(found, clean, strict=True):
        codes |= set(seen.codes)
        if set(seen.named) - {BAD}:
            problems.append(f"{seen.name}: an honest rank was named ({seen.named})")
        if seen.name in caught and seen.caught_after < 0:
            problems.append(f"{seen.name}: nobody was named")
        if seen.lost > MOST_LOST or seen.halted:
            problems.append(f"{seen.name}: {seen.lost} steps lost")
        if not seen.finite or not seen.after < good.after + _SLACK:
            problems.append(f"{seen.name}: held-out loss {seen.after:.2f}, {good.after:.2f} clean")
    ruined = [seen.name for seen in found if not seen.finite or math.isnan(seen.after)]
    named = "; ".join(
        f"{seen.name}: named after {seen.caught_after} steps, {seen.lost} lost, loss"
        f" {seen.after:.2f}"
        for seen in found
    )
    return Outcome.of_hardened(
        bool(ruined),
        not problems and code in codes,
        code if code in codes else "",
        f"{named}. {'; '.join(problems) or f'No rank but {BAD} was named in any case.'}",
    )


_POISON: Final = (Case(name="sign flipped, ten times as long", factor=-10.0, start=30, steps=60),)
POISON: Final = Sides(
    plain(_POISON, [_POISON[0].name]),
    hardened(_POISON, "D-GRAD-POISON", caught=[_POISON[0].name]),
)
"""One rank sends its gradients with the sign flipped and ten times as long. Plain: the mean that
all apply points uphill. Hardened: it is named, counts zero from then on, and the model learns from
the others.
"""

_NOT_FINITE: Final = (
    Case(name="NaN", factor=float("nan")),
    Case(name="NaN, sharded", factor=float("nan"), sharded=True),
    Case(name="infinity", factor=float("inf")),
    Case(name="3e38", factor=3e38),
)
_EACH: Final = [case.name for case in _NOT_FINITE]
NOT_FINITE: Final = Sides(
    plain(_NOT_FINITE, _EACH), hardened(_NOT_FINITE, "D-GRAD-NAN", caught=_EACH)
)
"""One rank sends NaN, infinities or numbers near the largest that fp32 has from one step on, and
does not stop. Plain: every weight of every rank is NaN, or the model is worse than it was.
Hardened: it is named by its own numbers, and the others go on without it.
"""

_LIES: Final = (
    Case(name="sends -5 times what it says", factor=-5.0, lie="honest"),
    Case(name="scales its rows", lie="scaled"),
    Case(name="accuses", lie="accuses"),
    Case(name="bends a part", lie="bent", sharded=True),
    Case(name="shifts by V", lie="shifted", sharded=True),
    Case(name="accuses, sharded", lie="accuses", sharded=True),
)
_HARMFUL: Final = ("sends -5 times what it says",)
LIES: Final = Sides(
    plain(_LIES, _HARMFUL),
    hardened(_LIES, "D-GRAD-LIES", caught=(*_HARMFUL, "bends a part", "shifts by V")),
)
"""One rank lies to the guard with full knowledge of its code: it says the honest sketch of what it
sends times -5, scales its rows, bends one part, shifts two parts by +V and -V, or says that it was
told another table. Plain: nothing is asked, and what it sends counts. Hardened: its own rows
contradict each other or the step is settled without what it spoiled; no honest rank is named.
"""

_DRIFT: Final = (
    Case(name="drift", drift=1.0, steps=36),
    Case(name="flips its sign", factor=-1.0, steps=44),
    Case(name="flips, module skipped", factor=-1.0, sharded=True, skips=True, steps=52),
    Case(name="copies", copies=True, steps=24),
)
_BENT: Final = [case.name for case in _DRIFT if not case.copies]
DRIFT: Final = Sides(plain(_DRIFT, _BENT), hardened(_DRIFT, "D-GRAD-DRIFT", caught=_BENT))
"""One rank bends the model a little in each step: a constant drift, a flipped sign, also in a
sharded model that leaves a module out in every second step, or a copy of its neighbour. Plain: the
model follows. Hardened: evidence adds up over steps and names it; a copy names nobody.
"""

HIDES: Final = Case(name="hides from the newest seed", drift=3.0, hides=True, steps=60)


def known_seed(_workdir: Path) -> Outcome:
    """Train without a guard, and with one whose seed is known."""
    return judge_known_seed(*run_ranks(three, WORLD, timeout=100.0)[0])


def three() -> tuple[Seen, Seen, Seen]:
    """A clean training, one without a guard, one whose guard has one seed; collective."""
    return (
        train(HIDES, guarded=False, clean=True),
        train(HIDES, guarded=False),
        train(dataclasses.replace(HIDES, one_seed=True), guarded=True),
    )


def judge_known_seed(clean: Seen, bare: Seen, one_seed: Seen) -> Outcome:
    """Success means: both models are worse than the clean one, and a sketch named nobody."""
    harmed = [harms(seen, clean) for seen in (bare, one_seed)]
    unseen = not one_seed.named and not one_seed.lost and not one_seed.codes
    return Outcome.of_plain(
        all(harmed) and unseen,
        f"Rank {BAD} of {WORLD}. Held-out loss {bare.after:.2f} without a guard,"
        f" {one_seed.after:.2f} with one that draws one seed for all steps"
        f" ({clean.after:.2f} clean), which named"
        f" {'nobody' if unseen else f'{one_seed.named} ({one_seed.codes})'}.",
    )


NULL_SPACE: Final = Sides(known_seed, hardened([HIDES], "D-GRAD-NULL", caught=[HIDES.name]))
"""One rank knows the code and every seed that was drawn so far, and bends the model only where the
sketch of the newest one sees nothing. Plain: without a guard the model follows, and with a guard
that draws one seed for all steps it follows too, while no rank is named. Hardened: the seed of a
step is drawn when its gradients are delivered, so that what hides from the last one is seen by the
next.
"""
