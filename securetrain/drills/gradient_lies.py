# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""D-GRAD-LIES: ``python -m securetrain.drills.gradient_lies plain|hardened WORKDIR``.

One rank lies to the guard with full knowledge of its code: it says the honest sketch of what it
sends times -5, scales its rows, bends one part, shifts two parts by +V and -V, or says that it was
told another table. Plain: nothing is asked, and what it sends counts. Hardened: its own rows
contradict each other (ST-GRAD-011) or the step is settled without what it spoiled; no honest rank
is named.
"""

import sys
from typing import Final

from securetrain.drills import gradient_cases
from securetrain.drills.gradient_group import Case
from securetrain.drills.registry import DRILLS, run_side

CODE: Final = DRILLS["D-GRAD-LIES"].expected_code
CASES: Final = (
    Case(name="sends -5 times what it says", factor=-5.0, lie="honest"),
    Case(name="scales its rows", lie="scaled"),
    Case(name="accuses", lie="accuses"),
    Case(name="bends a part", lie="bent", sharded=True),
    Case(name="shifts by V", lie="shifted", sharded=True),
    Case(name="accuses, sharded", lie="accuses", sharded=True),
)
HARMFUL: Final = ("sends -5 times what it says",)
CAUGHT: Final = ("sends -5 times what it says", "bends a part", "shifts by V")

plain = gradient_cases.plain(CASES, HARMFUL)
hardened = gradient_cases.hardened(CASES, CODE, caught=CAUGHT)


if __name__ == "__main__":
    run_side(sys.argv[1:], plain, hardened)
