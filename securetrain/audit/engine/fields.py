# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Addressing facts: a field is a list of names, typed against the schema, resolved with care.

Rules, in order:

1. a list that starts with a root of some kind of document or with ``policy`` is absolute; any other
   is a field of the element that a quantifier looks at;
2. a name that the schema does not have is an error when the check is loaded, never at run time;
3. ``outcome``, ``reason``, ``value`` and ``at`` cannot be addressed: sections and readings open by
   themselves, so that a check cannot mistake "could not be read" for an answer;
4. what is not known resolves to `Missing`. It is *definite* only where something looked and found
   that there is nothing: a reading that is ``absent``, a key that a mapping with open keys does not
   list, an optional policy field that is not set. What a template leaves open is never definite;
5. an empty collection is missing too, unless the schema says that it may be empty;
6. ``*`` stands for each element of the collection before it, in the path of a collection only. The
   elements of a mapping are entries, with ``key`` and ``value``.
"""

import types
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeAlias, TypeVar

import msgspec

from securetrain.audit.documents import EVERYWHERE, EVIDENCE, ROOTS, Document
from securetrain.audit.facts import (
    Fact,
    Location,
    Observed,
    Outcome,
    Reading,
    Section,
)
from securetrain.policy.schema import Policy

if TYPE_CHECKING:
    from securetrain.audit.engine.advisories import Advisories

Path: TypeAlias = tuple[str, ...]
T = TypeVar("T")

_Walked: TypeAlias = tuple[Any, Location | None, Path]

EACH: Final = "*"
_HIDDEN: Final = frozenset({"at", "outcome", "reason", "value"})


class UnknownFieldError(ValueError):
    """A path that the schema does not have."""


@dataclass(frozen=True, slots=True)
class Missing:
    """Nothing at a path, and why."""

    reason: str
    definite: bool = False
    at: Location | None = None


class Entry(Fact, Generic[T], frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One entry of a mapping, as a quantifier sees it."""

    key: str
    value: T

    @property
    def label(self) -> str:
        """The key."""
        return self.key

    @property
    def location(self) -> Location | None:
        """The place of its value."""
        return self.value.location if isinstance(self.value, Fact) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The inputs of a predicate: one document, policy, the time, and a quantifier's element."""

    document: Document
    policy: Policy
    now: datetime
    item: Any = None
    advisories: "Advisories | None" = None
    """Known faults of packages; None: the list that comes with this release."""
    resolved: "dict[Path, _Walked]" = field(default_factory=dict)
    """What absolute paths lead to, which is the same for every check of the document."""

    def on(self, item: Any) -> "View":
        """The same view with `item` in focus."""
        return View(
            document=self.document,
            policy=self.policy,
            now=self.now,
            item=item,
            advisories=self.advisories,
            resolved=self.resolved,
        )


def is_absolute(path: Path) -> bool:
    """Return whether a path starts at a root."""
    return path[0] in EVERYWHERE or kind_of(path[0]) is not None


def kind_of(root: str) -> str | None:
    """The kind of document that has this root; None for a root of every kind, and for no root."""
    return next((kind for kind, roots in ROOTS.items() if root in roots), None)


def evidence_name(path: Path) -> str | None:
    """The evidence that an absolute path reads; None for what every document has."""
    name = ".".join(path[:2])
    return name if name in EVIDENCE else None


def resolve(view: View, path: Path) -> Any:
    """The value at `path`, or `Missing`."""
    return locate(view, path)[0]


def locate(view: View, path: Path) -> tuple[Any, Location | None]:
    """The value at `path`, or `Missing`, and the place of the last reading on the way."""
    value, at, _ = _walk(view, path)
    return value, at


def reader_of(path: Path) -> Callable[[View], tuple[Any, Location | None]]:
    """A function that does what `locate` does for one path, faster for a field of an element."""
    name = path[0]
    if len(path) > 1 or is_absolute(path):
        return lambda view: locate(view, path)

    def read(view: View) -> tuple[Any, Location | None]:
        value = getattr(view.item, name, None)
        return (value, None) if isinstance(value, str | int | float) else locate(view, path)

    return read


def _walk(view: View, path: Path) -> "_Walked":
    """Also return the keys that the type of a mapping promises."""
    if path[0] not in EVERYWHERE and path[0] not in view.document.roots:
        return _walk_anew(view, path)
    found = view.resolved.get(path)
    if found is None:
        found = view.resolved[path] = _walk_anew(view, path)
    return found


