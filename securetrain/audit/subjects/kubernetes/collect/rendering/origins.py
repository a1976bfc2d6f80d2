# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Rendered objects to the lines of the files that they came from.

Rules:

1. an object is followed along its keys through the template or file that made it; elements of a
   list are matched by their names, else by their order;
2. a value that a patch sets stands where the patch has it;
3. what the file does not have (a block that a template inserts) stands where the nearest thing
   around it does; without any it has the file and no line.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from securetrain.audit.parser.files import ManifestError
from securetrain.audit.parser.objects import split
from securetrain.audit.parser.templates import (
    MARKER,
    Template,
    has_template,
    take_out,
)
from securetrain.audit.parser.tree import Builder, Node
from securetrain.audit.subjects.kubernetes.collect.rendering.sources import Kustomization, tree_of
from securetrain.core.errors import UsageError
from securetrain.core.files import read_file

_LIMIT: Final = 4 << 20
_BRANCH: Final = "\ue002"


@dataclass(frozen=True, slots=True)
class Layer:
    """One object, or a part of one, in a file."""

    path: str
    node: Node
    kind: str = ""
    """Of what a patch is for; empty: as the node says."""
    name: str = ""

    def text(self, *way: str) -> str:
        """A word of the object."""
        node: Node | None = self.node
        for key in way:
            node = node.get(key) if node is not None else None
        return (node.text or "") if node is not None else ""


@dataclass(slots=True)
class Origins:
    """The objects that rendered ones may have come from."""

    layers: Sequence[Layer]
    patches: Sequence[Layer]
    text: str = ""
    """Of the file, as it stands."""
    taken: set[int] = field(default_factory=set)

    def relocate(self, root: Node, template: Template) -> None:
        """Give an object the lines of the file that it came from."""
        for node in root.walk():
            node.branches = node.branches or template.is_conditional(node.at)
        template.conditions.clear()
        template.indexed.clear()
        origin = self._origin(root)
        found = [origin] if origin is not None else []
        found += [one for one in self.patches if _is_for(one, root)]
        first = found[0] if found else Layer("", Node(0, 0, 0))
        _place(root, found, first)

    def _origin(self, root: Node) -> Layer | None:
        kind, name = _said(root, "kind"), _said(root, "metadata", "name")
        near = [
            (index, one)
            for index, one in enumerate(self.layers)
            if one.text("kind") == kind or MARKER.search(one.text("kind"))
        ]
        ranked = sorted(near, key=lambda pair: (pair[0] in self.taken, _distance(pair[1], name)))
        if not ranked:
            return None
        self.taken.add(ranked[0][0])
        return ranked[0][1]


def origins_of(path: Path | None, patches: Sequence[Layer] = ()) -> Origins:
    """The objects of a file, its templates taken out; those that cannot be read are left out."""
    text = _text(path) if path is not None else ""
    return Origins(list(_layers(text, str(path), 1)), patches, text)


def _text(path: Path) -> str:
    try:
        return read_file(path, _LIMIT).decode()
    except (UsageError, OSError, UnicodeDecodeError):
        return ""


def _layers(text: str, path: str, line: int, kind: str = "", name: str = "") -> Iterator[Layer]:
    template = Template()
    try:
        plain = take_out(text, template, line) if has_template(text) else text
    except ManifestError:
        return
    for piece, first in split(plain, line):
        try:
            node = Builder(template, first).build(piece)
        except ManifestError:
            continue
        if node is None:
            continue
        items = node.get("items")
        listed = items.items if items is not None and items.items is not None else [node]
        yield from (Layer(path, one, kind, name) for one in listed if one.text is None)


def patches_of(parts: Iterable[Kustomization]) -> list[Layer]:
    """The settings of the patches of kustomizations, those of bases first."""
    found: list[Layer] = []
    for one in reversed(list(parts)):
        for key in ("patches", "patchesJson6902"):
            node = one.node.get(key)
            for item in (node.items if node is not None else None) or ():
                found.extend(_of_patch(one, item))
        node = one.node.get("patchesStrategicMerge")
        for item in (node.items if node is not None else None) or ():
            if item.text and "\n" in item.text:
                line = item.line + (1 if item.literal else 0)
                found.extend(_layers(item.text, str(one.file), line))
            elif item.text:
                place = one.file.parent / item.text
                found.extend(_layers(_text(place), str(place), 1))
    return found


