# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The words of names: those of the trade, and no private ones.

The words of modules and types are those of

1. docs/explanation/vocabulary.md, with its lists of words of each field;
2. securetrain/core/vocabulary.py;
3. the names of modules and classes of the standard library and torch (`borrowed.txt`, which
   `python -m tools.gates.rules.words` writes).

A plural counts as its singular. The names that use another word today are listed violations.
"""

import ast
import re
import sysconfig
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from securetrain.core.files import write_atomic
from tools.gates.tree import ROOT, Tree
from tools.gates.violations import Fault

PAGE: Final = "docs/explanation/vocabulary.md"
BORROWED: Final = Path(__file__).parent.parent / "borrowed.txt"
BANNED: Final = frozenset(
    {
        *("desk", "doorkeeper", "guest", "lessons", "intake", "knock", "somebody", "tales"),
        *("kept", "bets", "whereabouts", "together", "outside", "comeback", "conduct"),
        *("nobody", "everybody", "helpers", "utils"),
    }
)
"""Words that did not explain themselves; STYLE's end has the trade's words for them."""

_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_SHORTEST: Final = 2


def private(tree: Tree) -> Iterator[Fault]:
    """Modules and types that are named with a word of nobody else's."""
    known = known_words(tree)
    for source in tree.package:
        stem = (
            source.folder.rpartition("/")[2] if source.name == "__init__.py" else source.name[:-3]
        )
        if source.module != tree.top:
            yield from _fault(source.path, stem, known)
        for node in source.nodes(ast.ClassDef):
            yield from _fault(f"{source.path}::{node.name}", node.name, known)


def words_of(name: str) -> list[str]:
    """The words of a name in snake case or camel case."""
    found = (word.lower() for word in _WORD.findall(name))
    return [word for word in found if len(word) >= _SHORTEST]


def known_words(tree: Tree) -> frozenset[str]:
    """Every word that a name may use."""
    vocabulary = tree.root / tree.top / "core" / "vocabulary.py"
    texts = [path.read_text("utf-8") for path in (tree.root / PAGE, vocabulary) if path.is_file()]
    words = {word for text in texts for word in words_of(text)}
    borrowed = BORROWED.read_text("utf-8").splitlines()
    words.update(w for line in borrowed if not line.startswith("#") for w in line.split())
    return frozenset(words - BANNED)


def _fault(where: str, name: str, known: frozenset[str]) -> Iterator[Fault]:
    unknown = [w for w in words_of(name) if not _is_known(w, known)]
    if unknown:
        yield Fault(where, f"{', '.join(unknown)}: not a word of the vocabulary")


def _is_known(word: str, known: frozenset[str]) -> bool:
    singulars = {word, word.removesuffix("s"), word.removesuffix("es")}
    if word.endswith("ies"):
        singulars.add(f"{word[:-3]}y")
    return not known.isdisjoint(singulars)


def borrowed(*folders: Path) -> set[str]:
    """The words of the public modules and classes below some folders."""
    words: set[str] = set()
    for folder in folders:
        for path in folder.rglob("*.py"):
            parts = path.relative_to(folder).with_suffix("").parts
            if any(p.startswith("_") or "test" in p or p.endswith("-packages") for p in parts[:-1]):
                continue
            names = [parts[-1]]
            nodes = ast.walk(ast.parse(path.read_bytes()))
            names += [node.name for node in nodes if isinstance(node, ast.ClassDef)]
            words.update(w for name in names if not name.startswith("_") for w in words_of(name))
    return words


def main() -> None:
    """Write `borrowed.txt` from this interpreter's library and its torch."""
    import torch  # noqa: PLC0415 - nothing else here needs it

    found = borrowed(Path(sysconfig.get_path("stdlib")), Path(torch.__path__[0]))
    head = (
        "# Words of the modules and classes of the standard library and torch, written by\n"
        "# python -m tools.gates.rules.words. A new word goes to the vocabulary page.\n"
    )
    lines = textwrap.wrap(" ".join(sorted(found - BANNED)), 100)
    write_atomic(BORROWED, (head + "\n".join(lines) + "\n").encode())
    print(f"{len(found)} words into {BORROWED.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