def _walk_anew(view: View, path: Path) -> "_Walked":
    root, rest = path[0], path[1:]
    value: Any
    if root in EVERYWHERE:
        value = view.policy
    elif root in view.document.roots:
        value = view.document.root(root)
    else:
        value, rest = view.item, path
    at: Location | None = None
    named: Path = ()
    start = len(path) - len(rest)
    for depth, name in enumerate(rest, start + 1):
        parent = value
        if isinstance(parent, dict):
            if name not in parent:
                return Missing(f"{'.'.join(path[:depth])}: not there", not named, at), at, ()
            found = parent[name]
        else:
            found = getattr(parent, name)
        value, place = _open_value(parent, found, path[:depth])
        at = place or at
        if isinstance(value, tuple | dict):
            value, named = _collection(parent, name, value, path[:depth])
        if isinstance(value, Missing):
            return (value if value.at or not at else replace(value, at=at)), at, ()
    return value, at, named


def _open_value(parent: Any, value: Any, path: Path) -> tuple[Any, Location | None]:
    """The value of a field without what is around it, and where it stands if a file says."""
    at: Location | None = None
    if isinstance(value, Section | Reading):
        opened: Section[Any] | Reading[Any] = value
        at = opened.location
        if opened.outcome is not Outcome.OK or opened.value is None:
            definite = isinstance(opened, Reading) and opened.outcome is Outcome.ABSENT
            said = f"{'.'.join(path)}: {opened.outcome.value}: {opened.reason}"
            return Missing(said, definite, at), at
        value = opened.value
    return (_nothing(parent, path) if value is None else value), at


def _nothing(parent: Any, path: Path) -> Missing:
    """Explain a field that is None."""
    where = ".".join(path)
    if path[0] == "policy":
        return Missing(f"{where}: not set", definite=True)
    if isinstance(parent, Observed) and parent.outcome is not Outcome.OK:
        definite = parent.outcome is Outcome.ABSENT
        return Missing(f"{where}: {parent.outcome.value}: {parent.reason}", definite)
    return Missing(f"{where}: not known")


def _collection(parent: Any, name: str, value: Any, path: Path) -> tuple[Any, Path]:
    """The collection, unless its collector never leaves it empty (rule 5), and its named keys."""
    if isinstance(parent, dict | Entry):
        return value, ()
    may_be_empty, named = _traits(parent.__class__, name)
    if not value and not may_be_empty and path[0] != "policy":
        return Missing(f"{'.'.join(path)}: empty"), ()
    return value, named


@cache
def _traits(parent: type[Fact], name: str) -> tuple[bool, Path]:
    """Return whether a field's collection may be empty, and the keys that its type names."""
    opened = _open(_hints(parent)[name])
    keys = typing.get_args(opened)[0] if typing.get_origin(opened) is dict else None
    named = typing.get_args(keys) if typing.get_origin(keys) is Literal else ()
    return _is_marked(_hints(parent, include_extras=True)[name], "may_be_empty"), named


def _is_marked(hint: Any, mark: str) -> bool:
    if typing.get_origin(hint) is typing.Annotated:
        return any((meta.extra or {}).get(mark) for meta in hint.__metadata__)
    return any(_is_marked(arg, mark) for arg in typing.get_args(hint) if arg is not ...)


def judged_at(path: Path) -> tuple[Path, ...]:
    """The steps to what a check over a collection judges; none for the asset as a whole.

    That is its elements or, where they are faults by being there, what they stand in.
    """
    parent = shape_at(path[:-1], None).of
    steps = steps_of(path)
    if is_record(parent) and typing.get_origin(parent) is not Entry:
        hint = _hints(parent, include_extras=True)[path[-1]]
        if _is_marked(hint, "only_faults"):
            return steps[:-1]
    shape = shape_at(path, None)
    return steps if shape.collection or typing.get_origin(shape.of) is dict else ()


def steps_of(path: Path) -> tuple[Path, ...]:
    """The collections that a path with ``*`` goes through, each below an element of the one before.

    ``workload.pods.*.containers`` is ``workload.pods`` and, below each pod, ``containers``.
    """
    steps: list[Path] = [()]
    for name in path:
        if name == EACH:
            steps.append(())
        else:
            steps[-1] = (*steps[-1], name)
    return tuple(steps)


