# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Nodes as readings: known, absent, left open by a template, or of a wrong type.

Nothing of a value is quoted in a reason, for it may be a secret.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from securetrain.audit.facts import Location, Outcome, Reading
from securetrain.audit.parser.templates import Template
from securetrain.audit.parser.tree import Node

T = TypeVar("T")

NOT_SET: Final = "not set"
_TRUE: Final = frozenset({"true", "yes", "on", "y"})
_FALSE: Final = frozenset({"false", "no", "off", "n"})
_INTEGER: Final = re.compile(r"[+-]?[0-9][0-9_]{0,18}|0[xX][0-9a-fA-F]{1,16}|0o[0-7]{1,20}")
_SHELL: Final = re.compile(r"\$\{?[A-Za-z_][A-Za-z0-9_]*")


class NotOfTypeError(ValueError):
    """A value of a wrong type; its text names the type that is expected."""


@dataclass(frozen=True, slots=True)
class Source:
    """A file, or a text inside one, that nodes were read from."""

    path: str
    template: Template = field(default_factory=Template)
    unplaced: bool = False
    """Whether a template inserts something in the document and it is not known where."""

    def at(self, node: Node) -> Location:
        """The place of a node: that of its key."""
        return Location(
            path=node.path or self.path,
            line=node.at,
            column=node.column if node.at == node.line else 0,
        )


@dataclass(frozen=True, slots=True)
class Scope:
    """A record that readings belong to: conditions of a template around it as a whole are none."""

    source: Source
    start: int
    """The record's first line."""

    def of(self, node: Node) -> "Scope":
        """The scope of a record that begins at a node."""
        return Scope(self.source, node.at)

    # -- one value ------------------------------------------------------------------------------

    def read(
        self,
        parent: Node | None,
        key: str,
        convert: Callable[[Node], T],
        *,
        default: T | None = None,
        lacks: Location | None = None,
    ) -> Reading[T]:
        """Read the value under a key.

        Args:
            parent: The mapping; None when it is not there.
            key: The key.
            convert: The value of a node, or `NotOfTypeError`.
            default: The value when nothing is set; None: it is absent then.
            lacks: The place of the block that lacks it, when that is not `parent`.
        """
        at = lacks if parent is None or lacks else self.source.at(parent)
        if parent is not None:
            if opened := self.opened(parent):
                return _templated(opened, self.source.at(parent))
            if parent.entries is None and not parent.is_null:
                return _wrong("a mapping", self.source.at(parent))
            node = (parent.entries or {}).get(key)
            if node is not None and not node.is_null:
                twice = key in (parent.twice or ())
                return self.value(node, convert) if not twice else self._twice(key, node)
            if rest := self.rest(parent):
                return _templated(rest, at)
        if self.source.unplaced:
            return _templated("a block that a template inserts somewhere", at)
        if default is None:
            return Reading(outcome=Outcome.ABSENT, reason=NOT_SET, at=at)
        return Reading(outcome=Outcome.OK, reason=NOT_SET, value=default, at=at)

    def value(self, node: Node, convert: Callable[[Node], T]) -> Reading[T]:
        """Read one node."""
        at = self.source.at(node)
        if reason := self.opened(node):
            return _templated(reason, at)
        try:
            return Reading(outcome=Outcome.OK, value=convert(node), at=at)
        except NotOfTypeError as error:
            return _wrong(str(error), at)

    def _twice(self, key: str, node: Node) -> Reading[T]:
        return Reading(outcome=Outcome.ERROR, reason=f"{key} stands twice", at=self.source.at(node))

    def opened(self, node: Node) -> str:
        """Explain what leaves a value open; empty when nothing does."""
        template = self.source.template
        if node.branches:
            return "a condition of the template"
        if node.tag:
            return f"the tag {node.tag[:40]}"
        if condition := template.condition(node.at, self.start):
            return f"the condition {condition.name}"
        if node.text is not None:
            if holes := template.holes_of(node.text):
                return holes[0].name
            if node.plain and (found := _SHELL.match(node.text)):
                return found[0].lstrip("${")
        return ""

    def rest(self, parent: Node | None) -> str:
        """Explain what may add to a mapping; empty when nothing does."""
        if parent is None or not parent.holes:
            return ""
        holes = self.source.template.holes_of(parent.holes[0])
        return holes[0].name if holes else "a template"

    def child(self, parent: Node | None, key: str) -> Node | None:
        """The mapping under a key, or a node that is open where a template decides it."""
        if parent is None or self.opened(parent):
            return parent
        found = parent.get(key)
        if found is not None and key in (parent.twice or ()):
            return Node(
                found.line, found.column, found.at, text="", plain=True, tag=f"a second {key}"
            )
        if found is None and parent.holes:
            return Node(parent.line, 0, parent.at, text=parent.holes[0], plain=True)
        return found

    def namespace(self, node: Node) -> Reading[str]:
        """The namespace of an object; in a chart that names none it is the release's."""
        said = self.string(self.child(node, "metadata"), "namespace", "default")
        if said.reason == NOT_SET and self.source.template.is_chart:
            return _templated("the namespace of the release", said.at)
        return said

    # -- types ----------------------------------------------------------------------------------

    def boolean(
        self, parent: Node | None, key: str, *, default: bool | None = None
    ) -> Reading[bool]:
        """A boolean under a key."""
        return self.read(parent, key, as_bool, default=default)

    def string(self, parent: Node | None, key: str, default: str | None = None) -> Reading[str]:
        """A word under a key."""
        return self.read(parent, key, as_text, default=default)

    def integer(self, parent: Node | None, key: str) -> Reading[int]:
        """A number under a key."""
        return self.read(parent, key, as_int)

    def elements(self, parent: Node | None, key: str) -> Iterator[tuple[Node, str]]:
        """Yield the elements of a list, each with what leaves it open.

        What may add elements is one itself: the block that a template inserts, or the list's own
        value where it is none.
        """
        if parent is None:
            return
        if reason := self.opened(parent):
            yield parent, reason
            return
        found = parent.get(key)
        if found is None:
            reason = self.rest(parent) or (
                "a block that a template inserts somewhere" if self.source.unplaced else ""
            )
            if reason:
                yield parent, reason
            return
        if reason := self.opened(found):
            yield found, reason
        elif found.items is None:
            yield found, f"{key} is not a list"
        for item in found.items or ():
            yield item, "" if item.text is None else self.opened(item)


