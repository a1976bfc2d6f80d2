# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""docs/explanation/tampering.md lists all tampering with the tests of it, and they are there."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from securetrain.core.codes import CODES

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/explanation/tampering.md").read_text("utf-8")
ROWS = {
    int(found[1]): found[0] for found in re.finditer(r"^\| T(\d+) \|.*$", PAGE, flags=re.MULTILINE)
}
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
BY_NAME = {
    "test_a_case_of_the_list": "CASES",
    "test_a_case_that_a_trusted_key_has_signed": "SIGNED",
    "test_torch_takes_the_same_change_without_a_word": "STOCK",
    "test_the_reference_takes_it": "TAKES",
    "test_the_reference_refuses_it": "REFUSES",
    "test_a_bundle_cannot_tell": "NO_NOTION",
}
"""Tests of a table of cases, whose names begin with the number."""
STOCK = re.compile(r"takes it|refuses it|no such notion: .{9,}")
"""What the column for the plain tools says first; without a reason, the last says nothing."""


@cache
def defined_in(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_bytes(), path)
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


@cache
def numbers_of(path: str, table: str) -> frozenset[int]:
    for node in ast.parse((ROOT / path).read_bytes(), path).body:
        if (
            isinstance(node, ast.AnnAssign)
            and isinstance(node.value, ast.Dict)
            and ast.unparse(node.target) == table
        ):
            names = [ast.literal_eval(key) for key in node.value.keys if key is not None]
            return frozenset(int(name.split()[0][1:]) for name in names)
    raise AssertionError(table)


def test_every_number_is_there_once():
    assert list(ROWS) == list(range(1, 54))
    assert len(re.findall(r"^\| T\d+ \|", PAGE, flags=re.MULTILINE)) == len(ROWS)


@pytest.mark.parametrize("number", ROWS)
def test_every_kind_has_tests_that_exist(number):
    cited = TEST.findall(ROWS[number])
    assert cited, "no test tries this"
    assert ROWS[number].count("tests/") == len(cited)
    assert [f"{path}::{name}" for path, name in cited if name not in defined_in(path)] == []
    tables = [(path, BY_NAME[name]) for path, name in cited if name in BY_NAME]
    assert [one for one in tables if number not in numbers_of(*one)] == []


@pytest.mark.parametrize("number", ROWS)
def test_every_kind_has_a_control_or_a_reason_why_there_is_none(number):
    _, _, _, stock, _, tests, _ = (cell.strip() for cell in ROWS[number].split("|"))
    assert STOCK.match(stock)
    assert bool(TEST.search(stock)) != stock.startswith("no such notion")
    # The refusal is shown besides.
    assert TEST.search(tests)


def test_codes_exist():
    assert set(re.findall(r"ST-[A-Z]{4}-\d{3}", PAGE)) <= CODES.keys()
