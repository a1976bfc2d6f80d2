# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The form of a named function that a check may ``call``.

A function is there when its rule needs more than comparing fields: a walk along a path, the
kernel's way of combining two settings. Each takes typed arguments, names the evidence that it
reads, and returns one `Judgement` for each thing that it judged. It says unknown when it cannot
know.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, TypeVar

import msgspec

from securetrain.audit.engine.fields import Path, View, resolve
from securetrain.audit.engine.kleene import Truth
from securetrain.audit.facts import Location


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The judgement of one thing: true when it is as it should be, with what was seen."""

    label: str | tuple[str, ...]
    """The name of the element; where the subject nests, one name for each ``[*]``."""
    good: Truth
    why: str = ""
    location: Location | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)


Body: TypeAlias = Callable[[View, Any], list[Judgement]]
_B = TypeVar("_B", bound=Body)


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """A registered function: its argument struct and the fields that it reads."""

    name: str
    body: Body
    args: type[msgspec.Struct]
    reads: tuple[Path, ...]
    """Each field, with ``*`` for the elements of a collection."""
    asks: bool = False
    """Whether it asks for itself what is known: then missing evidence is no reason to stop."""


class Args(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The base of argument structs."""


class NoArgs(Args, frozen=True, kw_only=True):
    """Nothing to say."""


REGISTERED: Final[dict[str, Function]] = {}
"""Every function by its name, in the order in which their modules are loaded."""


def records(view: View, name: str, root: str = "node") -> tuple[Any, ...]:
    """The records of a section; the engine calls a function only with its evidence at hand."""
    value = resolve(view, (root, name))
    assert isinstance(value, tuple), name
    return value


def fields(*path: str, of: tuple[str, ...]) -> tuple[Path, ...]:
    """The paths of several fields of one record."""
    return tuple((*path, name) for name in of)


def function(name: str, *, reads: tuple[Path, ...], asks: bool = False) -> Callable[[_B], _B]:
    """Register a function, whose second argument's type says what a check may give it.

    Args:
        name: The name by which checks call it.
        reads: See `Function`.
        asks: See `Function`.
    """

    def register(body: _B) -> _B:
        if name in REGISTERED:
            raise ValueError(f"{name}: taken already")
        _, args, _ = body.__annotations__.values()
        REGISTERED[name] = Function(name=name, body=body, args=args, reads=reads, asks=asks)
        return body

    return register
