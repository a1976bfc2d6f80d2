# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""YAML as a tree of nodes that know their lines.

Rules:

1. a document has a bounded number of nodes, an alias counted as all that it stands for, and a
   bounded depth: nothing is built that is larger;
2. a key that stands twice is noted, and its value is not known; in branches of a template it is
   conditional instead;
3. merge keys are followed; a tag that YAML does not define makes a value open;
4. a value under a key stands where its key does, and an element where it begins.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO, Final

import yaml

from securetrain.audit.parser.files import (
    MAX_DEPTH,
    MAX_FILE_BYTES,
    MAX_NODES,
    ManifestError,
)
from securetrain.audit.parser.templates import MARKER, Template

_Loader: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_STANDARD: Final = "tag:yaml.org,2002:"
_IN_ITEMS: Final = 2
"""Mappings and sequences that are open between two elements of a `List`."""
_CHUNK: Final = 1 << 16
_NULLS: Final = frozenset({"", "~", "null", "Null", "NULL"})


@dataclass(slots=True)
class Node:
    """A scalar, a mapping or a sequence; exactly one of `text`, `entries`, `items` is not None."""

    line: int
    """Where it stands itself, in the file."""
    column: int
    at: int
    """The line of its key, for a value under one."""
    text: str | None = None
    entries: "dict[str, Node] | None" = None
    items: "list[Node] | None" = None
    plain: bool = False
    """Whether a scalar has no quotes and is no block."""
    literal: bool = False
    """Whether a scalar is a literal block, whose lines are the file's."""
    tag: str = ""
    size: int = 1
    twice: "set[str] | None" = None
    """Keys of a mapping that stand twice."""
    branches: bool = False
    """Whether other branches of a template have another value for it."""
    holes: "list[str] | None" = None
    """Markers of blocks that a template inserts among a mapping's entries."""
    path: str = ""
    """The file that its lines are of, where that is not its source's."""

    @property
    def is_null(self) -> bool:
        """Tell a value from none at all."""
        return self.text is not None and self.plain and self.text in _NULLS

    def get(self, key: str) -> "Node | None":
        """The value under a key; None when there is none, or when it is null."""
        found = self.entries.get(key) if self.entries is not None else None
        return None if found is None or found.is_null else found

    def listed(self, key: str) -> "list[Node]":
        """The elements of the list under a key; none of anything else."""
        found = self.get(key)
        return (found.items or []) if found is not None else []

    def walk(self) -> Iterator["Node"]:
        """Yield it and everything below it."""
        stack = [self]
        while stack:
            node = stack.pop()
            yield node
            if node.entries is not None:
                stack.extend(reversed(node.entries.values()))
            elif node.items is not None:
                stack.extend(reversed(node.items))


@dataclass(slots=True)
class _Frame:
    node: Node
    anchor: str | None
    key: Node | None = None
    merges: list[Node] = field(default_factory=list)


@dataclass(slots=True)
class Slowly:
    """A file of which no single object may be large."""

    file: BinaryIO
    taken: int = 0
    """Bytes since the last object."""

    def read(self, size: int = _CHUNK) -> bytes:
        """Up to `size` bytes more.

        Raises:
            ValueError: when an object has more than `MAX_FILE_BYTES`.
        """
        data = self.file.read(min(size, _CHUNK))
        self.taken += len(data)
        if self.taken > MAX_FILE_BYTES:
            raise ValueError(f"more than {MAX_FILE_BYTES >> 20} MiB without the end of an object")
        return data


