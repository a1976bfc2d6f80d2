# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""D-GRAD-DRIFT: ``python -m securetrain.drills.gradient_drift plain|hardened WORKDIR``.

One rank bends the model a little in each step: a constant drift, a flipped sign, also in a sharded
model that leaves a module out in every second step, or a copy of its neighbour. Plain: the model
follows. Hardened: evidence adds up over steps and names it (ST-GRAD-002); a copy names nobody.
"""

import sys
from typing import Final

from securetrain.drills import gradient_cases
from securetrain.drills.gradient_group import Case
from securetrain.drills.registry import DRILLS, run_side

CODE: Final = DRILLS["D-GRAD-DRIFT"].expected_code
CASES: Final = (
    Case(name="drift", drift=1.0, steps=36),
    Case(name="flips its sign", factor=-1.0, steps=44),
    Case(name="flips, module skipped", factor=-1.0, sharded=True, skips=True, steps=52),
    Case(name="copies", copies=True, steps=24),
)
HARMFUL: Final = ("drift", "flips its sign", "flips, module skipped")
CAUGHT: Final = ("drift", "flips its sign", "flips, module skipped")

plain = gradient_cases.plain(CASES, HARMFUL)
hardened = gradient_cases.hardened(CASES, CODE, caught=CAUGHT)


if __name__ == "__main__":
    run_side(sys.argv[1:], plain, hardened)
