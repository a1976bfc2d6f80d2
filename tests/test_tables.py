# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Tests that go through tables: every row is run, and one that fails is named."""

import pytest

from tests.tables import each, forgeries, items, num_cases

pytest_plugins = ["pytester"]

TABLES = """
import sys
sys.path.insert(0, {root!r})
import pytest
from tests.tables import each, forgeries

SEEN = []

@pytest.fixture
def limit():
    return 3

@forgeries("id, low, high", ("small", 1, 2), ("equal", 3, 3), ("large", 5, 6))
@each("step", 1, 2)
def test_rows(low, step, limit, high):
    SEEN.append((low, step))
    assert low < high
    assert limit == 3

def test_what_was_seen():
    assert SEEN == [(1, 1), (1, 2), (3, 1), (3, 2), (5, 1), (5, 2)]
"""


def test_rows_that_fail_are_named_and_the_others_run(pytester, pytestconfig):
    pytester.makepyfile(TABLES.format(root=str(pytestconfig.rootpath)))
    pytester.makeini("[pytest]\nmarkers = forgery: counted")
    result = pytester.runpytest("-p", "no:cacheprovider", "-p", "no:xdist")
    result.assert_outcomes(passed=1, failed=3)
    result.stdout.fnmatch_lines(["SUBFAILED[[]equal-1[]]*", "SUBFAILED[[]equal-2[]]*"])
    result.stdout.no_fnmatch_line("SUBFAILED[[]small*")


def test_a_table_from_names():
    seen = []

    @each("id, value", {"pair": (1, 2), "one": 3})
    def case(value):
        seen.append(value)

    assert num_cases(case) == 2
    table: list[tuple[str, object]] = vars(case)["table"]
    assert [values for _, values in table] == [{"value": (1, 2)}, {"value": 3}]


def test_a_forgery_is_marked_and_counted():
    @each("other", "x", "y")
    @forgeries("value", *range(3))
    def case(value, other):
        pass

    assert [mark.name for mark in vars(case)["pytestmark"]] == ["forgery"]
    assert num_cases(case) == 6
    assert num_cases(test_a_table_from_names) == 1


def test_items_have_the_names_and_values_of_their_rows():
    made = items("id, low, high", ("small", 1, 2), ("large", 5, 6))
    assert made.args[0] == ["low", "high"]
    assert [(row.id, row.values) for row in made.args[1]] == [("small", (1, 2)), ("large", (5, 6))]
    assert [(row.id, row.values) for row in items("value", 3).args[1]] == [(None, (3,))]
    assert [(row.id, row.values) for row in items("value", {"a": 3}).args[1]] == [("a", (3,))]


def test_a_table_without_rows_is_skipped_and_counts_nothing():
    @each("other", 1, 2)
    @each("value")
    def case(value, other):
        pytest.fail("it has no row")

    assert num_cases(case) == 0
    with pytest.raises(pytest.skip.Exception, match="no row for"):
        case()


def test_rows_have_what_the_test_takes():
    with pytest.raises(TypeError, match="does not take other"):
        each("other", 1)(lambda: None)
    with pytest.raises(ValueError, match="zip"):
        each("first, second", (1, 2, 3))
