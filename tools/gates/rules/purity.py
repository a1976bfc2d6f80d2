# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The rules of a pure library: bytes, reference values and a clock in, a verdict out.

A pure library

1. imports nothing that reaches files, the network, processes, other threads, the clock, chance, the
   environment or the log; but for `threading.Lock`, which guards what one object holds;
2. opens nothing, asks nothing, and asks no ``now``;
3. keeps nothing from one call to the next: no ``global``, no module-level container that is not a
   constant, none that is changed, no cached function.

These are rules about the text of a module. What it calls in other packages is held by the layers.
"""

import ast
from collections.abc import Iterator
from typing import Final

IMPURE_MODULES: Final = frozenset(
    {
        *("os", "io", "pathlib", "tempfile", "shutil", "glob", "fcntl", "mmap", "sqlite3"),
        *("socket", "ssl", "select", "selectors", "http", "urllib", "ftplib", "smtplib"),
        *("subprocess", "threading", "multiprocessing", "concurrent", "asyncio", "signal"),
        *("time", "random", "secrets", "logging", "ctypes", "importlib", "builtins"),
    }
)
_CALLS: Final = frozenset({"open", "input", "print", "exec", "eval", "__import__", "globals"})
_CLOCKS: Final = frozenset({"now", "utcnow", "today"})
_MAKERS: Final = frozenset(
    {"dict", "list", "set", "bytearray", "defaultdict", "OrderedDict", "Counter", "deque"}
)
_CHANGES: Final = frozenset(
    {
        *("append", "extend", "insert", "remove", "pop", "popitem", "clear", "sort", "reverse"),
        *("add", "discard", "update", "setdefault", "appendleft", "popleft"),
    }
)


def impurities(tree: ast.Module) -> list[tuple[int, str]]:
    """Every breach of the rules in a module: the line, and what it does."""
    return sorted(set(_of_module(tree)))


def _of_module(tree: ast.Module) -> Iterator[tuple[int, str]]:
    kept = {name for statement in tree.body for name in _names(statement)}
    for node in ast.walk(tree):
        for what in (*_reached(node), *_changed(node, kept)):
            yield getattr(node, "lineno", 0), what
    for statement in _module_level(tree.body):
        yield from ((statement.lineno, what) for what in _of_statement(statement))


def _reached(node: ast.AST) -> Iterator[str]:
    """What a piece of a module reaches for outside."""
    match node:
        case ast.Import(names=names):
            yield from (f"imports {a.name}" for a in names if _root(a.name) in IMPURE_MODULES)
        case ast.ImportFrom(module="threading", names=[ast.alias(name="Lock")]):
            pass
        case ast.ImportFrom(module=str() as module) if _root(module) in IMPURE_MODULES:
            yield f"imports {module}"
        case ast.Call(func=ast.Name(id=name)) if name in _CALLS:
            yield f"calls {name}()"
        case ast.Call(func=ast.Attribute(attr=name)) if name in _CLOCKS:
            yield f"asks the clock: {ast.unparse(node)}"
        case _:
            pass


def _changed(node: ast.AST, kept: set[str]) -> Iterator[str]:
    """What a piece of a module keeps for the next call in one of the module's names."""
    match node:
        case ast.Global(names=names):
            yield f"global {', '.join(names)}"
        case ast.Call(func=ast.Attribute(value=ast.Name(id=owner), attr=name)):
            if owner in kept and name in _CHANGES:
                yield f"changes {owner}"
        case ast.Subscript(value=ast.Name(id=owner), ctx=ast.Store() | ast.Del()):
            if owner in kept:
                yield f"changes {owner}"
        case ast.FunctionDef(decorator_list=decorators):
            yield from ("a cached function" for one in decorators if _is_cache(one))
        case _:
            pass


def _of_statement(statement: ast.stmt) -> Iterator[str]:
    """What a statement that runs when the module is imported leaves behind."""
    match statement:
        case ast.Assign(targets=[ast.Name(id="__all__")]):
            pass
        case ast.Assign(value=value) if _is_container(value):
            yield f"a container that is not Final: {_shown(statement)}"
        case ast.AnnAssign(value=ast.expr() as value) if _is_container(value):
            if not ast.unparse(statement.annotation).startswith(("Final", "typing.Final")):
                yield f"a container that is not Final: {_shown(statement)}"
            elif _is_empty(value):
                yield f"a container to be filled: {_shown(statement)}"
        case _:
            pass


def _module_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements of the module itself, below ``if`` and ``try`` too."""
    for statement in body:
        yield statement
        match statement:
            case ast.If() | ast.Try() | ast.With() | ast.For():
                for name in ("body", "orelse", "finalbody"):
                    yield from _module_level(getattr(statement, name, []))
            case _:
                pass


def _names(statement: ast.stmt) -> Iterator[str]:
    targets: list[ast.expr] = []
    match statement:
        case ast.Assign():
            targets = statement.targets
        case ast.AnnAssign():
            targets = [statement.target]
        case _:
            pass
    yield from (one.id for one in targets if isinstance(one, ast.Name))


def _is_container(value: ast.expr) -> bool:
    match value:
        case ast.Dict() | ast.List() | ast.Set() | ast.DictComp() | ast.ListComp() | ast.SetComp():
            return True
        case ast.Call(func=function):
            return ast.unparse(function).rpartition(".")[2] in _MAKERS
        case _:
            return False


def _is_empty(value: ast.expr) -> bool:
    match value:
        case ast.Dict(keys=[]) | ast.List(elts=[]):
            return True
        case ast.Call(args=args):
            return not args or ast.unparse(value.func).endswith("defaultdict")
        case _:
            return False


def _is_cache(decorator: ast.expr) -> bool:
    name = ast.unparse(decorator).partition("(")[0].rpartition(".")[2]
    return name in {"cache", "lru_cache"}


def _root(module: str) -> str:
    return module.partition(".")[0]


def _shown(statement: ast.stmt) -> str:
    return ast.unparse(statement).splitlines()[0][:80]
