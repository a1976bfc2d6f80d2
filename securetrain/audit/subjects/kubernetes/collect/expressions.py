# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Answers of a site's expressions about the objects of manifests.

Rules:

1. an expression is asked of every object of its kinds, and of one whose kind a template decides,
   about which it says nothing;
2. what a template leaves open and values of Secrets are taken out first; an expression that reads
   one of these has no answer, and so has one that reads what is not there;
3. an answer other than yes stands at the field that decided: of several, at that which is read
   deepest; in a list, in the first element that is wrong by itself.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Final

import msgspec

from securetrain.audit.cel.evaluator import Evaluator
from securetrain.audit.cel.expression import REST, Expression, Hole, Way
from securetrain.audit.facts import Outcome, Reading
from securetrain.audit.parser.objects import Object
from securetrain.audit.parser.tree import Node
from securetrain.audit.parser.values import Scope, as_bool, as_int
from securetrain.audit.subjects.kubernetes.facts.cluster import Asked, Said

MAX_SAID: Final = 500
"""Objects for which an expression does not hold, of one audit."""
_MAX_ELEMENTS: Final = 64
_MAX_REACHED: Final = 4096
_FLOAT: Final = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_VALUES: Final = frozenset({("data",), ("stringData",)})
_APPLIED: Final = ("metadata", "annotations", "kubectl.kubernetes.io/last-applied-configuration")
_MARKS: Final = re.compile("[\ue000-\ue002]")
_SECRET: Final = "no value of a Secret is shown"  # noqa: S105 - a sentence about them


@dataclass(slots=True)
class Answers:
    """The answers of expressions, asked of one object after the other."""

    expressions: Sequence[Expression]
    evaluator: Evaluator
    counts: Counter[str] = field(default_factory=Counter)
    said: defaultdict[str, list[Said]] = field(default_factory=lambda: defaultdict(list))

    def take(self, one: Object) -> None:
        """Ask whatever is about an object."""
        value: _Value | None = None
        for expression in self.expressions:
            about = expression.is_about(one.api_version, one.kind)
            said = self.said[expression.digest]
            if about is False or len(said) > MAX_SAID:
                continue
            self.counts[expression.digest] += 1
            if about is None:
                answer: Said | None = _unknown(one, (), "a template decides the kind")
            elif len(said) == MAX_SAID:
                answer = _unknown(one, (), f"more than {MAX_SAID} objects are not as wanted")
            else:
                value = value or _Value(one)
                answer = self._answer(expression, value)
            said += [answer] if answer is not None else []

    def facts(self) -> tuple[Asked, ...]:
        """The answers, but for those that say yes."""
        return tuple(
            Asked(digest=one, objects=self.counts[one], said=tuple(self.said[one]))
            for one in dict.fromkeys(expression.digest for expression in self.expressions)
        )

    def _answer(self, expression: Expression, value: "_Value") -> Said | None:
        one = value.of
        for read in expression.reads:
            for hole in value.holes:
                if hole.is_read(read):
                    return _unknown(one, hole.way, hole.why)
        answer = self.evaluator.ask(expression.cel, msgspec.json.encode(value.plain))
        if answer.value is False:
            way, node = self._wrong(expression, value)
            no: Reading[bool] = Reading(outcome=Outcome.OK, value=False)
            return Said(at=one.source.at(node), object=one.name, field=_name(way), holds=no)
        for read in expression.reads if answer.missing is not None else ():
            for way, _, rest in _reached(one.node, read.way):
                if rest and rest[0] == answer.missing:
                    return _unknown(one, way, f"there is no {_name((*way, rest[0]))}")
        return None if answer.value else _unknown(one, (), answer.why)

    def _wrong(self, expression: Expression, value: "_Value") -> tuple[Way, Node]:
        """The field that decided that an expression does not hold."""
        ways = [read.way for read in expression.reads]
        among = next((way[: way.index(None)] for way in ways if None in way), None)
        number = self._first(expression, among, value) if among is not None else None
        best: tuple[Way, Node] = ((), value.of.node)
        for way in ways:
            for found, node, _ in _reached(value.of.node, way):
                inside = among is not None and found[: len(among)] == among
                here = found[len(among or ()) :][:1] if inside else ()
                if len(found) > len(best[0]) and (number is None or here in ((), (number,))):
                    best = found, node
        return best

    def _first(self, expression: Expression, way: Way, value: "_Value") -> int | None:
        """The first element of a list that alone makes an expression false."""
        (_, node, rest), *_ = _reached(value.of.node, way)
        for number, _ in enumerate((node.items or ())[:_MAX_ELEMENTS] if not rest else ()):
            only = msgspec.json.encode(_only(value.plain, way, number))
            if self.evaluator.ask(expression.cel, only).value is False:
                return number
        return None


