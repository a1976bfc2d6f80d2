# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Checks of the verifier that are switched off one at a time, in this process.

An attack shows what a check is for when it is refused with the check and taken without it. Most
checks are no functions that a test could replace: they are a ``raise`` or a ``return broken(...)``.
So every function of the verifier's modules gets the same code once more, in which each of these
statements asks first whether it is switched off:

* a ``raise``, a ``return`` of ``broken``, ``missing`` or ``_contradicts``, a ``self._add``;
* not in an ``except``: there another one's refusal is passed on.

`Switches.behind` switches off what refuses, as long as something does, and says what that was: one
check of an attack that one check is for, several where they stand behind each other. What is left
in the end is no check that could be missing: there is nothing to go on with, or a parser refuses
(of a closed schema, of numbers), which has no switch.

`checks_of_attacks.json` says of every attack which checks stood in its way, in their order, and
what became of it without them. ``WRITE_CHECKS=1 pytest tests/chain`` writes it anew, to be read
before it is committed.
"""

import ast
import inspect
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

from securetrain.chain import (
    container,
    coordinators,
    documents,
    held,
    kept,
    nodes,
    packed,
    records,
    rows,
    steps,
    store,
    tables,
    unpacking,
)
from securetrain.chain.links import LinkVerdict
from securetrain.guard import openings, rejudge, step_table

MODULES: Final[Sequence[ModuleType]] = (
    *(container, coordinators, documents, held, kept, nodes, packed, records),
    *(rows, steps, store, tables, unpacking, openings, rejudge, step_table),
)
_WORDS: Final = {"broken", "missing", "_contradicts"}
TABLE: Final = Path(__file__).with_name("checks_of_attacks.json")
TAKEN: Final = "it is taken"
NOTHING_LEFT: Final = "nothing is left to judge"
ITS_PARSER: Final = "its parser refuses it"
_DIFFERING: Final = re.compile(
    r"spiffe://\S+(?=: )|'blobs/.*?'|\0+|\b[0-9a-f]{16,64}\b|\d[\d:T+-]*"
)


class _Asking(ast.NodeTransformer):
    """Puts the question before each refusal."""

    def __init__(self, module: str) -> None:
        self._names = [module]

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self._names.append(node.name)
        self.generic_visit(node)
        self._names.pop()
        return node

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> ast.AST:
        return node

    def visit_Raise(self, node: ast.Raise) -> Any:
        return node if node.exc is None else self._asked(node, node.exc, "exc")

    def visit_Return(self, node: ast.Return) -> Any:
        match node.value:
            case ast.Call(func=ast.Name(id=word)) if word in _WORDS:
                return self._asked(node, node.value, "value")
            case _:
                return node

    def visit_Expr(self, node: ast.Expr) -> Any:
        match node.value:
            # What is passed on has another one's code.
            case ast.Call(func=ast.Attribute(attr="_add"), args=[code, what, _]) if not (
                isinstance(code, ast.Attribute)
            ):
                where = ast.Constant(".".join(self._names))
                asks = ast.Call(ast.Name("_is_on_", ast.Load()), [where, what], [])
                return _at(node, [ast.If(asks, [node], [])])
            case _:
                return node

    def _asked(self, node: ast.stmt, value: ast.expr, name: str) -> list[ast.stmt]:
        kept = ast.Assign([ast.Name("_refusal_", ast.Store())], value)
        setattr(node, name, ast.Name("_refusal_", ast.Load()))
        where = ast.Constant(".".join(self._names))
        found = ast.Name("_refusal_", ast.Load())
        asks = ast.Call(ast.Name("_is_on_", ast.Load()), [where, found], [])
        return _at(node, [kept, ast.If(asks, [node], [])])


def _at(node: ast.stmt, made: list[Any]) -> list[ast.stmt]:
    return [ast.fix_missing_locations(ast.copy_location(one, node)) for one in made]


def _codes(code: CodeType) -> Iterator[CodeType]:
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield one
            yield from _codes(one)


def _functions(module: ModuleType) -> Iterator[FunctionType]:
    """The functions and methods that are written in a module."""
    holders = [module, *(one for one in vars(module).values() if inspect.isclass(one))]
    for holder in holders:
        if getattr(holder, "__module__", module.__name__) != module.__name__:
            continue
        for one in vars(holder).values():
            for name in ("__func__", "fget", "func", "__wrapped__"):
                one = getattr(one, name, one)  # noqa: PLW2901 - the function inside
            if isinstance(one, FunctionType) and one.__module__ == module.__name__:
                yield one


@dataclass
class Switches:
    """The checks that are off, and those that have refused."""

    off: set[tuple[str, str]] = field(default_factory=set)
    refused: list[tuple[str, str]] = field(default_factory=list)

    def is_on(self, where: str, refusal: object) -> bool:
        """Whether a check refuses; asked by the check."""
        match refusal:
            case LinkVerdict(what=what):
                pass
            case _:
                what = str(getattr(refusal, "what", refusal))
        name = where, what
        if name in self.off:
            return False
        self.refused.append(name)
        return True

    def behind(self, ask: Callable[[], str]) -> tuple[list[str], str]:
        """Switch off what refuses, one check after the other.

        Args:
            ask: Verifies once more; returns why it refuses, or nothing when all of it is taken.

        Returns:
            The names of the checks, and why it is still refused where no check does.
        """
        names: list[str] = []
        self.off.clear()
        while True:
            self.refused.clear()
            why = ask()
            found = next((one for one in reversed(self.refused) if one[1] and one[1] in why), None)
            if not why or found is None:
                self.off.clear()
                return names, why
            self.off.add(found)
            if (name := _name(*found)) not in names:
                names.append(name)


def _name(where: str, what: str) -> str:
    """A check's name: the function, and its words without what differs between runs."""
    return f"{where}: {_DIFFERING.sub('*', what)}"


