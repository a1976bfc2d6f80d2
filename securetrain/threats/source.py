# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Find code by name without importing it: torch's rooms are resolved on a machine without torch.

A target is ``package.module:Class.method`` or ``tests/path.py::test_name``. It resolves when the
file exists and its syntax tree defines the name. A name that a module only imports does not count:
a control is enforced where it is written.
"""

import ast
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

SOURCE_LIMIT: Final = 4 << 20


@dataclass(slots=True)
class SourceTree:
    """The package's directory, and the repository's root when there are tests to look at."""

    package: Path
    """Directory of the package ``securetrain``."""
    repository: Path | None
    """Directory that holds ``tests``; None in an installation without them."""
    _trees: dict[Path, ast.Module | None] = field(default_factory=dict)

    @classmethod
    def of(cls, package: Path) -> "SourceTree":
        """The tree around an installed or checked-out package."""
        root = package.parent
        return cls(package, root if (root / "tests").is_dir() else None)

    def module(self, name: str) -> Path | None:
        """The file of a dotted module name below the package; None when there is none."""
        first, *rest = name.split(".")
        if first != self.package.name:
            return None
        base = self.package.joinpath(*rest)
        for path in (base.with_suffix(".py"), base / "__init__.py"):
            if path.is_file():
                return path
        return None

    def attribute(self, target: str) -> str:
        """Explain why ``module:attribute`` does not resolve; empty when it does."""
        module, _, name = target.partition(":")
        path = self.module(module)
        if path is None:
            return f"there is no module {module}"
        return "" if self._defines(path, name.split(".")) else f"{module} does not define {name}"

    def test(self, target: str) -> str:
        """Explain why ``tests/path.py::name`` does not resolve; empty when it does."""
        assert self.repository is not None  # the caller asks only where there are tests
        file, *names = target.split("::")
        path = self.repository / file
        if not path.is_file():
            return f"there is no {file}"
        return "" if self._defines(path, names) else f"{file} does not define {'::'.join(names)}"

    def _defines(self, path: Path, names: list[str]) -> bool:
        body: list[ast.stmt] | None = getattr(self._tree(path), "body", None)
        for position, name in enumerate(names):
            if body is None:
                return False
            node = next((n for n in _flatten(body) if name in _names(n)), None)
            if node is None:
                return False
            last = position == len(names) - 1
            body = node.body if isinstance(node, ast.ClassDef) else None
            if last:
                return True
        return False

    def _tree(self, path: Path) -> ast.Module | None:
        if path not in self._trees:
            if path.stat().st_size > SOURCE_LIMIT:
                self._trees[path] = None
            else:
                try:
                    self._trees[path] = ast.parse(path.read_bytes())
                except SyntaxError:
                    self._trees[path] = None
        return self._trees[path]


def _flatten(body: list[ast.stmt]) -> list[ast.stmt]:
    """Statements of a body, with those of its top-level if and try blocks."""
    found: list[ast.stmt] = []
    for node in body:
        match node:
            case ast.If():
                found += _flatten(node.body) + _flatten(node.orelse)
            case ast.Try():
                found += _flatten(node.body) + _flatten(node.orelse)
            case _:
                found.append(node)
    return found


def _names(node: ast.stmt) -> set[str]:
    """The names that a statement defines."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return {node.name}
        case ast.Assign():
            return {t.id for t in node.targets if isinstance(t, ast.Name)}
        case ast.AnnAssign(target=ast.Name(id=name)):
            return {name}
        case _:
            return set()
