# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Small trees with a package of their own, in which a violation is planted."""

import subprocess
from collections.abc import Callable, Iterable, Mapping
from itertools import count
from pathlib import Path

from tools.gates.tree import Tree
from tools.gates.violations import Fault

HEADER = (
    "# SPDX-FileCopyrightText: 2026 The securetrain developers\n"
    "# SPDX-License-Identifier: Apache-2.0\n"
)
_NUMBERS = count()


def planted(root: Path, files: Mapping[str, str]) -> Tree:
    """A tree of these files; ``house/`` becomes a package that no other test has."""
    top = f"house{next(_NUMBERS)}"
    for name, text in files.items():
        path = root / name.replace("house/", f"{top}/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("house.", f"{top}."), "utf-8")
        for folder in path.relative_to(root).parents:
            if folder.parts[:1] == (top,):
                (root / folder / "__init__.py").touch()
    return Tree(root, top)


def places(check: Callable[[Tree], Iterable[Fault]], tree: Tree) -> list[str]:
    """The places of a gate's faults, with ``house`` for the package."""
    return [fault.where.replace(tree.top, "house") for fault in check(tree)]


def git(root: Path, *words: str) -> None:
    """Run git as an author who is nobody."""
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main")
    subprocess.run(["git", *who, *words], cwd=root, check=True, capture_output=True)
