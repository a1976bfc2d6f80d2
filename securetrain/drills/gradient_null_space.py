# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""D-GRAD-NULL: ``python -m securetrain.drills.gradient_null_space plain|hardened WORKDIR``.

One rank knows the code and every seed that was drawn so far, and bends the model only where the
sketch of the newest one sees nothing. Plain: without a guard the model follows, and with a guard
that draws one seed for all steps it follows too, while no rank is named. Hardened: the seed of a
step is drawn when its gradients are delivered, so that what hides from the last one is seen by the
next (ST-GRAD-002).
"""

import dataclasses
import sys
from pathlib import Path
from typing import Final

from securetrain.drills import gradient_cases
from securetrain.drills.gradient_group import BAD, Case, Seen, train
from securetrain.drills.ranks import run_ranks
from securetrain.drills.registry import DRILLS, Outcome, Side, run_side

CODE: Final = DRILLS["D-GRAD-NULL"].expected_code
CASE: Final = Case(name="hides from the newest seed", drift=3.0, hides=True, steps=60)


def plain(_workdir: Path) -> Outcome:
    """Train without a guard, and with one whose seed is known."""
    return judge_plain(*run_ranks(three, gradient_cases.WORLD, timeout=100.0)[0])


def three() -> tuple[Seen, Seen, Seen]:
    """A clean training, one without a guard, one whose guard has one seed; collective."""
    return (
        train(CASE, guarded=False, clean=True),
        train(CASE, guarded=False),
        train(dataclasses.replace(CASE, one_seed=True), guarded=True),
    )


def judge_plain(clean: Seen, bare: Seen, one_seed: Seen) -> Outcome:
    """Success means: both models are worse than the clean one, and a sketch named nobody."""
    harmed = [gradient_cases.harms(seen, clean) for seen in (bare, one_seed)]
    unseen = not one_seed.named and not one_seed.lost and not one_seed.codes
    return Outcome(
        side=Side.PLAIN,
        succeeded=all(harmed) and unseen,
        evidence=(
            f"Rank {BAD} of {gradient_cases.WORLD}. Held-out loss {bare.after:.2f} without a guard,"
            f" {one_seed.after:.2f} with one that draws one seed for all steps"
            f" ({clean.after:.2f} clean), which named"
            f" {'nobody' if unseen else f'{one_seed.named} ({one_seed.codes})'}."
        ),
    )


hardened = gradient_cases.hardened([CASE], CODE, caught=[CASE.name])


if __name__ == "__main__":
    run_side(sys.argv[1:], plain, hardened)
