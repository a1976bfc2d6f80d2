# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Charts and kustomizations to the objects that they make, each with the file it came from.

What cannot be put together is said (`Rendering.left`), and its files are read as they stand. A
template of a chart that made no object with these values is read as it stands as well: other values
may turn it on.
"""

import json
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from securetrain.audit.parser.objects import split
from securetrain.audit.subjects.kubernetes.collect.rendering.sources import (
    CHART,
    Found,
    Kustomization,
    Origins,
    find_sources,
    origins_of,
    patches_of,
)
from securetrain.audit.subjects.kubernetes.collect.rendering.tools import (
    NotRenderedError,
    find_tool,
    run_tool,
)

RELEASE: Final = "release"
"""The name of the release that a chart is rendered for."""
MAX_TOTAL: Final = 64 << 20
"""Characters of all that tools wrote."""
_SOURCE: Final = re.compile(r"\A\s*# Source: ([^\n]{1,500})")
_ORIGIN: Final = re.compile(
    r"^ +config\.kubernetes\.io/origin: \|\n +path: ([^\n]{1,500})", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class Rendered:
    """The objects that one file made."""

    name: str
    """The file, as in assets."""
    path: str
    """The file that they came from."""
    text: str
    origins: Origins


@dataclass(slots=True)
class Rendering:
    """All that tools made of the given folders."""

    made: list[Rendered] = field(default_factory=list)
    covered: set[str] = field(default_factory=set)
    """Files that need not be read as they stand."""
    left: dict[str, str] = field(default_factory=dict)
    """A chart's or kustomization's file to why it was not put together."""
    size: int = 0


@dataclass(frozen=True, slots=True)
class Renderer:
    """The tools that may be used."""

    path: str
    """Folders that they are looked for in, as in PATH."""
    values: tuple[Path, ...] = ()
    """Files of values for charts."""
    off: bool = False

    def render(self, paths: Sequence[Path]) -> Rendering:
        """Put together the charts and kustomizations in these folders."""
        found = find_sources(path for path in paths if path.is_dir())
        made = Rendering()
        audited = [Path(os.path.realpath(path)) for path in paths]
        for chart in found.charts:
            try:
                self._chart(chart, audited, made)
            except NotRenderedError as error:
                made.left[str(chart / CHART)] = f"not rendered: {error}"
        for start in found.starts():
            try:
                self._kustomization(start, found, audited, made)
            except NotRenderedError as error:
                made.left[str(start.file)] = f"not put together: {error}"
        return made

    def _tool(self, names: Sequence[str], audited: Sequence[Path]) -> str:
        if self.off:
            raise NotRenderedError(f"{names[0]} is not run (--no-render)")
        return find_tool(names, self.path, audited)

    def _chart(self, chart: Path, audited: Sequence[Path], made: Rendering) -> None:
        helm = self._tool(("helm",), audited)
        root = chart.resolve()
        values = [path.resolve() for path in self.values]
        with tempfile.TemporaryDirectory(prefix="securetrain-") as folder:
            words = ["template", RELEASE, str(root), "--namespace", "default"]
            words += [word for path in values for word in ("--values", str(path))]
            output = run_tool([helm, *words], [root, *values], Path(folder).resolve())
        _within(made, output)
        texts: dict[str, list[str]] = {}
        for text, _ in split(output, 1):
            match = _SOURCE.match(text)
            place = _inside(chart, match[1].partition("/")[2]) if match else None
            texts.setdefault(str(place or chart / CHART), []).append(text)
        for name, parts in texts.items():
            origins = origins_of(Path(name))
            made.made += (Rendered(name, name, part, origins) for part in parts)
            made.covered.add(name)
        made.covered.update(_partials(chart))

    def _kustomization(
        self, start: Kustomization, found: Found, audited: Sequence[Path], made: Rendering
    ) -> None:
        parts = found.below(start)
        remote = next((one for one in parts if one.remote), None)
        if remote is not None:
            raise NotRenderedError(f"it names {remote.remote}, which is never fetched")
        tool = self._tool(("kustomize", "kubectl"), audited)
        verb = "kustomize" if Path(tool).name == "kubectl" else "build"
        given = start.given.resolve()
        with tempfile.TemporaryDirectory(prefix="securetrain-") as folder:
            scratch = Path(folder).resolve()
            base = os.path.relpath(start.file.parent.resolve(), scratch)
            asked = {"resources": [base], "buildMetadata": ["originAnnotations"]}
            (scratch / "kustomization.yaml").write_text(json.dumps(asked))
            output = run_tool([tool, verb, str(scratch)], [given], scratch)
        _within(made, output)
        patches = patches_of(parts)
        files: dict[Path, Origins] = {}
        for text, _ in split(output, 1):
            path = start.file
            if match := _ORIGIN.search(text):
                path = _back(scratch, match[1], start) or start.file
            if path not in files:
                files[path] = origins_of(path if path != start.file else None, patches)
            plain = _ORIGIN.sub("", text)
            made.made.append(Rendered(str(start.file), str(path), plain, files[path]))
        for one in parts:
            made.covered.update(str(path) for path in (*one.names, *one.patches))


def _within(made: Rendering, output: str) -> None:
    made.size += len(output)
    if made.size > MAX_TOTAL:
        raise NotRenderedError(f"all that was rendered is more than {MAX_TOTAL >> 20} MiB")


def _inside(root: Path, rest: str) -> Path | None:
    """The file of a chart by its name below it; None for one that is not there."""
    place = Path(os.path.normpath(root / rest))
    return place if place.is_relative_to(root) and place.is_file() else None


def _back(scratch: Path, name: str, start: Kustomization) -> Path | None:
    """The file that an object began in, by its name as seen from the tool's own folder."""
    real = Path(os.path.normpath(scratch / name))
    given = start.given.resolve()
    if not real.is_relative_to(given) or not real.is_file():
        return None
    return start.given / real.relative_to(given)


def _partials(root: Path) -> Iterator[str]:
    """Files of templates that make no object themselves."""
    for folder, _, files in os.walk(root):
        if Path(folder).name == "templates":
            yield from (str(Path(folder, name)) for name in files if name.startswith("_"))
