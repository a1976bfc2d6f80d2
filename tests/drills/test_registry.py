# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What a drill proves and, above all, what it does not."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from securetrain.core import canonical
from securetrain.core.codes import CODES
from securetrain.core.errors import UsageError
from securetrain.core.vocabulary import Boundary
from securetrain.drills import DRILLS, DrillResult, registry, run_drill
from securetrain.drills.process_tree import wait_until
from securetrain.drills.registry import Drill, Outcome, Side, judge, run_sides
from tests.tables import items
from tests.vocabulary import refused

DRILL = Drill(
    *("D-FAKE", "tests.drills.fake_side", Boundary.RENDEZVOUS, "ST-ADMN-002"),
    title="a fake",
    summary="a fake",
    timeout=20.0,
)


def _outcome(side, **changes):
    good = Outcome(
        side=side,
        succeeded=side is Side.PLAIN,
        refused=side is Side.HARDENED,
        code="ST-ADMN-002" if side is Side.HARDENED else "",
        evidence="as it should be",
    )
    return msgspec.structs.replace(good, **changes)


def test_the_table_names_real_codes_boundaries_and_modules():
    told = {name for name, drill in DRILLS.items() if drill.in_quickstart}
    assert told == {"D-RDZ-PICKLE", "D-OBJ-PICKLE", "D-CKPT-METADATA", "D-GRAD-POISON"}
    for drill in DRILLS.values():
        assert drill.expected_code in CODES
        module, _, name = drill.module.partition(":")
        spec = importlib.util.find_spec(module, "securetrain.drills")
        assert spec is not None
        assert name in Path(str(spec.origin)).read_text("utf-8")
        assert drill.summary.endswith(".")


@items(
    "plain, hardened, problem",
    ({}, {}, ""),
    ({"succeeded": False}, {}, "ST-DRIL-001"),
    ({"succeeded": False}, {"succeeded": True, "refused": False, "code": ""}, "ST-DRIL-001"),
    ({}, {"succeeded": True}, "ST-DRIL-002"),
    ({}, {"refused": False}, "ST-DRIL-002"),
    ({}, {"refused": False, "code": ""}, "ST-DRIL-002"),
    ({}, {"code": "ST-ADMN-001"}, "ST-DRIL-003"),
    ({}, {"code": ""}, "ST-DRIL-003"),
    ({"lacks": "root", "succeeded": False}, {}, "ST-DRIL-004"),
    ({}, {"lacks": "a sandbox", "refused": False, "code": ""}, "ST-DRIL-004"),
)
def test_what_two_outcomes_prove(plain, hardened, problem):
    result = judge(DRILL, _outcome(Side.PLAIN, **plain), _outcome(Side.HARDENED, **hardened))
    assert result.ok is (problem == "")
    assert result.problem == problem
    error = result.error()
    if problem:
        assert error is not None
        assert error.code == problem
        assert error.where == "D-FAKE"
    else:
        assert error is None


def test_a_result_survives_json():
    result = judge(DRILL, _outcome(Side.PLAIN, seconds=1.5), _outcome(Side.HARDENED, seconds=2.0))
    assert canonical.decode(canonical.encode(result), DrillResult) == result


def test_an_unknown_drill_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError) as caught:
        run_drill("D-NOPE", tmp_path)
    assert caught.value.code == "ST-USAG-001"
    assert "D-RDZ-PICKLE" in caught.value.fix


def test_a_good_drill_is_told_step_by_step(tmp_path):
    told: list[str] = []
    result = run_sides(DRILL, tmp_path / "good", told.append)
    assert result.ok
    assert result.plain.seconds > 0
    assert told == [
        "D-FAKE: attacking the plain stack",
        "D-FAKE: plain: plain as it should be",
        "D-FAKE: attacking the hardened stack",
        "D-FAKE: hardened: hardened as it should be",
    ]
    refused(UsageError, "ST-USAG-005", run_sides, DRILL, tmp_path / "good", told.append)


def test_a_side_sees_nothing_of_the_callers_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET_OF_THE_CALLER", "42")
    assert run_sides(DRILL, tmp_path / "environment", lambda _: None).ok


@items(
    "what, evidence",
    ("crash", "ended with exit code 1"),
    ("silent", "left no report"),
    ("garbage", "left no report"),
    ("liar", "reported for the side plain"),
)
def test_a_side_that_reports_nothing_has_proven_nothing(tmp_path, what, evidence):
    result = run_sides(DRILL, tmp_path / what, lambda _: None)
    assert not result.ok
    assert evidence in result.hardened.evidence
    assert not result.hardened.refused
    if what == "crash":
        assert "something broke" in result.plain.evidence
        assert result.problem == "ST-DRIL-001"


def test_a_side_that_hangs_is_killed_with_all_it_started(tmp_path):
    drill = msgspec.structs.replace(DRILL, timeout=1.5)
    result = run_sides(drill, tmp_path / "hang", lambda _: None)
    assert "ran out of time" in result.plain.evidence
    for side in Side:
        pid = int((tmp_path / "hang" / f"{side}.pid").read_text())
        # killed, though perhaps not reaped yet by whoever inherits orphans here
        assert wait_until(lambda: not Path(f"/proc/{pid}/fd/0").exists(), 5)  # noqa: B023


def test_the_registry_starts_without_torch():
    code = "import sys, securetrain.drills; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_without_the_plain_stack_no_side_is_started_and_nothing_is_proven(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "STACK", ("torch", "no_such_package"))
    started = tmp_path / "drill"
    result = run_drill("D-OBJ-PICKLE", started)
    assert (result.ok, result.problem) == (False, "ST-DRIL-004")
    assert "no no_such_package (in a checkout" in str(result.error())
    assert not started.exists()
