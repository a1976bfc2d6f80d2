# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A verb parses, calls, and hands what it got to the report."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2] / "securetrain"
VERBS = sorted(path for path in (ROOT / "cli").rglob("*.py") if path.name != "main.py")
RENDERING = {
    "json",
    "rich.table",
    "rich.text",
    "rich.tree",
    "rich.padding",
    "securetrain.core.text",
}


def _imported(path):
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module


@pytest.mark.parametrize("path", VERBS, ids=lambda path: path.relative_to(ROOT / "cli").as_posix())
def test_no_verb_renders(path):
    assert not set(_imported(path)) & RENDERING


def test_no_two_files_of_the_command_line_and_the_report_have_one_name():
    own, shown = ({p.name for p in (ROOT / room).rglob("*.py")} for room in ("cli", "report"))
    assert own & shown == {"__init__.py", "plan.py"}  # the verb, and its page
