# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Generated shell scripts, run by bash and read by the audit.

A case is a hundred scripts in one bash, whose programs write down their arguments. Each call of
bash is one of ours, with equal words or holes; where a script's text decides every word, at most
one word in twenty is a hole.
"""

import random
from pathlib import Path
from typing import Final

from tests.audit.shell.worlds import compare, generated, run_by_bash
from tools.campaigns import Campaign, Missed

SCRIPTS: Final = 100
MOST_HOLES: Final = 0.05


def case(rng: random.Random, folder: Path) -> str:
    """Compare a hundred scripts."""
    made = [generated(rng) for _ in range(SCRIPTS)]
    words = holes = 0
    calls = run_by_bash([script for script, _ in made], folder)
    for (script, is_closed), found in zip(made, calls, strict=True):
        result = compare(script, found)
        if result.wrong:
            raise Missed(f"{result.wrong[0]} in {script!r}")
        words += result.words * is_closed
        holes += result.holes * is_closed
    if holes > MOST_HOLES * words:
        raise Missed(f"{holes} of {words} words are holes")
    return "words equal, or holes"


CAMPAIGN: Final = Campaign(title="shell scripts, by bash and by the audit", count=100, case=case)
