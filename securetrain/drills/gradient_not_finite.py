# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""D-GRAD-NAN: ``python -m securetrain.drills.gradient_not_finite plain|hardened WORKDIR``.

One rank sends NaN, infinities or numbers near the largest that fp32 has from one step on, and does
not stop. Plain: every weight of every rank is NaN, or the model is worse than it was. Hardened: it
is named by its own numbers (ST-GRAD-001), and the others go on without it.
"""

import sys
from typing import Final

from securetrain.drills import gradient_cases
from securetrain.drills.gradient_group import Case
from securetrain.drills.registry import DRILLS, run_side

CODE: Final = DRILLS["D-GRAD-NAN"].expected_code
CASES: Final = (
    Case(name="NaN", factor=float("nan")),
    Case(name="NaN, sharded", factor=float("nan"), sharded=True),
    Case(name="infinity", factor=float("inf")),
    Case(name="3e38", factor=3e38),
)
HARMFUL: Final = ("NaN", "NaN, sharded", "infinity", "3e38")
CAUGHT: Final = ("NaN", "NaN, sharded", "infinity", "3e38")

plain = gradient_cases.plain(CASES, HARMFUL)
hardened = gradient_cases.hardened(CASES, CODE, caught=CAUGHT)


if __name__ == "__main__":
    run_side(sys.argv[1:], plain, hardened)
