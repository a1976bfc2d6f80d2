# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Builders of tests: what makes a world for several files stands in its room's `worlds.py`.

`conftest.py` has hooks of pytest and fixtures, since pytest looks for them there, and no class or
function besides, but at the top of the tests, where it is machinery; a test file is imported by no
other.
"""

import ast
from collections.abc import Iterator
from typing import Final

from tools.gates.tree import Source, Tree
from tools.gates.violations import Fault

WORLDS: Final = "worlds.py"
MACHINERY: Final = frozenset(
    f"tests/{name}.py"
    for name in (
        "collection",
        "durations",
        "environments",
        "flaky",
        "own_place",
        "tables",
        "vocabulary",
        "waiting",
    )
)
"""How tests run, and the words that tests of all rooms share: they build nothing."""


def strays(tree: Tree) -> Iterator[Fault]:
    """Builders that stand elsewhere, and test files that others import from."""
    tests = {source.module: source for source in tree.tests}
    for source in tree.tests:
        if source.name == "conftest.py" and source.folder != "tests":
            yield from _conftest(source)
        elif source.path in MACHINERY or source.name in {WORLDS, "__init__.py", "conftest.py"}:
            continue
        elif not source.name.startswith("test_"):
            yield Fault(source.path, "is neither tests nor a worlds.py")
    imported: dict[str, str] = {}
    for source in tree.tests:
        for name in source.imports & tests.keys():
            if tests[name].name.startswith("test_"):
                imported.setdefault(name, source.path)
    for module, importer in sorted(imported.items()):
        yield Fault(
            tests[module].path, f"is imported by {importer}: put what it takes in a worlds.py"
        )


def _conftest(source: Source) -> Iterator[Fault]:
    """Classes and functions of a conftest.py that are neither hooks nor fixtures."""
    for node in source.tree.body:
        match node:
            case ast.ClassDef(name=name):
                yield Fault(f"{source.path}::{name}", "is a class in a conftest.py")
            case ast.FunctionDef(name=name, decorator_list=decorators):
                marks = {ast.unparse(one).partition("(")[0] for one in decorators}
                if not name.startswith("pytest_") and "pytest.fixture" not in marks:
                    yield Fault(f"{source.path}::{name}", "is no hook and no fixture")
            case _:
                pass
