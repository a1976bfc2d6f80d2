# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Long parameter lists and wide records: what nobody can hold in mind at once."""

import ast
from collections.abc import Iterable, Iterator
from typing import Final

from tools.gates.tree import Tree
from tools.gates.violations import Fault

PARAMETERS: Final = 8
FIELDS: Final = 12
_SCHEMAS: Final = frozenset({"Struct", "TypedDict"})


def parameters(tree: Tree) -> Iterator[Fault]:
    """Functions with more than eight parameters, `self` and `cls` not counted."""
    for source in tree.package:
        for name, node in _named(source.tree.body):
            if not isinstance(node, ast.ClassDef):
                count = _count(node.args)
                if count > PARAMETERS:
                    yield Fault(f"{source.path}::{name}", f"{count} parameters", count)


def fields(tree: Tree) -> Iterator[Fault]:
    """Classes with more than twelve fields, but for schemas.

    A schema is a msgspec struct or a typed dictionary, or is derived from one: its fields are those
    of a document, a frame or a file that others write.
    """
    schemas = _schemas(tree)
    for source in tree.package:
        for name, node in _named(source.tree.body):
            if isinstance(node, ast.ClassDef) and name.rpartition(".")[2] not in schemas:
                count = sum(map(_is_field, node.body))
                if count > FIELDS:
                    yield Fault(f"{source.path}::{name}", f"{count} fields", count)


def _named(
    body: Iterable[ast.stmt], prefix: str = ""
) -> Iterator[tuple[str, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Classes and functions with their qualified names, those inside of others too."""
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{prefix}{node.name}", node
            yield from _named(node.body, f"{prefix}{node.name}.")


def _count(arguments: ast.arguments) -> int:
    names = [one.arg for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def _is_field(node: ast.stmt) -> bool:
    return isinstance(node, ast.AnnAssign) and "ClassVar" not in ast.unparse(node.annotation)


def _schemas(tree: Tree) -> frozenset[str]:
    """The names of all classes that are derived from a schema, however far."""
    bases = {
        node.name: {_last(base) for base in node.bases}
        for source in tree.package
        for node in source.nodes(ast.ClassDef)
    }
    found = set(_SCHEMAS)
    while more := {name for name, above in bases.items() if above & found} - found:
        found |= more
    return frozenset(found)


def _last(base: ast.expr) -> str:
    return ast.unparse(base).partition("[")[0].rpartition(".")[2]
