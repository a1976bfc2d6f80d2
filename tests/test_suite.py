# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""How the tests themselves are collected and timed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import durations

ROOT = Path(__file__).parent.parent

COLLECT = """
import sys
started = []
sys.addaudithook(lambda event, _: started.append(event) if event == "subprocess.Popen" else None)
import pytest
assert pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", *sys.argv[1:]]) == 0
assert not started, "collecting tests started a program"
print("torch" in sys.modules)
"""
WITHOUT_TORCH = (
    *("attest", "audit", "core", "evidence", "identity", "ledger", "network", "policy"),
    *("quickstart", "report", "threats"),
)
"""Rooms whose tests need no torch, as the rooms themselves do."""


def collect(seed, *paths):
    """The ids, and whether torch was imported for them."""
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    found = subprocess.run(
        [sys.executable, "-c", COLLECT, *map(str, paths)],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stdout[-2000:] + found.stderr
    *lines, torch = found.stdout.splitlines()
    return [line for line in lines if "::" in line], torch == "True"


@pytest.mark.slow
def test_ids_are_the_same_every_time_and_collecting_starts_nothing():
    first, second = collect("1", "tests")[0], collect("2", "tests")[0]
    assert first == second
    assert len(first) > 10_000


def test_rooms_without_torch_are_collected_without_it():
    paths = [ROOT / "tests" / name for name in WITHOUT_TORCH]
    assert all(path.is_dir() for path in paths)
    assert not collect("1", *paths)[1]


def test_what_grew_is_named_whatever_the_machines_speed():
    kept = {"a": 10.0, "b": 10.0, "c": 10.0, "gone": 50.0}
    assert durations.grown({"a": 20.0, "b": 20.0, "c": 20.0}, kept) == []
    assert durations.grown({"a": 10.0, "b": 10.0, "c": 40.0}, kept) == [("c", 40.0, 10.0)]
    assert durations.grown({**kept, "new": 4.0}, kept) == [("new", 4.0, 0.0)]
    assert durations.grown({"a": 1.0, "b": 1.0, "c": 4.0}, kept) == []
