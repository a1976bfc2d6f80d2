# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The repository as the gates see it: every Python file read and parsed once.

A gate asks a `Tree` and never a disk, so that thirty of them cost one parse, and a test plants a
violation in a folder of its own.
"""

import ast
import gc
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, TypeVar, overload

import grimp

from tools.gates.lines import code_lines

ROOT: Final = Path(__file__).resolve().parent.parent.parent
FOLDERS: Final = ("tests", "tools", "benchmarks", "examples")
N = TypeVar("N", bound=ast.AST)


@dataclass(frozen=True)
class Source:
    """One Python file."""

    path: str
    """From the root, with slashes."""
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """The parsed file."""
        return ast.parse(self.text, self.path)

    @cached_property
    def _nodes(self) -> Mapping[type[ast.AST], list[ast.AST]]:
        found: dict[type[ast.AST], list[ast.AST]] = defaultdict(list)
        for node in ast.walk(self.tree):
            found[type(node)].append(node)
        return found

    @overload
    def nodes(self, kind: type[N], /) -> Iterator[N]: ...
    @overload
    def nodes(self, *kinds: type[ast.AST]) -> Iterator[Any]: ...
    def nodes(self, *kinds: type[ast.AST]) -> Iterator[Any]:
        """Every node of these kinds, wherever it stands."""
        for kind in kinds:
            yield from self._nodes.get(kind, ())

    @cached_property
    def code_lines(self) -> int:
        """The lines that are code (tools/gates/lines.py)."""
        kinds = (ast.Expr, ast.Import, ast.ImportFrom, ast.Constant, ast.JoinedStr)
        return code_lines(self.text, self.nodes(*kinds))

    @property
    def name(self) -> str:
        """The file's name."""
        return self.path.rpartition("/")[2]

    @property
    def folder(self) -> str:
        """The folder's path."""
        return self.path.rpartition("/")[0]

    @property
    def room(self) -> str:
        """The folder below the top; the file's own stem where it lies at the top."""
        return self.path.split("/")[1].removesuffix(".py")

    @property
    def module(self) -> str:
        """The dotted name under which it is imported."""
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    @cached_property
    def strings(self) -> frozenset[str]:
        """Every string that is written in it, but for docstrings and others that stand alone."""
        alone = {id(node.value) for node in self.nodes(ast.Expr)}
        found = (node.value for node in self.nodes(ast.Constant) if id(node) not in alone)
        return frozenset(value for value in found if isinstance(value, str))

    @cached_property
    def imports(self) -> frozenset[str]:
        """Every module that it imports, by its full name; ``from a import b`` gives a and a.b."""
        found = {alias.name for node in self.nodes(ast.Import) for alias in node.names}
        for node in self.nodes(ast.ImportFrom):
            if node.level == 0 and node.module:
                found.add(node.module)
                found.update(f"{node.module}.{alias.name}" for alias in node.names)
        return frozenset(found)


class Tree:
    """The files of one checkout.

    `package` is the name of the package under the gates; a test's tree has another one than ours,
    since grimp finds a package by importing's own rules.
    """

    def __init__(self, root: Path = ROOT, package: str = "securetrain") -> None:
        """Read every file below `root`; parsing waits until a gate asks."""
        self.root = root
        self.top = package
        self.sources = [
            Source(path.relative_to(root).as_posix(), path.read_text("utf-8"))
            for folder in (package, *FOLDERS)
            for path in sorted((root / folder).rglob("*.py"))
            if "__pycache__" not in path.parts
        ]

    def below(self, *folders: str) -> list[Source]:
        """The files below some folders."""
        return [one for one in self.sources if one.path.startswith(tuple(f"{f}/" for f in folders))]

    @cached_property
    def package(self) -> list[Source]:
        """The files of the package."""
        return self.below(self.top)

    @cached_property
    def tests(self) -> list[Source]:
        """The files of the tests."""
        return self.below("tests")

    @cached_property
    def modules(self) -> Mapping[str, Source]:
        """The package's modules by dotted name."""
        return {one.module: one for one in self.package}

    def parse(self) -> None:
        """Parse every file now: in one go, and without the collector, it takes half the time."""
        gc.disable()
        for one in self.sources:
            _ = one.tree
        gc.freeze()
        gc.enable()

    @cached_property
    def faces(self) -> Mapping[str, Mapping[str, str]]:
        """Package with a stub -> public name -> the module that it is lazily loaded from."""
        found = {}
        for stub in sorted((self.root / self.top).rglob("__init__.pyi")):
            package = ".".join(stub.parent.relative_to(self.root).parts)
            found[package] = {
                alias.asname or alias.name: f"{package}.{node.module or alias.name}"
                for node in ast.parse(stub.read_text("utf-8")).body
                if isinstance(node, ast.ImportFrom) and node.level == 1
                for alias in node.names
            }
        return found

    @cached_property
    def importers(self) -> Mapping[str, frozenset[str]]:
        """Module -> the package's modules that import it, directly or by a name of a lazy face.

        A face's stub is no importer where a module takes the name from it; a name that no module
        takes is for programs, and the face itself stands for them.
        """
        graph = self._graph()
        found = {name: set(graph.find_modules_that_directly_import(name)) for name in graph.modules}
        taken: dict[tuple[str, str], set[str]] = defaultdict(set)
        for source in self.package:
            for node in source.nodes(ast.ImportFrom):
                if node.level == 0 and node.module and node.module in self.faces:
                    for alias in node.names:
                        taken[node.module, alias.name].add(source.module)
        for face, names in self.faces.items():
            for name in names:
                behind = self._behind(face, name)
                if behind in found:
                    found[behind] |= taken[face, name] or {face}
        return {name: frozenset(by - {name}) for name, by in found.items()}

    def _behind(self, face: str, name: str) -> str:
        """The module that defines a name of a face, through nested faces."""
        module = self.faces[face][name]
        while name in self.faces.get(module, ()):
            module = self.faces[module][name]
        inner = f"{module}.{name}"  # a module of a package that has no face
        return inner if inner in self.modules else module

    def _graph(self) -> grimp.ImportGraph:
        sys.path.insert(0, str(self.root))
        try:
            return grimp.build_graph(self.top, cache_dir=None)
        finally:
            sys.path.remove(str(self.root))