@contextmanager
def refusing_checks() -> Iterator[Switches]:
    """Give every check of the verifier a switch."""
    made = Switches()
    before: list[tuple[FunctionType, CodeType]] = []
    for module in MODULES:
        assert module.__file__ is not None
        tree = ast.parse(Path(module.__file__).read_text())
        short = module.__name__.rpartition(".")[2]
        asking = compile(_Asking(short).visit(tree), module.__file__, "exec")
        codes = {one.co_qualname: one for one in _codes(asking)}
        vars(module)["_is_on_"] = made.is_on
        for function in _functions(module):
            code = codes.get(function.__qualname__)
            if code is not None and code.co_freevars == function.__code__.co_freevars:
                before.append((function, function.__code__))
                function.__code__ = code
    try:
        yield made
    finally:
        for function, code in before:
            function.__code__ = code
        for module in MODULES:
            del vars(module)["_is_on_"]


def table() -> dict[str, dict[str, dict[str, Any]]]:
    """By suite and attack: the checks in its way, and what became of it without them."""
    found: dict[str, dict[str, dict[str, Any]]] = json.loads(TABLE.read_text())
    return found


def hold(checks: Switches, suite: str, attack: str, ask: Callable[[], str]) -> None:
    """Switch off what refuses an attack, and compare with the table."""

    def asked() -> str:
        try:
            return ask()
        except Exception as error:  # noqa: BLE001 - with a check off, anything may come
            return f"crash {type(error).__name__}: {getattr(error, 'what', error)}"

    names, why = checks.behind(asked)
    match why:
        case "":
            then = TAKEN
        case _ if "could not be judged" in why or re.match(r"crash (?!Integrity|Usage)", why):
            then = NOTHING_LEFT
        case _:
            then = ITS_PARSER
    found = {"checks": names, "then": then}
    if os.environ.get("WRITE_CHECKS"):
        all_of_them = table() if TABLE.exists() else {}
        all_of_them.setdefault(suite, {})[attack] = found
        TABLE.write_text(json.dumps(all_of_them, indent=1, sort_keys=True) + "\n")
        return
    listed = table().get(suite, {}).get(attack)
    assert found == listed, (
        f"{attack!r} is refused by other checks than {TABLE.name} says: read what WRITE_CHECKS=1"
        " makes of that file, and commit it when it is right"
    )
