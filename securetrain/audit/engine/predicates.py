# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Declarative predicates, compiled once to closures.

::

    {all: [P, ...]}  {any: [P, ...]}  {not: P}
    {none: PATH, where: P}  {every: PATH, where: P}  {some: PATH, where: P}
    {field: PATH, op: OP, value: LITERAL | ref: PATH | param: NAME}

Rules:

1. every key, path, operator and literal is checked against the schema when the check is loaded;
   a mistake is ST-AUDT-001;
2. logic is Kleene's (`kleene.py`): a field that is not known makes its comparison unknown;
3. ``exists`` and ``missing`` answer only when something looked; a denied read is unknown for both;
4. a quantifier over a collection that is definitely not there (the options of a file that does not
   exist) is one over nothing;
5. a ``*`` in the path of a quantifier stands for each element of the collection before it;
6. an answer carries the place of the value that decided, where that is a file.

There is no eval, no regular expression from a file and no access to anything but the `View`.
"""

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, Final, TypeAlias, TypeVar

import msgspec
from packaging.version import InvalidVersion, Version

from securetrain.audit.engine.fields import (
    EACH,
    Missing,
    Path,
    Shape,
    UnknownFieldError,
    View,
    element_at,
    elements,
    evidence_name,
    is_absolute,
    is_record,
    reader_of,
    resolve,
    shape_at,
    steps_of,
)
from securetrain.audit.engine.kleene import Truth, all_of, any_of, unknown
from securetrain.audit.facts import Outcome, Reading
from securetrain.core.errors import AuditError

T = TypeVar("T")
Predicate: TypeAlias = Callable[[View], Truth]

MAX_DEPTH: Final = 16
QUANTIFIERS: Final[Mapping[str, Callable[[Iterable[Truth]], Truth]]] = {
    "none": lambda results: ~any_of(results),
    "every": all_of,
    "some": any_of,
}


@dataclass(frozen=True, slots=True)
class _Op:
    """An operator: how it compares, and the types that it takes."""

    compare: Callable[[Any, Any], bool]
    takes: tuple[type, ...] | None = None
    """Types of the field; None for any scalar."""
    many: bool = False
    """Whether the operand is a list."""
    on_collection: bool = False


def _mode_max(mode: str, limit: str) -> bool:
    return int(mode, 8) & ~int(limit, 8) == 0


def _some_glob(found: Iterable[str], patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(one, pattern) for one in found for pattern in patterns)


_OPS: Final[Mapping[str, _Op]] = {
    "eq": _Op(operator.eq),
    "ne": _Op(operator.ne),
    "in": _Op(lambda a, b: a in b, many=True),
    "in_any_case": _Op(lambda a, b: a.lower() in b, takes=(str,), many=True),
    "not_in": _Op(lambda a, b: a not in b, many=True),
    "lt": _Op(operator.lt, takes=(int, float)),
    "le": _Op(operator.le, takes=(int, float)),
    "gt": _Op(operator.gt, takes=(int, float)),
    "ge": _Op(operator.ge, takes=(int, float)),
    "starts": _Op(str.startswith, takes=(str,)),
    "ends": _Op(str.endswith, takes=(str,)),
    "glob": _Op(fnmatchcase, takes=(str,)),
    "glob_any": _Op(lambda a, b: any(fnmatchcase(a, p) for p in b), takes=(str,), many=True),
    "mode_max": _Op(_mode_max, takes=(str,)),
    "version_lt": _Op(lambda a, b: Version(a) < Version(b), takes=(str,)),
    "version_ge": _Op(lambda a, b: Version(a) >= Version(b), takes=(str,)),
    "superset": _Op(lambda a, b: set(a) >= set(b), many=True, on_collection=True),
    "disjoint": _Op(lambda a, b: not set(a) & set(b), many=True, on_collection=True),
    "subset": _Op(lambda a, b: set(a) <= set(b), many=True, on_collection=True),
    "some_glob": _Op(_some_glob, takes=(str,), many=True, on_collection=True),
}


@dataclass(slots=True, kw_only=True)
class Compiler:
    """Compiles the predicates of one check, and notes what they read."""

    where: str
    """The check's file and id, for messages."""
    params: Mapping[str, Any]
    item: Any = None
    """The record type in focus."""
    item_at: Path = ()
    """The collection that it stands in."""
    reads: set[str] = field(default_factory=set)
    """Evidence that absolute paths read."""
    fields: set[Path] = field(default_factory=set)
    """Every field that is read, with ``*`` for the elements of a collection."""
    shown: list[Path] = field(default_factory=list)
    """Paths that are compared, in order: what a finding shows."""
    used_params: set[str] = field(default_factory=set)

    def refuse(self, what: str, at: str) -> AuditError:
        """The one error for a bad predicate."""
        return AuditError("ST-AUDT-001", what, f"{self.where}: {at}")

    def compile(self, node: Any, at: str, depth: int = 0) -> Predicate:
        """Compile one predicate.

        Raises:
            AuditError: ST-AUDT-001 with the place in the check.
        """
        if depth > MAX_DEPTH:
            raise self.refuse(f"nested deeper than {MAX_DEPTH}", at)
        if not isinstance(node, dict) or not node:
            raise self.refuse("not a predicate (a mapping)", at)
        keys = set(node)
        if keys in ({"all"}, {"any"}):
            (key,) = keys
            parts = self._parts(node[key], f"{at}.{key}", depth)
            join = all_of if key == "all" else any_of
            return lambda view: join(part(view) for part in parts)
        if keys == {"not"}:
            inner = self.compile(node["not"], f"{at}.not", depth + 1)
            return lambda view: ~inner(view)
        quantifier = next((q for q in QUANTIFIERS if q in node), None)
        if quantifier:
            return self._quantified(node, quantifier, at, depth)
        if "field" in node:
            return self._comparison(node, at)
        raise self.refuse(f"unknown keys {sorted(map(str, keys))}", at)

    def _parts(self, nodes: Any, at: str, depth: int) -> list[Predicate]:
        if not isinstance(nodes, list) or not nodes:
            raise self.refuse("not a list of predicates", at)
        return [self.compile(node, f"{at}[{i}]", depth + 1) for i, node in enumerate(nodes)]

    def collection(self, raw: Any, at: str) -> tuple[Path, Any]:
        """A path that must name a collection of records, and the records' type."""
        path, item = self._names(raw, at, element_at, self.item)
        self._note(path)
        return path, item

    def across(self, raw: Any, at: str) -> Path:
        """A path whose values are compared across assets; it may go through collections."""
        path, _ = self._names(raw, at, shape_at, None)
        if path[-1] == EACH or not evidence_name(path):
            raise self.refuse("names no value that assets have", at)
        self._note(path)
        return path

    def element(
        self, node: Any, item: Any, at: str, collection: Path, shown: list[Path]
    ) -> Predicate:
        """Compile a ``where`` with `item`, an element of `collection`, in focus."""
        inner = replace(self, item=item, item_at=collection, shown=shown)
        return inner.compile(node, at, 1)

    def _quantified(self, node: dict[str, Any], quantifier: str, at: str, depth: int) -> Predicate:
        if set(node) != {quantifier, "where"}:
            raise self.refuse(f"{quantifier} needs where and nothing else", at)
        path, item = self.collection(node[quantifier], f"{at}.{quantifier}")
        steps = steps_of(path)
        if not is_absolute(path) and len(steps) == 1:
            self.shown.append(path)
        # shares `reads`, `fields` and `used_params`
        inner = replace(self, item=item, item_at=self._whole(path), shown=[])
        where = inner.compile(node["where"], f"{at}.where", depth + 1)

        neutral = quantifier == "every"  # the answer about an element that decides nothing

        def one(view: View, item: Any) -> Truth:
            if isinstance(item, Missing):
                return unknown(item.reason, item.at)
            answer = where(view.on(item))
            return answer if answer.value is neutral else placed(answer, item)

        def evaluate(view: View) -> Truth:
            results = (one(view, item) for _, item in elements(view, steps))
            return replace(QUANTIFIERS[quantifier](results), read=(path,))

        return evaluate

    def _comparison(self, node: dict[str, Any], at: str) -> Predicate:
        path, shape = self._path(node["field"], f"{at}.field")
        self.shown.append(path)
        name = node.get("op")
        if not isinstance(name, str):
            raise self.refuse("op is not a name", f"{at}.op")
        if name in {"exists", "missing"}:
            if set(node) != {"field", "op"}:
                raise self.refuse(f"{name} takes no operand", at)
            return _presence(path, wanted=name == "exists")
        op = _OPS.get(name)
        if op is None:
            raise self.refuse(f"unknown operator {name!r}", f"{at}.op")
        operands = set(node) - {"field", "op"}
        if len(operands) != 1 or not operands <= {"value", "ref", "param"}:
            raise self.refuse("needs exactly one of value, ref and param", at)
        if shape.collection != op.on_collection or is_record(shape.of):
            raise self.refuse(f"{name} does not compare {'.'.join(path)}", at)
        if op.takes is not None and not (
            isinstance(shape.of, type) and issubclass(shape.of, op.takes) and shape.of is not bool
        ):
            raise self.refuse(f"{name} does not take a field of this type", at)
        operand = self._operand(node, op, shape, at)
        return _compare(path, op, operand)

    def _operand(
        self, node: dict[str, Any], op: _Op, shape: Shape, at: str
    ) -> Callable[[View], Any]:
        if "ref" in node:
            path, other = self._path(node["ref"], f"{at}.ref")
            if other.collection != op.many or other.of is not shape.of:
                raise self.refuse(f"{'.'.join(path)} has another type than the field", f"{at}.ref")
            return lambda view: resolve(view, path)
        if "param" in node:
            name = node["param"]
            if not isinstance(name, str) or name not in self.params:
                raise self.refuse(f"there is no param {name!r}", f"{at}.param")
            self.used_params.add(name)
            raw = self.params[name]
        else:
            raw = node["value"]
        wanted: Any = tuple[shape.of, ...] if op.many else shape.of  # type: ignore[name-defined]
        try:
            literal: Any = msgspec.convert(raw, wanted, strict=True)
            if op.compare is _mode_max:
                int(literal, 8)
            if node["op"].startswith("version"):
                Version(literal)
        except (msgspec.ValidationError, InvalidVersion, ValueError) as error:
            raise self.refuse(f"the operand does not fit the field: {error}", at) from error
        return lambda _: literal

    def _path(self, raw: Any, at: str) -> tuple[Path, Shape]:
        path, shape = self._names(raw, at, shape_at, self.item)
        if EACH in path:
            raise self.refuse("'*' stands in the path of a quantifier only", at)
        self._note(path)
        return path, shape

    def _names(
        self, raw: Any, at: str, look: Callable[[Path, Any], T], item: Any
    ) -> tuple[Path, T]:
        """A path, and what the schema has there."""
        if not isinstance(raw, list) or not raw or not all(isinstance(p, str) for p in raw):
            raise self.refuse("a path is a list of names", at)
        try:
            return tuple(raw), look(tuple(raw), item)
        except UnknownFieldError as error:
            raise self.refuse(str(error), at) from error

    def _note(self, path: Path) -> None:
        evidence = evidence_name(path) if is_absolute(path) else None
        if evidence:
            self.reads.add(evidence)
        self.fields.add(self._whole(path))

    def _whole(self, path: Path) -> Path:
        return path if is_absolute(path) else (*self.item_at, "*", *path)


