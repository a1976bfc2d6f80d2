# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Folders to the charts and kustomizations in them.

Rules:

1. a folder with a Chart.yaml and templates is a chart; charts inside of it belong to it;
2. a kustomization that no other one names is a start; a component is none. What it names is
   followed inside the given folder only;
3. a kustomization that names something of the network is never put together (`remote`);
4. links are not followed, and the number of folders and files is bounded.
"""

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from securetrain.audit.parser.files import MAX_ENTRIES, ManifestError
from securetrain.audit.parser.templates import Template
from securetrain.audit.parser.tree import Builder, Node
from securetrain.core.errors import UsageError
from securetrain.core.files import read_file

CHART: Final = "Chart.yaml"
KUSTOMIZATIONS: Final = ("kustomization.yaml", "kustomization.yml", "Kustomization")
MAX_SOURCES: Final = 100
"""Charts, and kustomizations, of one audit."""
_LIMIT: Final = 1 << 20
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


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart of Helm."""

    root: Path
    given: Path
    """The folder that was named in the audit, which it is in."""


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
        kind = self.node.get("kind")
        return kind is not None and kind.text == "Component"


@dataclass(slots=True)
class Found:
    """All that is in the folders."""

    charts: list[Chart] = field(default_factory=list)
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
                    found.charts.append(Chart(here, root))
                folders.clear()
                continue
            name = next((one for one in KUSTOMIZATIONS if one in files), "")
            if name and len(found.kustomizations) < MAX_SOURCES:
                one = _kustomization(here / name, root)
                if one is not None:
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
    for key in _BASES:
        for word in _words(node.get(key)):
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
        for item in _items(node.get(key)):
            path = item.get("path") if item.entries is not None else None
            yield path.text or "" if path is not None else ""


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


def _items(node: Node | None) -> list[Node]:
    return (node.items or []) if node is not None else []


def _words(node: Node | None) -> list[str]:
    return [one.text for one in _items(node) if one.text]
