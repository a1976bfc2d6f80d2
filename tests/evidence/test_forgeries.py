# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""How many forged pieces of evidence are tried: the number cannot fall silently."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PLACES = (
    "tests/attest",
    "tests/evidence",
    "tests/identity/test_paths.py",
    "tests/identity/test_path_search.py",
    "tests/rendezvous",
)
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
KIND_GOAL = 100
KINDS = {
    "Google's confidential VMs": (
        "evidence/tee/test_google.py",
        "evidence/tee/test_google_endorsement.py",
        "evidence/test_google_exchange.py",
    ),
    "Azure's confidential VMs": (
        "evidence/tee/test_paravisor.py",
        "evidence/test_paravisor_exchange.py",
    ),
    "late registers": ("evidence/tpm/test_late.py", "evidence/test_late_exchange.py"),
    "IMA signatures": ("evidence/tpm/test_ima_keys.py",),
    "IMA lists in parts": ("evidence/tpm/test_ima_parts.py", "rendezvous/test_long_lists.py"),
    "enrolment": (
        "attest/fleet/test_doorkeeper.py",
        "attest/fleet/test_desk.py",
        "rendezvous/test_fleet_entry.py",
    ),
    "certificate paths": ("identity/test_paths.py", "identity/test_path_search.py"),
}
"""Files with the forgeries of what came later; each kind has as many as the goal."""


PRINTED = """
import sys
import pytest
from tests.tables import num_cases

class Counted:
    def pytest_collection_finish(self, session):
        for item in session.items:
            print("counted", item.nodeid, num_cases(item.function))

sys.exit(pytest.main(sys.argv[1:], plugins=[Counted()]))
"""
"""Each forgery's test with the rows that it goes through."""


@pytest.mark.slow  # every test of these folders is collected
def test_no_forgery_is_lost():
    command = (
        *(sys.executable, "-c", PRINTED, "--collect-only", "-q", "-m", "forgery"),
        *("-p", "no:cacheprovider", *PLACES),
    )
    collected = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert collected.returncode == 0, collected.stdout[-2000:] + collected.stderr[-2000:]
    lines = [line for line in collected.stdout.splitlines() if line.startswith("counted ")]
    assert len({line.rpartition(" ")[0] for line in lines}) == len(lines)
    by_file: Counter[str] = Counter()
    for line in lines:
        item, _, rows = line.removeprefix("counted ").rpartition(" ")
        by_file[item.partition("::")[0]] += int(rows)
    found: Counter[str] = Counter()
    for file, count in by_file.items():
        found[str(Path(file).parent)] += count
    assert found.total() >= GOAL
    lost = {place: (found[place], floor) for place, floor in FLOOR.items() if found[place] < floor}
    assert not lost, f"fewer forgeries than there were (found, floor): {lost}"
    kinds = {kind: sum(by_file[f"tests/{file}"] for file in files) for kind, files in KINDS.items()}
    assert min(kinds.values()) >= KIND_GOAL, kinds
