# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The tables of the page are what the tests kept, at the versions that the hooks take."""

import json

import pytest

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
    kept = {name: one["version"] for rows in RESULTS.values() for name, one in rows.items()}
    assert kept == {name: version for name, version in TESTED.items() if name in kept}
    assert set(kept) <= {*compatibility.FRAMEWORKS, *compatibility.LIBRARIES}


@pytest.mark.parametrize("table", [compatibility.table, compatibility.libraries])
@pytest.mark.parametrize(
    ("kept", "said"),
    [({}, "not tested"), ({"checks": {}, "absent": "could not be installed"}, "could not be")],
)
def test_what_no_test_has_shown_is_said_and_not_left_out(table, kept, said):
    names = (*compatibility.FRAMEWORKS, *compatibility.LIBRARIES)
    results = {section: dict.fromkeys(names, kept) for section in RESULTS}
    for line in table(results).splitlines()[2:]:
        _, name, version, *rest, _ = line.split("|")
        assert version.strip() == TESTED[name.strip()]
        assert all(said in one for one in rest)


def test_a_table_without_its_place_on_the_page_is_no_page():
    with pytest.raises(SystemExit, match="no place for a table"):
        compatibility.page(
            compatibility.BEGIN.format(compatibility.HOOKS) + compatibility.END, RESULTS
        )
