# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import sys

import pytest

from securetrain.threats.source import SourceTree
from tests.tables import items

CODE = """\
import os
from elsewhere import borrowed

CONSTANT = 1
typed: int = 2

def function():
    inner = 3

async def later(): ...

class Outer:
    attribute = 4
    def method(self): ...
    class Inner:
        def deep(self): ...

try:
    import fast
except ImportError:
    fast = None
else:
    def with_fast(): ...

if True:
    def guarded(): ...
raise RuntimeError("importing this would fail")
"""


@pytest.fixture
def tree(tmp_path):
    package = tmp_path / "securetrain"
    (package / "room").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "room" / "__init__.py").write_text("here = 1\n")
    (package / "room" / "code.py").write_text(CODE)
    (package / "room" / "broken.py").write_text("def (")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_x.py").write_text(
        "def test_a(): ...\nclass TestB:\n    def test_c(self): ...\n"
    )
    return SourceTree.of(package)


@items(
    "name",
    "CONSTANT", "typed", "function", "later", "Outer", "Outer.method", "Outer.attribute",
     "Outer.Inner.deep", "with_fast", "guarded",
)  # fmt: skip
def test_what_a_module_defines_resolves_without_being_imported(tree, name):
    before = set(sys.modules)
    assert tree.attribute(f"securetrain.room.code:{name}") == ""
    assert set(sys.modules) - before == set()


@items(
    "target",
    "securetrain.room.code:borrowed",
    "securetrain.room.code:os",
    "securetrain.room.code:inner",
    "securetrain.room.code:Outer.gone",
    "securetrain.room.code:function.inner",
    "securetrain.room.code:",
    "securetrain.room.gone:x",
    "securetrain.room.broken:x",
    "securetrain.room/../x:y",
    "os.path:join",
)
def test_anything_else_does_not(tree, target):
    assert tree.attribute(target)


def test_packages_are_modules(tree):
    assert tree.attribute("securetrain.room:here") == ""


def test_tests(tree):
    assert tree.test("tests/test_x.py::test_a") == ""
    assert tree.test("tests/test_x.py::TestB::test_c") == ""
    assert tree.test("tests/test_x.py::TestB::test_d")
    assert tree.test("tests/test_y.py::test_a")