def elements(
    view: View, steps: tuple[Path, ...], labels: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield each element with the labels that lead to it.

    Where a collection on the way is not known, its `Missing` stands for the elements; one that is
    definitely not there has none.
    """
    first, *below = steps
    found, _, named = _walk(view, first)
    if isinstance(found, Missing):
        if not found.definite:
            yield labels, found
        return
    for number, item in enumerate(_items(found, named), 1):
        label = (*labels, item.label or f"#{number}")
        if isinstance(item, Entry) and isinstance(item.value, Missing):
            yield label, item.value
        elif below:
            yield from elements(view.on(item), tuple(below), label)
        else:
            yield label, item


def _items(found: Any, named: Path) -> Iterator[Any]:
    if not isinstance(found, dict):
        yield from found
        return
    for key in sorted({*found, *named}):
        yield Entry(key=key, value=found.get(key, Missing(f"{key}: not there")))


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
    if path[0] in EVERYWHERE:
        current: Any = EVERYWHERE[path[0]]
        rest = path[1:]
    elif kind := kind_of(path[0]):
        current, rest = ROOTS[kind][path[0]], path[1:]
    elif item is None:
        roots = [*EVERYWHERE, *(name for roots in ROOTS.values() for name in roots)]
        raise UnknownFieldError(f"{path[0]!r} is not one of {', '.join(roots)}")
    else:
        current, rest = item, path
    for name in rest:
        current = _element(current) if name == EACH else _open(_member(current, name))
    if typing.get_origin(current) is tuple:
        return Shape(_open(typing.get_args(current)[0]), collection=True)
    return Shape(current)


def element_at(path: Path, item: Any) -> Any:
    """The type of the records in the collection at `path`.

    Raises:
        UnknownFieldError: when it is no collection of records.
    """
    shape = shape_at(path, item)
    of = shape.of if shape.collection else _element(shape.of)
    if not is_record(of):
        raise UnknownFieldError(f"{'.'.join(path)} is not a collection of records")
    return of


def is_record(hint: Any) -> bool:
    """Return whether a type has fields of its own."""
    return typing.get_origin(hint) is Entry or (
        isinstance(hint, type) and issubclass(hint, msgspec.Struct)
    )


def _element(hint: Any) -> Any:
    """The type of a collection's elements."""
    match typing.get_origin(hint), typing.get_args(hint):
        case origin, (of, *_) if origin is tuple:
            return _open(of)
        case origin, (_, of) if origin is dict:
            return types.GenericAlias(Entry, (of,))
        case _:
            raise UnknownFieldError("'*' needs a collection of records before it")


def _member(parent: Any, name: str) -> Any:
    if typing.get_origin(parent) is dict:
        keys, value = typing.get_args(parent)
        if typing.get_origin(keys) is Literal and name not in typing.get_args(keys):
            raise UnknownFieldError(f"{name!r} is not collected")
        return value
    if not is_record(parent):
        raise UnknownFieldError(f"{name!r} is below something that has no fields")
    if typing.get_origin(parent) is Entry:
        hints, hidden = {"key": str, "value": typing.get_args(parent)[0]}, frozenset[str]()
    else:
        hints, hidden = _hints(parent), _HIDDEN if issubclass(parent, Observed) else frozenset()
    if name not in hints or name in hidden:
        shown = ", ".join(one for one in hints if one not in hidden)
        raise UnknownFieldError(f"{parent.__name__} has no field {name!r} (it has {shown})")
    return hints[name]


@cache
def has_readings(record: type[Fact]) -> bool:
    """Return whether a record has fields that say for themselves how they were read."""
    if record is Entry:
        return True
    return any(_is_reading(hint) for hint in _hints(record).values())


def is_reading(path: Path) -> bool:
    """Return whether a field of a root is one value that says for itself how it was read."""
    kind = kind_of(path[0])
    return kind is not None and _is_reading(_hints(ROOTS[kind][path[0]])[path[1]])


def _is_reading(hint: Any) -> bool:
    return typing.get_origin(hint) is Reading or any(
        typing.get_origin(arg) is Reading for arg in typing.get_args(hint)
    )


@cache
def _hints(record: type[object], *, include_extras: bool = False) -> dict[str, Any]:
    return typing.get_type_hints(record, include_extras=include_extras)


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
