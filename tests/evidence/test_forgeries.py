# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""How many forged pieces of evidence are tried: the number cannot fall silently."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PLACES = ("tests/attest", "tests/evidence", "tests/rendezvous")
GOAL = 200
"""What the design asks for."""
FLOOR = {
    "tests/attest/fleet": 101,
    "tests/attest/node/tpm": 85,
    "tests/attest/session": 105,
    "tests/evidence": 680,
    "tests/evidence/gpu": 600,
    "tests/evidence/tee": 690,
    "tests/evidence/tpm": 1290,
    "tests/rendezvous/coordinator": 16,
    "tests/rendezvous/member": 7,
}
"""What there was, by folder; raise it with what is added."""


@pytest.mark.slow  # every test of these folders is collected
def test_no_forgery_is_lost():
    command = (
        *(sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "forgery"),
        *("-p", "no:cacheprovider", *PLACES),
    )
    collected = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert collected.returncode == 0, collected.stdout[-2000:] + collected.stderr[-2000:]
    items = [line for line in collected.stdout.splitlines() if "::" in line]
    assert len(set(items)) == len(items)
    found = Counter(str(Path(item.partition("::")[0]).parent) for item in items)
    assert found.total() >= GOAL
    lost = {place: (found[place], floor) for place, floor in FLOOR.items() if found[place] < floor}
    assert not lost, f"fewer forgeries than there were (found, floor): {lost}"
