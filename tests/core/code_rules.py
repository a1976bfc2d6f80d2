# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The rules of the table of codes, over any table: what a row needs besides its columns.

A code in a syntax tree is *raised* where it is handed on: an argument, a value that is returned, a
constant that is used so. Comparing with it, or matching it, raises nothing.
"""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from securetrain.core.codes import ALONE, Code
from securetrain.core.codes.columns import NO_THREAT

CODE = re.compile(r"ST-[A-Z]{4}-\d{3}")
COLLECTED = ("CKPT", "DATA", "OMSB", "SCAN")
"""Families of which one thing can have several problems."""
KINDS = ("CKPT", "DATA")
"""Families of `Kind.code`, which is given the number."""


@dataclass
class Source:
    """What the syntax trees of some files say about codes."""

    raised: set[str] = field(default_factory=set)
    numbers: set[str] = field(default_factory=set)
    """Numbers that are given to `Kind.code`."""
    tables: list[str] = field(default_factory=list)
    """Collections of codes, as ``file:line``."""
    made: list[str] = field(default_factory=list)
    """Codes that are put together from parts, as ``file``."""


def read(trees: Mapping[str, ast.Module]) -> Source:
    """Read the package; keys are file names."""
    found = Source()
    own = {file: _constants(tree) for file, tree in trees.items()}
    of_module = {_module(file): constants for file, constants in own.items()}
    for file, tree in trees.items():
        nodes = list(ast.walk(tree))  # once: walking is what takes long
        imported = {
            alias.asname or alias.name: of_module[node.module][alias.name]
            for node in nodes
            if isinstance(node, ast.ImportFrom) and node.module in of_module
            for alias in node.names
            if alias.name in of_module[node.module]
        }
        constants = imported | own[file]
        idle = {id(part) for node in nodes for part in _compared(node)}
        idle |= {id(value) for node in tree.body for _, value in _assigned(node)}
        for node in nodes:
            if _is_table(node, constants):
                found.tables.append(f"{file}:{getattr(node, 'lineno', 0)}")
            match node:
                case ast.Call(func=ast.Attribute(attr="code"), args=args):
                    found.numbers |= {str(a.value) for a in args if isinstance(a, ast.Constant)}
                case ast.JoinedStr() if _makes_code(node):
                    found.made.append(file)
                case ast.Constant() if _is_code(node) and id(node) not in idle:
                    found.raised.add(str(node.value))
                case ast.Name(ctx=ast.Load()) if node.id in constants and id(node) not in idle:
                    found.raised.add(constants[node.id])
    return found


def named(trees: Iterable[ast.Module]) -> set[str]:
    """The codes that the tests name in their code: not in comments or docstrings.

    A file that makes codes of numbers (``f"ST-ATTS-{number}"``) names those of its numbers.
    """
    return {code for tree in trees for code in _named(tree)}


def _named(tree: ast.Module) -> Iterator[str]:
    nodes = list(ast.walk(tree))
    constants = [node.value for node in nodes if isinstance(node, ast.Constant)]
    numbers = {f"{v:03}" for v in constants if isinstance(v, int)}
    numbers |= {v for v in constants if isinstance(v, str) and re.fullmatch(r"\d{3}", v)}
    texts = [v for v in constants if isinstance(v, str) and "\n" not in v]
    yield from (code for text in texts for code in CODE.findall(text))
    listed = {
        id(inner)
        for node in nodes
        if isinstance(node, ast.SetComp | ast.ListComp)
        for inner in ast.walk(node)
    }
    for node in nodes:
        match node:
            case ast.JoinedStr(values=[ast.Constant(value=str(head)), *_]) if (
                id(node) not in listed
            ):
                if found := re.fullmatch(r"ST-([A-Z]{4})-", head):
                    yield from (f"ST-{found[1]}-{number}" for number in numbers)
                elif head == "ST-" and isinstance(last := node.values[-1], ast.Constant):
                    yield from (f"ST-{family}{last.value!s}" for family in KINDS)


def incomplete(table: Mapping[str, Code]) -> Iterator[str]:
    """Rows whose columns do not decide what they must."""
    places: dict[tuple[str, int], str] = {}
    for code in table.values():
        say = f"{code.id}: "
        for column in ("title", "fix", "threat"):
            if not getattr(code, column).strip():
                yield f"{say}column '{column}' is empty"
        if code.threat.startswith(NO_THREAT.strip()) and not code.threat.removeprefix(NO_THREAT):
            yield f"{say}column 'threat': say why there is none"
        if code.family in COLLECTED and code.rank >= ALONE:
            yield (
                f"{say}column 'rank': a checkpoint, dataset, model or file can have several"
                " problems; decide where this one stands among them"
            )
        if code.family not in COLLECTED and code.rank != ALONE:
            yield f"{say}column 'rank': it is raised alone, so its rank is ALONE"
        other = places.setdefault((code.family, code.rank), code.id)
        if other != code.id and code.rank != ALONE:
            yield f"{say}column 'rank': {other} stands there already; decide which says more"
        if code.bars_node and code.family != "ATTS":
            yield f"{say}column 'node': only evidence can bar a node"


def untraced(table: Mapping[str, Code], cited: Mapping[str, set[str]]) -> Iterator[str]:
    """Rows whose threat is not in the models, or does not cite them back.

    Args:
        table: The codes.
        cited: Threats and exceptions of the models, with the codes that each cites.
    """
    for code in table.values():
        if not code.answers_an_attack:
            continue
        if code.threat not in cited:
            yield f"{code.id}: column 'threat': no threat model has {code.threat}"
        elif code.id not in cited[code.threat]:
            yield f"{code.id}: {code.threat} does not cite it; add it to a control"


def unraised(table: Mapping[str, Code], source: Source) -> Iterator[str]:
    """Rows without a raising site, and raising sites without a row."""
    raised = source.raised | {
        f"ST-{family}-{number}"
        for family in KINDS
        for number in source.numbers
        if f"ST-{family}-{number}" in table
    }
    for code in table.values():
        if code.id not in raised:
            yield f"{code.id}: nothing raises it; raise it, or delete the row and retire the code"
    for name in sorted(source.raised - table.keys()):
        yield f"{name}: it is raised and has no row in core/codes"
    for number in sorted(source.numbers):
        if not any(f"ST-{family}-{number}" in table for family in KINDS):
            yield f"Kind.code({number}): neither family has such a row in core/codes"


def untested(table: Mapping[str, Code], names: set[str]) -> Iterator[str]:
    """Rows that no test names."""
    for code in table.values():
        if code.id not in names:
            yield f"{code.id}: no test asserts it; write one that provokes it"


def _module(file: str) -> str:
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _constants(tree: ast.Module) -> dict[str, str]:
    return {
        name.id: value.value
        for node in tree.body
        for name, value in _assigned(node)
        if isinstance(value, ast.Constant) and isinstance(value.value, str)
        if CODE.fullmatch(value.value)
    }


def _assigned(node: ast.stmt) -> list[tuple[ast.Name, ast.expr]]:
    match node:
        case ast.AnnAssign(target=ast.Name() as name, value=ast.expr() as value):
            return [(name, value)]
        case ast.Assign(targets=[ast.Name() as name], value=value):
            return [(name, value)]
        case _:
            return []


def _is_code(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and CODE.fullmatch(node.value) is not None
    )


def _compared(node: ast.AST) -> Iterator[ast.AST]:
    """The parts of a node that are only compared."""
    match node:
        case ast.Compare(left=left, comparators=others):
            yield from (part for part in (left, *others))
        case ast.MatchValue(value=value):
            yield value


def _is_table(node: ast.AST, constants: Mapping[str, str]) -> bool:
    """Whether a node is a collection that decides something about codes.

    A display of codes, or a dictionary from or to codes, however deep they stand in its items; not
    a single pair for JSON (``{"code": ...}``).
    """

    def codes(parts: Iterable[ast.AST | None]) -> int:
        return sum(
            _is_code(inner) or (isinstance(inner, ast.Name) and inner.id in constants)
            for part in parts
            if part is not None
            for inner in _within(part)
        )

    match node:
        case ast.Set(elts=elts) | ast.List(elts=elts):
            return codes(elts) > 0
        case ast.Tuple(elts=elts):
            return codes(elts) > 1 or (len(elts) == 1 and codes(elts) == 1)
        case ast.Dict(keys=keys, values=values):
            return codes(keys) > 0 or codes(values) > 1
        case ast.DictComp() | ast.SetComp() | ast.ListComp() | ast.GeneratorExp():
            return _makes_code(node.key if isinstance(node, ast.DictComp) else node.elt)
        case _:
            return False


def _within(node: ast.AST) -> Iterator[ast.AST]:
    """A node, and what stands in its tuples and lists."""
    yield node
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        for part in node.elts:
            yield from _within(part)


def _makes_code(node: ast.AST) -> bool:
    """Whether a string is put together that begins like a code."""
    return (
        isinstance(node, ast.JoinedStr)
        and bool(node.values)
        and isinstance(node.values[0], ast.Constant)
        and str(node.values[0].value).startswith("ST-")
        and CODE.match(str(node.values[0].value)) is None
    )
