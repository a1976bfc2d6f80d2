# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The generated reference pages are up to date with the code."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_reference_pages_are_up_to_date():
    done = subprocess.run(
        [sys.executable, "tools/reference.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr + "run: make docs"
