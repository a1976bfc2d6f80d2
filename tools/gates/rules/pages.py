# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Pages for contributors: their paths exist, their blocks fit, and they count nothing that ages."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tools.gates.tree import Tree
from tools.gates.violations import Fault

PAGES: Final = "docs/contributing"
WHERE: Final = "docs/contributing/where-things-live.md"
NEW, APPEND, BELOW, REPLACE = (
    "new file ",
    "append to ",
    ", below its first line",
    ", in place of its first line",
)
_FENCE: Final = re.compile(r'^( *)```\w+ title="([^"]+)"\n(.*?)^\1```$', re.MULTILINE | re.DOTALL)
_PATH: Final = re.compile(r"`([A-Za-z0-9_.-]+(?:/[A-Za-z0-9_.*-]+)*/?)`")
_COUNT: Final = re.compile(
    r"\b\d[\d,]* (?:passed|tests|threats|checks|controls|codes|drills|modules|models|events|verbs)"
    r"\b(?!/)"
)


@dataclass(frozen=True)
class Block:
    """A piece of a recipe, and the file that it goes into."""

    file: str
    verb: str
    text: str

    def applied(self, before: str) -> str:
        """The file with the block in it.

        Raises:
            ValueError: the file is not what the block says it is.
        """
        if self.verb == NEW and before:
            raise ValueError(f"{self.file} is there already")
        if self.verb in {NEW, APPEND}:
            return before + self.text
        first, _, rest = self.text.partition("\n")
        if before.count(f"{first}\n") != 1:
            raise ValueError(f"{self.file} has this line once: {first!r}")
        return before.replace(f"{first}\n", self.text if self.verb == BELOW else rest)


def blocks_of(page: Path) -> list[Block]:
    """The blocks of a page in their order.

    Raises:
        ValueError: a title says nothing of what to do with its block.
    """
    found = []
    for indent, title, text in _FENCE.findall(page.read_text("utf-8")):
        block = "".join(line.removeprefix(indent) for line in text.splitlines(keepends=True))
        if title == "run":
            continue
        whole = next((verb for verb in (NEW, APPEND) if title.startswith(verb)), None)
        if whole is not None:
            found.append(Block(title.removeprefix(whole), whole, block))
            continue
        verb = BELOW if title.endswith(BELOW) else REPLACE
        if not title.endswith(verb):
            raise ValueError(f"{page.name}: {title}")
        found.append(Block(title.removesuffix(verb), verb, block))
    return found


def blocks(tree: Tree) -> Iterator[Fault]:
    """Recipes whose blocks no longer fit the files that they name."""
    for page in sorted((tree.root / PAGES).glob("*.md")):
        files: dict[str, str] = {}
        name = page.relative_to(tree.root).as_posix()
        try:
            for block in blocks_of(page):
                path = tree.root / block.file
                there = path.read_text("utf-8") if path.exists() else ""
                files[block.file] = block.applied(files.get(block.file, there))
        except ValueError as error:
            yield Fault(name, str(error))
        for file, text in files.items():
            if file.endswith(".py") and not _parses(text):
                yield Fault(name, f"what it makes of {file} is no Python")


def paths(tree: Tree) -> Iterator[Fault]:
    """Paths on the newcomer's page that are not there."""
    page = tree.root / WHERE
    if not page.is_file():
        yield Fault(WHERE, "is not there")
        return
    for line in page.read_text("utf-8").splitlines():
        if line.startswith("| "):
            for path in _PATH.findall(line):
                if "/" in path and not any(tree.root.glob(path)):
                    yield Fault(WHERE, f"{path} is not there")


def counts(tree: Tree) -> Iterator[Fault]:
    """Pages for contributors with a count that the next change makes wrong."""
    for page in (tree.root / "CONTRIBUTING.md", *sorted((tree.root / PAGES).glob("*.md"))):
        if page.is_file():
            for found in _COUNT.finditer(page.read_text("utf-8")):
                yield Fault(page.relative_to(tree.root).as_posix(), f"counts {found[0]!r}")


def _parses(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True