def _unknown(one: Object, way: Way, why: str) -> Said:
    (done, node, _), *_ = _reached(one.node, way)
    reading: Reading[bool] = Reading(outcome=Outcome.ERROR, reason=why)
    return Said(at=one.source.at(node), object=one.name, field=_name(done), holds=reading)


def _only(value: Any, way: Way, number: int) -> Any:
    """A value of whose list at a way one element is left."""
    if not way:
        return [value[number]]
    return {**value, way[0]: _only(value[way[0]], way[1:], number)}


def _reached(node: Node, way: Way) -> Iterator[tuple[Way, Node, Way]]:
    """Yield how far each field of a way is there: the way to it, it, and what is not there."""
    stack: list[tuple[Way, Node, Way]] = [((), node, way)]
    for _ in range(_MAX_REACHED):
        if not stack:
            return
        done, one, rest = stack.pop()
        children: dict[Any, Node] = one.entries or dict(enumerate(one.items or ()))
        below = list(children.items()) if rest[:1] == (None,) else []
        if rest and rest[0] in children:
            below = [(rest[0], children[rest[0]])]
        if not below:
            yield done, one, rest
        stack += [((*done, key), value, rest[1:]) for key, value in reversed(below)]


@dataclass(slots=True)
class _Value:
    """An object as expressions see it: without what is open, and without what is secret."""

    of: Object
    holes: list[Hole] = field(default_factory=list)
    plain: Any = None

    def __post_init__(self) -> None:
        """Take both out."""
        self.plain = self._taken(Scope(self.of.source, self.of.node.at), self.of.node, ())

    def _taken(self, scope: Scope, node: Node, way: Way) -> Any:
        is_value = way[:1] in _VALUES and node.entries is None
        if self.of.kind == "Secret" and (is_value or way == _APPLIED):
            self.holes.append(Hole(way, _SECRET, hidden=not node.is_null))
            return None
        if why := scope.opened(node):
            self.holes.append(Hole(way, f"{why} decides"))
            return None
        if node.items is not None:
            return [self._taken(scope, one, (*way, i)) for i, one in enumerate(node.items)]
        if node.entries is None:
            return _scalar(node)
        keys = {key for key in node.entries if not _MARKS.search(key)}
        if more := scope.rest(node) or ("a template" if scope.source.unplaced else ""):
            self.holes.append(Hole((*way, REST), f"{more} decides", frozenset(keys)))
        twice = keys & (node.twice or set())
        self.holes += [Hole((*way, key), f"{key[:40]} stands twice") for key in sorted(twice)]
        return {
            key: self._taken(scope, one, (*way, key))
            for key, one in node.entries.items()
            if key in keys and key not in twice
        }


def _name(way: Way) -> str:
    """A way as people write it: ``spec.containers[0].image``."""
    parts = [f"[{one}]" if isinstance(one, int) else f".{one}" for one in way if one is not None]
    return "".join(parts)[:200].removeprefix(".")


def _scalar(node: Node) -> Any:
    """A scalar as Kubernetes reads it."""
    text = node.text or ""
    if not node.plain:
        return text
    if node.is_null:
        return None
    for convert in (as_bool, as_int):
        try:
            value = convert(node)
        except ValueError:
            continue
        return value if isinstance(value, bool) or abs(value) < 1 << 63 else float(value)
    return float(text) if _FLOAT.fullmatch(text) and isfinite(float(text)) else text
