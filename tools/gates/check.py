# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""`python -m tools.gates.check ROOM`: the fast tests of a room and of what imports it.

A room is a folder of the package (`guard`, `artifacts/scan`). Its tests are those of the folder of
that name below ``tests``. Beside them run the test files of other rooms that import one of its
modules, or a module that imports one, directly or by a name of a face.
"""

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.gates.tree import ROOT, Source, Tree


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tests; the exit code is pytest's, and 2 where there is no such room."""
    arguments = sys.argv[1:] if arguments is None else arguments
    tree = Tree(ROOT)
    room = "/".join(arguments).strip("/")
    if room not in (known := rooms(tree)):
        tops = ", ".join(one for one in known if "/" not in one)
        print(f"no room {room!r}: make check ROOM=NAME, with NAME one of {tops}, or a folder of it")
        return 2
    chosen = tests_of(tree, room)
    print(f"{room}: {len(chosen)} files of tests", flush=True)
    command = ["-m", "pytest", "-n", "auto", "--dist", "worksteal", "-q", "--fast", *chosen]
    return subprocess.run([sys.executable, *command], cwd=tree.root, check=False).returncode


def rooms(tree: Tree) -> list[str]:
    """Every folder of the package, by its path below it."""
    folders = {Path(one.path).parent.relative_to(tree.top).as_posix() for one in tree.package}
    return sorted(folders - {"."})


def tests_of(tree: Tree, room: str) -> list[str]:
    """The files of tests that a change of the room concerns."""
    package = f"{tree.top}.{room.replace('/', '.')}"
    inside = {one for one in tree.modules if one == package or one.startswith(f"{package}.")}
    concerned = inside | {by for one in inside for by in tree.importers.get(one, ())}
    tops = {one.split(".")[1] for one in concerned}  # parsing every test takes longer than a leaf's
    named = re.compile(rf"\b{tree.top}(\.({'|'.join(sorted(tops))})\b| import )")
    return [
        one.path
        for one in tree.tests
        if one.name.startswith("test_")
        and (
            one.path.startswith(f"tests/{room}/")
            or (named.search(one.text) and concerned & taken(tree, one))
        )
    ]


def taken(tree: Tree, test: Source) -> set[str]:
    """The modules that a test file imports: behind a face, those that its names come from."""
    found: set[str] = set()
    for one in test.imports:
        face, _, name = one.rpartition(".")
        while name in tree.faces.get(face, ()):
            face = tree.faces[face][name]
            found.add(face)
        if one in tree.modules and one not in tree.faces:
            found.add(one)
    return found


if __name__ == "__main__":
    sys.exit(main())
