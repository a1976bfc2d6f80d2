# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Addressing facts: a field is a list of names, typed against the schema, resolved with care.

Rules, in order:

1. a list that starts with a root of some kind of document or with ``policy`` is absolute; any other
   is a field of the element that a quantifier looks at;
2. a name that the schema does not have is an error when the check is loaded, never at run time;
3. ``outcome``, ``reason`` and ``value`` cannot be addressed: sections and readings open by
   themselves, so that a check cannot mistake "could not be read" for an answer;
4. what is not known resolves to `Missing`. It is *definite* only where something looked and found
   that there is nothing: a reading that is ``absent``, a package that is not installed, an optional
   policy field that is not set;
5. an empty collection is missing too, unless the schema says that it may be empty.
"""

import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cache
from typing import Any, Final, Literal, TypeAlias

import msgspec

from securetrain.audit.documents import EVERYWHERE, ROOTS, Document, Kind
from securetrain.audit.facts import MAY_BE_EMPTY, Node, Observed, Outcome, Reading, Section
from securetrain.policy.schema import Policy

Path: TypeAlias = tuple[str, ...]

_ROOTS: Final[Mapping[str, type]] = {
    **EVERYWHERE,
    **{name: kind for roots in ROOTS.values() for name, kind in roots.items()},
}
_HIDDEN: Final = frozenset({"outcome", "reason", "value"})


class UnknownFieldError(ValueError):
    """A path that the schema does not have."""


@dataclass(frozen=True, slots=True)
class Missing:
    """Nothing at a path, and why."""

    reason: str
    definite: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The inputs of a predicate: one document, policy, the time, and a quantifier's element."""

    document: Document
    policy: Policy
    now: datetime
    item: Any = None
    params: Mapping[str, Any] = field(default_factory=dict)

    def on(self, item: Any) -> "View":
        """The same view with `item` in focus."""
        return replace(self, item=item)


def is_absolute(path: Path) -> bool:
    """Return whether a path starts at a root."""
    return path[0] in _ROOTS


def kind_of(root: str) -> Kind | None:
    """The kind of document that has this root; None for a root of every kind, and for no root."""
    return next((kind for kind, roots in ROOTS.items() if root in roots), None)


def evidence_name(path: Path) -> str | None:
    """The evidence that an absolute path below ``node`` reads."""
    return f"node.{path[1]}" if path[0] == "node" and len(path) > 1 else None


def resolve(view: View, path: Path) -> Any:
    """The value at `path`, or `Missing`."""
    rest = path[1:]
    value: Any
    if path[0] in EVERYWHERE:
        value = view.policy
    elif is_absolute(path):
        value = view.document.root(path[0])
    else:
        value, rest = view.item, path
    walked = list(path[: len(path) - len(rest)])
    for name in rest:
        walked.append(name)
        value = _step(value, name, path[0], ".".join(walked))
        if isinstance(value, Missing):
            return value
    return value


def _step(parent: Any, name: str, root: str, where: str) -> Any:
    if isinstance(parent, dict):
        if name not in parent:
            return Missing(f"{where}: not there", definite=where.rpartition(".")[0] in _LISTINGS)
        value = parent[name]
    else:
        value = getattr(parent, name)
    match value:
        case Section() | Reading():
            if value.outcome is Outcome.OK and value.value is not None:
                return _filled(parent, name, value.value, where)
            definite = isinstance(value, Reading) and value.outcome is Outcome.ABSENT
            return Missing(f"{where}: {value.outcome.value}: {value.reason}", definite)
        case None if root == "policy":
            return Missing(f"{where}: not set", definite=True)
        case None if isinstance(parent, Observed) and parent.outcome is not Outcome.OK:
            definite = parent.outcome is Outcome.ABSENT
            return Missing(f"{where}: {parent.outcome.value}: {parent.reason}", definite)
        case None:
            return Missing(f"{where}: not known")
        case tuple() | dict() if root != "policy":
            return _filled(parent, name, value, where)
        case _:
            return value


def _filled(parent: Any, name: str, value: Any, where: str) -> Any:
    """The value, unless it is a collection that its collector never leaves empty (rule 5)."""
    if value or not isinstance(value, tuple | dict) or isinstance(parent, dict):
        return value
    return value if _may_be_empty(parent.__class__, name) else Missing(f"{where}: empty")


@cache
def _may_be_empty(parent: type[object], name: str) -> bool:
    """Return whether the schema says so of a record type's field."""
    return _is_marked(typing.get_type_hints(parent, include_extras=True)[name])


def _is_marked(hint: Any) -> bool:
    if typing.get_origin(hint) is typing.Annotated:
        return MAY_BE_EMPTY in hint.__metadata__
    return any(_is_marked(arg) for arg in typing.get_args(hint) if arg is not ...)


# --- types: what a path may be -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Shape:
    """The type at a path: a scalar, a record, or a collection of either."""

    of: Any
    collection: bool = False


def shape_at(path: Path, item: Any) -> Shape:
    """The type at `path`, with `item` the record type in focus (None outside quantifiers).

    Raises:
        UnknownFieldError: naming the part that the schema does not have.
    """
    if not path:
        raise UnknownFieldError("an empty path")
    if is_absolute(path):
        current: Any = _ROOTS[path[0]]
        rest: Sequence[str] = path[1:]
    elif item is None:
        raise UnknownFieldError(f"{path[0]!r} is not one of {', '.join(_ROOTS)}")
    else:
        current, rest = item, path
    for name in rest:
        current = _open(_member(current, name))
    if typing.get_origin(current) is tuple:
        return Shape(_open(typing.get_args(current)[0]), collection=True)
    return Shape(current)


def _member(parent: Any, name: str) -> Any:
    if typing.get_origin(parent) is dict:
        keys, value = typing.get_args(parent)
        if typing.get_origin(keys) is Literal and name not in typing.get_args(keys):
            raise UnknownFieldError(f"{name!r} is not collected")
        return value
    if not (isinstance(parent, type) and issubclass(parent, msgspec.Struct)):
        raise UnknownFieldError(f"{name!r} is below something that has no fields")
    hints = _hints(parent)
    if name not in hints or (name in _HIDDEN and issubclass(parent, Observed)):
        shown = ", ".join(n for n in hints if not (n in _HIDDEN and issubclass(parent, Observed)))
        raise UnknownFieldError(f"{parent.__name__} has no field {name!r} (it has {shown})")
    return hints[name]


@cache
def _hints(record: type[object]) -> dict[str, Any]:
    return typing.get_type_hints(record)


def _open(hint: Any) -> Any:
    """Without Optional, Section and Reading around it."""
    while True:
        origin = typing.get_origin(hint)
        if origin is typing.Union or origin is types.UnionType:
            inner = [arg for arg in typing.get_args(hint) if arg is not type(None)]
            if len(inner) != 1:
                return hint
            hint = inner[0]
        elif origin in (Section, Reading):
            hint = typing.get_args(hint)[0]
        else:
            return hint


def _listings() -> frozenset[str]:
    """Mappings with open keys: they list everything there is, so a missing key is an answer.

    One with named keys (sysctls) promises each of them; there a missing key is missing evidence.
    """
    hints = {name: _open(hint) for name, hint in typing.get_type_hints(Node).items()}
    return frozenset(
        f"node.{name}"
        for name, hint in hints.items()
        if typing.get_origin(hint) is dict and typing.get_args(hint)[0] is str
    )


_LISTINGS: Final = _listings()
