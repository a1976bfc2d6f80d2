# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Modules with security checks, the checks removed one by one (`tools/mutate.py`)."""

import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

from tools.campaigns import Campaign, Missed
from tools.mutants import MODULES

ROOT: Final = Path(__file__).resolve().parents[2]
_modules: Final = sorted(MODULES)


def case(rng: random.Random, folder: Path) -> str:
    """Mutate one module, at random."""
    del folder
    module = rng.choice(_modules)
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "mutate.py"), module],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    if done.returncode:
        lines = re.findall(r".*(?:survived|SURVIVED).*", done.stdout) or [done.stdout[-300:]]
        raise Missed(f"{module}: {'; '.join(lines[:5])}")
    return "killed"


CAMPAIGN: Final = Campaign(title="removed checks", count=len(_modules), case=case)
