# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The faces of rooms: pinned, read by others, small, and with an example."""

import ast
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from tools.gates.tree import Tree
from tools.gates.violations import Fault

NAMES: Final = 60
PINNED: Final = "tests/faces.json"
_EXAMPLE: Final = re.compile(r"^(?:>>> |    \S)", re.MULTILINE)


def pinned(tree: Tree) -> Iterator[Fault]:
    """Faces whose names are not those of tests/faces.json."""
    expected = json.loads((tree.root / PINNED).read_text("utf-8"))["faces"]
    for face in sorted(_packages(tree) ^ expected.keys()):
        yield Fault(face, f"{PINNED} does not pin it" if face not in expected else "has no face")
    for face, names in sorted(tree.faces.items()):
        for name in sorted(names.keys() ^ set(expected.get(face, names))):
            yield Fault(face, f"{'adds' if name in names else 'lacks'} {name}")


def unread(tree: Tree) -> Iterator[Fault]:
    """Names of faces that no other room takes, and that are not listed as for programs."""
    taken: dict[str, set[str]] = defaultdict(set)
    for face, names in json.loads((tree.root / PINNED).read_text("utf-8"))["for_programs"].items():
        taken[face].update(names)
    for source in tree.package:
        for node in source.nodes(ast.ImportFrom):
            face = node.module or ""
            if face in tree.faces and f"{face}.".split(".")[1] != source.room:
                taken[face].update(alias.name for alias in node.names)
    for face, names in sorted(tree.faces.items()):
        for name in sorted(names.keys() - taken[face]):
            yield Fault(face, f"{name} is on the face, and no other room takes it")


def wide(tree: Tree) -> Iterator[Fault]:
    """Rooms with more than 60 names on their faces, those inside of them counted too."""
    names: dict[str, set[str]] = defaultdict(set)
    for face, public in tree.faces.items():
        room = ".".join(face.split(".")[:2])
        names[room].update(f"{face}.{name}" for name in public)
    for room, public_names in sorted(names.items()):
        if len(public_names) > NAMES:
            where = room.replace(".", "/")
            yield Fault(where, f"{len(public_names)} names on its faces", len(public_names))


def examples(tree: Tree) -> Iterator[Fault]:
    """Faces whose package does not show in its docstring how it is used."""
    for face in sorted(tree.faces):
        source = tree.modules.get(face)
        text = ast.get_docstring(source.tree, clean=False) if source else None
        if not text or not _EXAMPLE.search(text):
            yield Fault(face.replace(".", "/"), "has no example in its docstring")


def _packages(tree: Tree) -> set[str]:
    inits = (one for one in tree.package if one.name == "__init__.py" and "__all__" in one.text)
    return {one.module for one in inits}
