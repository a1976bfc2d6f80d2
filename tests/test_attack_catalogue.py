# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""docs/explanation/attacks.md lists every attack with the tests that try it, and they are there."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from securetrain.core.codes import CODES
from securetrain.drills import DRILLS

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/explanation/attacks.md").read_text("utf-8")
ROWS = {
    int(found[1]): found[0] for found in re.finditer(r"^\| (\d+) \|.*$", PAGE, flags=re.MULTILINE)
}
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


@cache
def defined_in(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_bytes(), path)
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


def test_every_number_is_there_once():
    assert list(ROWS) == list(range(1, 49))
    assert len(re.findall(r"^\| \d+ \|", PAGE, flags=re.MULTILINE)) == len(ROWS)


@pytest.mark.parametrize("number", ROWS)
def test_every_attack_has_tests_that_exist(number):
    cited = TEST.findall(ROWS[number])
    assert cited, "no test tries this attack"
    assert ROWS[number].count("tests/") == len(cited)
    assert [f"{path}::{name}" for path, name in cited if name not in defined_in(path)] == []


def test_every_test_of_the_page_exists():
    """Also those of the attacks without a number."""
    cited = set(TEST.findall(PAGE))
    assert PAGE.count("`tests/") == len(TEST.findall(PAGE))
    assert [f"{path}::{name}" for path, name in cited if name not in defined_in(path)] == []


def test_codes_and_drills_exist():
    assert set(re.findall(r"ST-[A-Z]{4}-\d{3}", PAGE)) <= CODES.keys()
    assert set(re.findall(r"D-[A-Z]+-[A-Z]+", PAGE)) <= DRILLS.keys()
