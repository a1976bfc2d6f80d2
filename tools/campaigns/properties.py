# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The properties of the tests with new seeds: `make test` draws the same cases every time.

A case is one file of tests with properties, and one seed of hypothesis. It holds, or it misses with
the line that runs it again.
"""

import random
import subprocess
import sys
from pathlib import Path
from typing import Final

from tools.campaigns import Campaign, Missed

ROOT: Final = Path(__file__).resolve().parents[2]
_LONGEST: Final = 900.0
_NO_TESTS: Final = 5
_HERE: Final = "hypothesis and not gpu and not compat and not dist and not netns"


def files() -> list[str]:
    """The files of tests that draw cases."""
    return sorted(
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").rglob("test_*.py")
        if "\nfrom hypothesis import" in path.read_text("utf-8")
    )


def case(rng: random.Random, folder: Path) -> str:
    """Run the properties of one file with a seed of its own."""
    file, seed = rng.choice(files()), rng.getrandbits(32)
    line = ["-m", "pytest", "-q", "--hypothesis-profile=drawn", f"--hypothesis-seed={seed}", file]
    more = ["-p", "no:cacheprovider", f"--basetemp={folder / 'tests'}", "-m", _HERE]
    try:
        done = subprocess.run(
            [sys.executable, *line, *more],
            cwd=ROOT, timeout=_LONGEST, capture_output=True, text=True, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise Missed(f"it did not end: python {' '.join(line)}") from error
    if done.returncode == _NO_TESTS:
        return "none of this machine"
    if done.returncode:
        raise Missed(f"python {' '.join(line)}: {done.stdout[-600:]}{done.stderr[-200:]}")
    return "held"


CAMPAIGN: Final = Campaign(title="properties with new seeds", count=200, case=case)