def _templated(reason: str, at: Location | None) -> Reading[T]:
    return Reading(outcome=Outcome.TEMPLATED, reason=f"{reason} decides", at=at)


def opened(reason: str, at: Location | None) -> Reading[T]:
    """A reading that a template leaves open."""
    return _templated(reason, at)


def _wrong(wanted: str, at: Location | None) -> Reading[T]:
    return Reading(outcome=Outcome.ERROR, reason=f"it is not {wanted}", at=at)


def ok(value: T, at: Location | None, reason: str = "") -> Reading[T]:
    """A known reading."""
    return Reading(outcome=Outcome.OK, value=value, at=at, reason=reason)


def absent(at: Location | None, reason: str = NOT_SET) -> Reading[T]:
    """A reading of what is not there."""
    return Reading(outcome=Outcome.ABSENT, reason=reason, at=at)


def failed(reason: str, at: Location | None) -> Reading[T]:
    """A reading that cannot be known from these files."""
    return Reading(outcome=Outcome.ERROR, reason=reason, at=at)


def unknown_as(reading: Reading[Any], at: Location | None) -> Reading[T]:
    """A reading that is not known for what keeps another one from it."""
    return Reading(outcome=reading.outcome, reason=reading.reason, at=at)


def is_known(reading: Reading[T]) -> bool:
    """Return whether it has a value."""
    return reading.outcome is Outcome.OK


def as_bool(node: Node) -> bool:
    """A boolean as YAML 1.1 has it, which is what Kubernetes reads."""
    if node.text is None or not node.plain or node.text.lower() not in _TRUE | _FALSE:
        raise NotOfTypeError("a boolean")
    return node.text.lower() in _TRUE


def as_int(node: Node) -> int:
    """An integer."""
    if node.text is None or not node.plain or not _INTEGER.fullmatch(node.text):
        raise NotOfTypeError("an integer")
    text = node.text.replace("_", "")
    if len(text) > 1 and text.lstrip("+-").startswith("0") and text.lstrip("+-").isdigit():
        return int(text, 8) if set(text) <= set("+-01234567") else int(text)
    return int(text, 0)


def as_text(node: Node) -> str:
    """Any scalar, as it is written."""
    if node.text is None:
        raise NotOfTypeError("a word")
    return node.text