def _of_patch(one: Kustomization, item: Node) -> Iterator[Layer]:
    target = item.get("target")
    asked = Layer("", target) if target is not None else Layer("", Node(0, 0, 0))
    kind, name = asked.text("kind"), asked.text("name")
    path, inline = item.get("path"), item.get("patch")
    found: Iterable[Layer] = ()
    if inline is not None and inline.text:
        line = inline.line + (1 if inline.literal else 0)
        found = _layers(inline.text, str(one.file), line)
    elif path is not None and path.text:
        place = one.file.parent / path.text
        if not place.is_symlink() and tree_of(place) is not None:
            found = _layers(_text(place), str(place), 1)
    for layer in found:
        node = layer.node if layer.node.items is None else _of_operations(layer.node.items)
        yield Layer(layer.path, node, kind, name)


def _of_operations(operations: Sequence[Node]) -> Node:
    """The object that a JSON patch makes of nothing."""
    root = Node(0, 0, 0, entries={})
    for one in operations:
        path, value = one.get("path"), one.get("value")
        if path is None or not path.text or value is None:
            continue
        here = root
        *way, last = path.text.strip("/").split("/")
        for word in way:
            entries = here.entries if here.entries is not None else {}
            here = entries.setdefault(_unescaped(word), Node(path.line, 0, path.line, entries={}))
        if here.entries is not None:
            here.entries[_unescaped(last)] = value
    return root


def _unescaped(word: str) -> str:
    return word.replace("~1", "/").replace("~0", "~")


def _said(root: Node, *way: str) -> str:
    return Layer("", root).text(*way)


def _is_for(patch: Layer, root: Node) -> bool:
    kind = patch.kind or patch.text("kind")
    name = patch.name or patch.text("metadata", "name")
    is_kind = not kind or kind == _said(root, "kind")
    return is_kind and (not name or name in _said(root, "metadata", "name"))


def _distance(layer: Layer, name: str) -> int:
    """Lower is nearer: the same name, one that a template decides, a part of it, another."""
    said = layer.text("metadata", "name")
    if said == name:
        return 0
    if MARKER.search(said) or not said:
        return 1
    return 2 if said in name else 3


def _place(node: Node, layers: Sequence[Layer], around: Layer) -> None:
    """Give a node and all below it the lines of the layers that have it."""
    if not layers:
        node.line = node.at = around.node.at
        node.column, node.literal, node.path = 0, False, around.path
    else:
        around = layers[0]
        if node.text is not None:
            same = [one for one in layers if one.node.text == node.text]
            around = same[-1] if same else around
        found = around.node
        node.line, node.column, node.at = found.line, found.column, found.at
        node.literal, node.path = node.literal and found.literal, around.path
    if node.entries is not None:
        for key, value in node.entries.items():
            inner = [made for one in layers if (made := _entry(one, key, value)) is not None]
            _place(value, inner, around)
    for number, item in enumerate(node.items or ()):
        inner = [made for one in layers if (made := _item(one, number, item)) is not None]
        _place(item, inner, around)


def _entry(layer: Layer, key: str, value: Node) -> Layer | None:
    node = layer.node
    if node.entries is None:
        return Layer(layer.path, node) if node.text and MARKER.search(node.text) else None
    branches = [found for name, found in node.entries.items() if name.partition(_BRANCH)[0] == key]
    if not branches:
        return None
    same = next((one for one in branches if one.text is not None and one.text == value.text), None)
    return Layer(layer.path, same or branches[0])


def _item(layer: Layer, number: int, item: Node) -> Layer | None:
    node = layer.node
    if node.entries is not None:  # of a JSON patch
        found = node.entries.get(str(number)) or node.entries.get("-")
        return Layer(layer.path, found) if found is not None else None
    name = _said(item, "name")
    items = node.items or []
    for one in items:
        if name and _said(one, "name") == name:
            return Layer(layer.path, one)
    opened = [one for one in items if MARKER.search(one.text or _said(one, "name"))]
    if opened:
        return Layer(layer.path, opened[min(number, len(opened) - 1)])
    if number < len(items) and not (name and _said(items[number], "name")):
        return Layer(layer.path, items[number])
    return None