@dataclass(slots=True)
class Builder:
    """Builds the tree of one document."""

    template: Template
    first_line: int
    """The file's line that the text begins at."""
    fixed: bool = False
    """Whether all of it is to stand at the first line: a string whose lines are not the file's."""
    stack: list[_Frame] = field(default_factory=list)
    anchors: dict[str, Node] = field(default_factory=dict)
    root: Node | None = None
    duplicates: list[tuple[str, int]] = field(default_factory=list)
    """Keys that stand twice, and the second's line."""
    count: int = 0

    def build(self, text: str) -> Node | None:
        """The tree of a text with one document; None when it is empty.

        Raises:
            ManifestError: with the line.
        """
        for _ in self._events(text):
            pass
        return self.root

    def stream(self, source: "str | Slowly") -> Iterator[Node]:
        """Yield the elements of a mapping's ``items``, forgetting each; see `build`.

        Raises:
            ManifestError: with the line.
        """
        for _ in self._events(source):
            if len(self.stack) != _IN_ITEMS:
                continue
            outer, inner = self.stack
            if outer.key is None or outer.key.text != "items" or not inner.node.items:
                continue
            done, inner.node.items, inner.node.size = inner.node.items, [], 1
            self.count = 0
            self.anchors.clear()
            if isinstance(source, Slowly):
                source.taken = 0
            yield from done

    def _events(self, source: "str | Slowly") -> Iterator[None]:
        """Take what a text says, one event after the other."""
        line = self.first_line
        try:
            for event in yaml.parse(source, Loader=_Loader):
                line = self._line(event.start_mark)
                self._take(event)
                yield
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            what = str(getattr(error, "problem", None) or getattr(error, "reason", None) or error)
            raise ManifestError(what, self._line(mark) if mark else line) from error
        except (ValueError, RecursionError) as error:
            raise ManifestError(str(error), line) from error

    def _line(self, mark: Any) -> int:
        return self.first_line + (0 if self.fixed else int(mark.line))

    def _node(self, event: Any, **fields: Any) -> Node:
        line = self._line(event.start_mark)
        tag = event.tag if event.tag and not str(event.tag).startswith(_STANDARD) else ""
        column = 0 if self.fixed else event.start_mark.column + 1
        return Node(line, column, line, tag="" if tag == "!" else str(tag or ""), **fields)

    def _take(self, event: Any) -> None:
        match event:
            case yaml.ScalarEvent():
                literal = event.style == "|" and not self.fixed
                node = self._node(event, text=event.value, plain=not event.style, literal=literal)
                if event.anchor:
                    self.anchors[event.anchor] = node
                self._add(node)
            case yaml.MappingStartEvent():
                self._open(self._node(event, entries={}), event.anchor)
            case yaml.SequenceStartEvent():
                self._open(self._node(event, items=[]), event.anchor)
            case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                self._close()
            case yaml.AliasEvent():
                line = self._line(event.start_mark)
                if event.anchor not in self.anchors:
                    raise ManifestError(f"*{event.anchor} stands for nothing", line)
                found = self.anchors[event.anchor]
                self.count += found.size
                self._add(replace(found, at=line))
            case yaml.DocumentStartEvent() if self.root is not None:
                raise ManifestError("more than one document", self._line(event.start_mark))
            case _:
                pass

    def _open(self, node: Node, anchor: str | None) -> None:
        if len(self.stack) >= MAX_DEPTH:
            raise ManifestError(f"nested deeper than {MAX_DEPTH}", node.line)
        self.stack.append(_Frame(node, anchor))

    def _close(self) -> None:
        frame = self.stack.pop()
        node = frame.node
        if node.entries is not None:
            for other in frame.merges:
                for key, value in (other.entries or {}).items():
                    node.entries.setdefault(key, value)
                    node.size += value.size
        if frame.anchor:
            self.anchors[frame.anchor] = node
        self._add(node)

    def _add(self, node: Node) -> None:
        self.count += 1
        if self.count > MAX_NODES or node.size > MAX_NODES:
            what = f"more than {MAX_NODES} values, aliases included"
            raise ManifestError(what, node.line, is_large=True)
        if not self.stack:
            self.root = node
            return
        frame = self.stack[-1]
        parent = frame.node
        if parent.items is not None:
            parent.size += node.size
            parent.items.append(node)
        elif frame.key is None:
            if node.text is None:
                raise ManifestError("a key that is no word", node.line)
            frame.key = node
        else:
            parent.size += node.size
            self._set(frame, frame.key, node)
            frame.key = None

    def _set(self, frame: _Frame, key: Node, value: Node) -> None:
        parent, name = frame.node, key.text or ""
        entries = parent.entries
        if entries is None:
            return
        if name == "<<" and key.plain:
            merged = value.items if value.items is not None else [value]
            frame.merges.extend(one for one in merged if one.entries is not None)
            opens = [one.text for one in merged if one.text and MARKER.search(one.text)]
            parent.holes = [*(parent.holes or ()), *opens] or None
            return
        if MARKER.search(name):
            parent.holes = [*(parent.holes or ()), name]
            if MARKER.fullmatch(name):
                if value.text is None:
                    entries.setdefault(name, value)
                return
        value.at = key.line
        if value.text is not None:
            value.column = key.column
        before = entries.get(name)
        if before is None:
            entries[name] = value
        elif self.template.is_conditional(key.line) or self.template.is_conditional(before.at):
            before.branches = True
            entries.setdefault(f"{name}\ue002{len(entries)}", value)
        else:
            parent.twice = {*(parent.twice or ()), name}
            self.duplicates.append((name, key.line))