def placed(answer: Truth, item: Any) -> Truth:
    """The answer about an element, with the element's place where the answer has none."""
    if answer.at is None and (at := item.location) is not None:
        return replace(answer, at=at)
    return answer


def _presence(path: Path, *, wanted: bool) -> Predicate:
    read = reader_of(path)

    def evaluate(view: View) -> Truth:
        value, at = read(view)
        if isinstance(value, Missing):
            return (
                Truth(not wanted, (), at, (path,)) if value.definite else unknown(value.reason, at)
            )
        return Truth(wanted, (), at, (path,))

    return evaluate


def _compare(path: Path, op: _Op, operand: Callable[[View], Any]) -> Predicate:
    read, several = reader_of(path), op.on_collection

    def evaluate(view: View) -> Truth:
        (left, at), right = read(view), operand(view)
        if several and not isinstance(left, Missing):
            left = _opened(left, path)
        if isinstance(left, Missing):
            return unknown(left.reason, left.at or at)
        if isinstance(right, Missing):
            return unknown(right.reason, right.at or at)
        try:
            return Truth(op.compare(left, right), (), at, (path,))
        except (InvalidVersion, ValueError) as error:
            return unknown(f"{'.'.join(path)}: {error}", at)

    return evaluate


def _opened(values: Any, path: Path) -> Any:
    """The values of a collection; missing when one of them is."""
    found = []
    for value in values:
        if isinstance(value, Reading):
            if value.outcome is not Outcome.OK or value.value is None:
                said = f"{'.'.join(path)}: {value.outcome.value}: {value.reason}"
                return Missing(said, at=value.at)
            found.append(value.value)
        else:
            found.append(value)
    return found


def shown_values(view: View, paths: Iterable[Path]) -> dict[str, Any]:
    """The values at `paths` as plain data, for a finding; what is not known is null."""
    values = {}
    for path in dict.fromkeys(paths):
        value = resolve(view, path)
        values[".".join(path)] = None if isinstance(value, Missing) else msgspec.to_builtins(value)
    return values


def missing_reasons(view: View, paths: Iterable[Path], *, definite: bool = False) -> str:
    """Explain, for a finding, why some of `paths` have no value."""
    found = [resolve(view, path) for path in dict.fromkeys(paths)]
    missing = [value for value in found if isinstance(value, Missing)]
    return "; ".join(value.reason for value in missing if value.definite or not definite)


def defaults_said(record: Any, paths: Iterable[Path]) -> list[str]:
    """The remarks on values that stand nowhere in a record: a product's default counts."""
    found = []
    for path in dict.fromkeys(paths):
        value = record
        for step in path:
            value = getattr(value.value if isinstance(value, Reading) else value, step, None)
        if isinstance(value, Reading) and value.outcome is Outcome.OK and value.reason:
            name = ".".join(path)
            found.append(f"{name} is {value.reason}" if value.reason == "not set" else value.reason)
    return found
