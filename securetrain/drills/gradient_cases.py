# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The sides of the gradient drills: all cases of one drill in one group of ranks.

Plain: the same rank does the same to a training without a guard, and the model that all have is
ruined, or worse than that of a clean training, and no rank says a word. Hardened: no honest rank is
named in any verdict, at most two steps are lost, the run is not halted, and the model keeps what it
learned.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from securetrain.drills.gradient_group import BAD, Case, Seen, train
from securetrain.drills.ranks import run_ranks
from securetrain.drills.registry import Attack, Outcome, Side

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
        found, clean = run_ranks(both, WORLD, chosen, timeout=100.0)[0]
        harmed = [seen.name for seen, good in zip(found, clean, strict=True) if harms(seen, good)]
        losses = "; ".join(
            f"{seen.name}: {seen.after:.2f} ({good.after:.2f} clean)"
            for seen, good in zip(found, clean, strict=True)
        )
        return Outcome(
            side=Side.PLAIN,
            succeeded=len(harmed) == len(chosen),
            evidence=f"Rank {BAD} of {WORLD}. Held-out loss {losses}. No rank raised an error.",
        )

    return side


def hardened(cases: Sequence[Case], code: str, *, caught: Sequence[str]) -> Attack:
    """The side with the guard.

    Args:
        cases: All cases of the drill.
        code: The drill's own.
        caught: Cases in which the bad rank must be named.
    """

    def side(_workdir: Path) -> Outcome:
        found, clean = run_ranks(guarded, WORLD, list(cases), timeout=100.0)[0]
        return judge(found, clean, code, caught)

    return side


def harms(seen: Seen, clean: Seen) -> bool:
    """True when a model counts as harmed."""
    return not (seen.finite and seen.after < clean.after + _WORSE)


def both(cases: list[Case]) -> tuple[list[Seen], list[Seen]]:
    """Every case and its clean twin, without a guard; collective."""
    return (
        [train(case, guarded=False) for case in cases],
        [train(case, guarded=False, clean=True) for case in cases],
    )


def guarded(cases: list[Case]) -> tuple[list[Seen], list[Seen]]:
    """Every case with the guard, and its clean twin without; collective."""
    return (
        [train(case, guarded=True) for case in cases],
        [train(case, guarded=False, clean=True) for case in cases],
    )


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
    return Outcome(
        side=Side.HARDENED,
        succeeded=bool(ruined),
        refused=not problems and code in codes,
        code=code if code in codes else "",
        evidence=f"{named}. {'; '.join(problems) or f'No rank but {BAD} was named in any case.'}",
    )
