# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Folders to the charts and kustomizations in them, and what these make to the files it came from.

Rules:

1. a folder with a Chart.yaml and templates is a chart; charts inside of it belong to it;
2. a kustomization that no other one names is a start; a component is none. What it names is
   followed inside the given folder only;
3. a kustomization that names something of the network is never put together (`remote`);
4. links are not followed, and the number of folders and files is bounded;
5. an object that was made is followed along its keys through the template or file that made it;
   elements of a list are matched by their names, else by their order;
6. a value that a patch sets stands where the patch has it;
7. what the file does not have (a block that a template inserts) stands where the nearest thing
   around it does; without any it has the file and no line.
"""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from securetrain.audit.parser.files import MAX_ENTRIES, ManifestError
from securetrain.audit.parser.objects import split
from securetrain.audit.parser.templates import MARKER, Template, has_template, take_out
from securetrain.audit.parser.tree import Builder, Node
from securetrain.core.errors import UsageError
from securetrain.core.files import read_file

CHART: Final = "Chart.yaml"
KUSTOMIZATIONS: Final = ("kustomization.yaml", "kustomization.yml", "Kustomization")
MAX_SOURCES: Final = 100
"""Charts, and kustomizations, of one audit."""
_LIMIT: Final = 1 << 20
_FILE_LIMIT: Final = 4 << 20
_BRANCH: Final = "\ue002"
_BASES: Final = ("resources", "bases", "components")
_PATCH_LISTS: Final = ("patches", "patchesJson6902")
_FROM_ELSEWHERE: Final = (
    *("crds", "configurations", "generators", "transformers", "validators"),
    *("patchesStrategicMerge", "openapi"),
)
_CHARTS: Final = ("helmCharts", "helmChartInflationGenerator")
_MAX_NAME: Final = 1_000
_REMOTE: Final = re.compile(
    r"://|^git::|^[\w.-]+@[\w.-]+:|\?(?:ref|version|timeout)=|//|^github\.com"
)
_HOST: Final = re.compile(r"(?:://|@|^)(?:[^/@\s]*@)?([A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+)")


@dataclass(slots=True)
class Kustomization:
    """A kustomization, with the files that it and those below it name."""

    file: Path
    given: Path
    node: Node
    names: set[Path] = field(default_factory=set)
    """Folders of other kustomizations, and files of objects."""
    patches: list[Path] = field(default_factory=list)
    remote: str = ""
    """The host, or the word, of something that is not here."""

    @property
    def is_component(self) -> bool:
        """Tell what only makes sense inside another one."""
        return said(self.node, "kind") == "Component"


@dataclass(slots=True)
class Found:
    """All that is in the folders."""

    charts: list[Path] = field(default_factory=list)
    """Their folders."""
    kustomizations: dict[Path, Kustomization] = field(default_factory=dict)
    """By folder."""

    def starts(self) -> Iterator[Kustomization]:
        """Yield the kustomizations that no other one names."""
        named = {name for one in self.kustomizations.values() for name in one.names}
        for folder, one in sorted(self.kustomizations.items()):
            if folder not in named and not one.is_component:
                yield one

    def below(self, start: Kustomization) -> list[Kustomization]:
        """A kustomization and all that it is made of."""
        seen: dict[Path, Kustomization] = {}
        waiting = [start.file.parent]
        while waiting:
            folder = waiting.pop()
            one = self.kustomizations.get(folder)
            if one is not None and folder not in seen:
                seen[folder] = one
                waiting.extend(one.names)
        return list(seen.values())


def find_sources(paths: Iterable[Path]) -> Found:
    """Find what a tool could put together in these folders."""
    found = Found()
    count = 0
    for given in paths:
        root = Path(os.path.normpath(given))
        for folder, folders, files in os.walk(root):
            count += len(folders) + len(files)
            if count > MAX_ENTRIES:
                return found
            folders[:] = sorted(one for one in folders if not one.startswith("."))
            here = Path(folder)
            if CHART in files and "templates" in folders:
                if len(found.charts) < MAX_SOURCES:
                    found.charts.append(here)
                folders.clear()
                continue
            name = next((one for one in KUSTOMIZATIONS if one in files), "")
            has_room = bool(name) and len(found.kustomizations) < MAX_SOURCES
            if has_room and (one := _kustomization(here / name, root)):
                found.kustomizations[here] = one
    return found


def tree_of(path: Path) -> Node | None:
    """The tree of a small YAML file of one document; None when it cannot be read."""
    try:
        text = read_file(path, _LIMIT).decode()
        return Builder(Template(), 1).build(text)
    except (UsageError, OSError, UnicodeDecodeError, ManifestError):
        return None


def _kustomization(file: Path, given: Path) -> Kustomization | None:
    node = None if file.is_symlink() else tree_of(file)
    if node is None or node.entries is None:
        return None
    found = Kustomization(file, given, node)
    for word in (one for key in _BASES for one in _words(node.get(key))):
        _follow(found, word, is_base=True)
    for word in _others(node):
        _follow(found, word, is_base=False)
    for key in _CHARTS:
        if node.get(key) is not None:
            found.remote = found.remote or key
    return found


def _others(node: Node) -> Iterator[str]:
    """Yield the files that a kustomization names besides its bases, inline ones included."""
    for key in _FROM_ELSEWHERE:
        yield from _words(node.get(key))
    for key in _PATCH_LISTS:
        yield from (said(item, "path") for item in _items(node.get(key)))


def _follow(found: Kustomization, word: str, *, is_base: bool) -> None:
    if not 0 < len(word) < _MAX_NAME or "\n" in word:
        return
    place = Path(os.path.normpath(found.file.parent / word))
    if not place.exists() and _REMOTE.search(word):
        host = _HOST.search(word)
        found.remote = found.remote or (host[1] if host else "something of the network")
    elif is_base:
        found.names.add(place)
    else:
        found.patches.append(place)


def said(node: Node | None, *way: str) -> str:
    """The word at the end of a way; empty where there is none."""
    for key in way:
        node = node.get(key) if node is not None else None
    return (node.text or "") if node is not None else ""


def _items(node: Node | None) -> list[Node]:
    return (node.items or []) if node is not None else []


def _words(node: Node | None) -> list[str]:
    return [one.text for one in _items(node) if one.text]


# --- lines ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Layer:
    """One object, or a part of one, in a file."""

    path: str
    node: Node
    kind: str = ""
    """Of what a patch is for; empty: as the node says."""
    name: str = ""


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
        kind, name = said(root, "kind"), said(root, "metadata", "name")
        near = [
            ((index in self.taken, _distance(one, name)), index)
            for index, one in enumerate(self.layers)
            if said(one.node, "kind") == kind or MARKER.search(said(one.node, "kind"))
        ]
        if not near:
            return None
        _, index = min(near)
        self.taken.add(index)
        return self.layers[index]


def origins_of(path: Path | None, patches: Sequence[Layer] = ()) -> Origins:
    """The objects of a file, its templates taken out; those that cannot be read are left out."""
    text = _text(path) if path is not None else ""
    return Origins(list(_layers(text, str(path), 1)), patches, text)


def _text(path: Path) -> str:
    try:
        return read_file(path, _FILE_LIMIT).decode()
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
        listed = [node] if items is None or items.items is None else items.items
        yield from (Layer(path, one, kind, name) for one in listed if one.text is None)


def patches_of(parts: Iterable[Kustomization]) -> list[Layer]:
    """The settings of the patches of kustomizations, those of bases first."""
    found: list[Layer] = []
    for one in reversed(list(parts)):
        for key in _PATCH_LISTS:
            for item in _items(one.node.get(key)):
                found.extend(_of_patch(one, item))
        for item in _items(one.node.get("patchesStrategicMerge")):
            if "\n" in (item.text or ""):
                found.extend(_inline(one, item))
            elif item.text:
                place = one.file.parent / item.text
                found.extend(_layers(_text(place), str(place), 1))
    return found


def _inline(one: Kustomization, node: Node) -> Iterator[Layer]:
    """Yield what a text in a kustomization has."""
    return _layers(node.text or "", str(one.file), node.line + (1 if node.literal else 0))


def _of_patch(one: Kustomization, item: Node) -> Iterator[Layer]:
    kind, name = (said(item, "target", key) for key in ("kind", "name"))
    inline, path = item.get("patch"), said(item, "path")
    found: Iterable[Layer] = ()
    if inline is not None and inline.text:
        found = _inline(one, inline)
    elif path:
        place = one.file.parent / path
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


def _is_for(patch: Layer, root: Node) -> bool:
    kind = patch.kind or said(patch.node, "kind")
    name = patch.name or said(patch.node, "metadata", "name")
    is_kind = not kind or kind == said(root, "kind")
    return is_kind and (not name or name in said(root, "metadata", "name"))


def _distance(layer: Layer, name: str) -> int:
    """Lower is nearer: the same name, one that a template decides, a part of it, another."""
    own = said(layer.node, "metadata", "name")
    if own == name:
        return 0
    if MARKER.search(own) or not own:
        return 1
    return 2 if own in name else 3


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
    name = said(item, "name")
    items = node.items or []
    for one in items:
        if name and said(one, "name") == name:
            return Layer(layer.path, one)
    opened = [one for one in items if MARKER.search(one.text or said(one, "name"))]
    if opened:
        return Layer(layer.path, opened[min(number, len(opened) - 1)])
    if number < len(items) and not (name and said(items[number], "name")):
        return Layer(layer.path, items[number])
    return None
