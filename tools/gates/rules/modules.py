# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Modules and folders: none too thin to stand alone, no folder too full, no file too long."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from typing import Final

from tools.gates.tree import Source, Tree
from tools.gates.violations import Fault

THIN: Final = 80
FILES: Final = 15
LONG: Final = 400


def lone(tree: Tree) -> Iterator[Fault]:
    """Modules below 80 code lines that exactly one module of their room imports.

    Tests look into every module and count for none, but for the public fakes: they are for tests.
    """
    started = _started(tree)
    for source in tree.tests:
        started |= {name for name in source.imports if name.startswith(f"{tree.top}.testing.")}
    for module, source in tree.modules.items():
        importers = tree.importers.get(module, frozenset())
        if len(importers) != 1 or source.code_lines >= THIN or source.name == "__init__.py":
            continue
        (importer,) = importers
        same_room = importer.split(".")[1:2] == module.split(".")[1:2]
        if same_room and importer not in tree.faces and module not in started:
            says = f"{source.code_lines} code lines, and only {importer} imports it"
            yield Fault(source.path, says)


def _started(tree: Tree) -> set[str]:
    """Modules that are reached by name: by a string that names them, or with ``python -m``."""
    words = "|".join(re.escape(top) for top in (tree.top,))
    name = re.compile(rf"\b(?:{words})(?:\.\w+)+")
    texts = (text for source in tree.package for text in source.strings if "." in text)
    found = {match for text in texts for match in name.findall(text)}
    project = tree.root / "pyproject.toml"
    if project.is_file():
        found |= set(name.findall(project.read_text("utf-8").partition("[tool.")[0]))
    families = {family for source in tree.package for family in _families(source, tree.top)}
    for module, source in tree.modules.items():
        package = module.rpartition(".")[0]
        names = {node.name for node in source.tree.body if isinstance(node, ast.FunctionDef)}
        if _is_program(source) or any(package == f and (not a or a in names) for f, a in families):
            found.add(module)
    return found


def _is_program(source: Source) -> bool:
    return source.name == "__main__.py" or "__main__" in source.strings


def _families(source: Source, top: str) -> Iterator[tuple[str, str]]:
    """A package whose modules are loaded by ``f"package.{name}:attribute"``, and the attribute."""
    for node in source.nodes(ast.JoinedStr):
        match node.values:
            case [ast.Constant(value=str(start)), ast.FormattedValue(), *rest]:
                end = rest[0].value if rest and isinstance(rest[0], ast.Constant) else ""
                if start.startswith(f"{top}.") and start.endswith("."):
                    yield start.rstrip("."), str(end).partition(":")[2]
            case _:
                pass


def folders(tree: Tree) -> Iterator[Fault]:
    """Folders of the package and the tools that have more than 15 Python files."""
    files = Counter(source.folder for source in tree.below(tree.top, "tools"))
    for folder, count in sorted(files.items()):
        if count > FILES:
            yield Fault(folder, f"{count} Python files", count)


def long(tree: Tree) -> Iterator[Fault]:
    """Files of more than 400 lines: a warning."""
    for source in tree.sources:
        lines = source.text.count("\n")
        if lines > LONG and not source.path.startswith("tests/"):
            yield Fault(source.path, f"{lines} lines")
