# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The table of frameworks is what their tests kept, at the versions that the hooks take."""

import json

from securetrain.integrations import TESTED
from tools import compatibility

RESULTS = json.loads(compatibility.RESULTS.read_text("utf-8"))


def test_the_page_is_what_the_tests_kept():
    assert compatibility.main(["--check"]) == 0


def test_another_result_is_noticed(capsys, monkeypatch, tmp_path):
    changed = json.loads(json.dumps(RESULTS))
    changed["frameworks"]["lightning"]["checks"].pop("guard")
    before = compatibility.PAGE.read_text("utf-8")
    made = compatibility.page(before, changed)
    assert made != before
    assert "not tested" in made


def test_the_versions_are_those_that_hooks_take():
    kept = {name: one["version"] for name, one in RESULTS["frameworks"].items()}
    assert kept == {name: version for name, version in TESTED.items() if name in kept}
    assert set(kept) <= set(compatibility.FRAMEWORKS)


def test_a_framework_that_no_test_has_shown_is_not_left_out():
    line = compatibility.table({"frameworks": {}}).splitlines()[2]
    assert line.startswith(f"| accelerate | {TESTED['accelerate']} | not tested |")
