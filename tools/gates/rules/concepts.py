# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""One of each: a concept has one module that decides it, and `concepts.toml` names it.

The table says for each concept by what a second one is recognised. That is a matter of form: what
imports the store's library is a store. A test of form finds the second one on the day it is
written, which is when it is cheap to unify.
"""

import ast
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tools.gates.tree import Source, Tree
from tools.gates.violations import Fault

TABLE: Final = Path(__file__).parent.parent / "concepts.toml"


def second_ones(tree: Tree, table: Path | None = None) -> Iterator[Fault]:
    """Files that decide a concept which another one decides."""
    for row in tomllib.loads((table or TABLE).read_text("utf-8"))["concept"]:
        name, one = row["name"], row["one"]
        allowed = row.get("allowed", {})
        missing = [path for path in (one, *allowed) if not (tree.root / path).exists()]
        for path in missing:
            yield Fault(
                f"{path}::{name}", f"the table names it for the {name}, and it is not there"
            )
        for source in tree.below(*row.get("within", [tree.top])):
            if source.path == one or source.path.startswith(f"{one}/") or source.path in allowed:
                continue
            if found := sorted(set(_signs(source, row))):
                says = f"a second one for the {name} ({', '.join(found)})"
                yield Fault(f"{source.path}::{name}", f"{says}: the one is {one}; {row['do']}")


def _signs(source: Source, row: Mapping[str, Any]) -> Iterator[str]:
    """Each sign by which a file is one for a concept."""
    for module in row.get("imports", ()):
        if any(name == module or name.startswith(f"{module}.") for name in source.imports):
            yield f"imports {module}"
    yield from _calls(source, frozenset(row.get("calls", ())), frozenset(row.get("keywords", ())))
    if pattern := row.get("classes"):
        names = (node.name for node in source.nodes(ast.ClassDef))
        yield from (f"class {name}" for name in names if re.fullmatch(pattern, name))
    if pattern := row.get("functions"):
        defined = source.nodes(ast.FunctionDef, ast.AsyncFunctionDef)
        yield from (f"def {node.name}" for node in defined if re.fullmatch(pattern, node.name))
    if pattern := row.get("strings"):
        yield from (f"{found[0]!r}" for s in source.strings if (found := re.search(pattern, s)))
    if (pattern := row.get("files")) and re.search(pattern, source.path):
        yield source.name
    yield from _patches(source, frozenset(row.get("patches", ())))


def _calls(source: Source, names: frozenset[str], keywords: frozenset[str]) -> Iterator[str]:
    if not names and not keywords:
        return
    for node in source.nodes(ast.Call):
        name = ast.unparse(node.func).rpartition(".")[2]
        if name in names:
            yield f"calls {name}"
        yield from (f"passes {word.arg}" for word in node.keywords if word.arg in keywords)


def _patches(source: Source, packages: frozenset[str]) -> Iterator[str]:
    """Assignments to an attribute of what was imported from another's package."""
    if not packages:
        return
    foreign = {
        (alias.asname or alias.name).partition(".")[0]
        for node in source.nodes(ast.Import, ast.ImportFrom)
        for alias in node.names
        if (getattr(node, "module", None) or alias.name).partition(".")[0] in packages
        and not getattr(node, "level", 0)
    }
    for node in source.nodes(ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Attribute) and _root(target) in foreign:
                yield f"assigns {ast.unparse(target)}"
    for call in source.nodes(ast.Call):
        match call:
            case ast.Call(func=ast.Name(id="setattr"), args=[owner, *_]) if _root(owner) in foreign:
                yield f"sets an attribute of {ast.unparse(owner)}"
            case _:
                pass


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
