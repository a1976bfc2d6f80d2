# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A real corpus without a download: the running interpreter's own prose.

Rules, in order:

1. the text is every docstring longer than 60 characters in the standard library, and the help
   topics of ``pydoc``; both are read as syntax trees, nothing is imported or executed;
2. tests, third-party packages and bundled wheels are not part of it;
3. a document is one module or one topic; its text appears once in the whole corpus, so that no
   sentence is in both splits;
4. the split is a function of the document's name alone (about 5 % validation), and the order is
   that of the names: the same interpreter gives the same bytes;
5. files that are links, too large or not valid Python are skipped and counted; when too little is
   left, that is an error and not a small corpus.
"""

import ast
import hashlib
import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, TypeAlias

from securetrain.core.errors import SecureTrainError, UsageError, os_error
from securetrain.core.files import read_file

MIN_DOCSTRING: Final = 60
SOURCE_LIMIT: Final = 2 << 20
"""Bytes; the largest module of any CPython release is under half of this."""
TEXT_LIMIT: Final = 16 << 20
"""Bytes of prose; eight times what CPython has."""
MIN_TEXT: Final = 400_000
"""Bytes below which a model would only learn it by heart."""
MAX_FILES: Final = 20_000
VALIDATION_PERCENT: Final = 5
SKIPPED_FOLDERS: Final = frozenset(
    {
        "__pycache__",
        "_bundled",
        "dist-packages",
        "idle_test",
        "lib2to3",
        "site-packages",
        "test",
        "tests",
    }
)
TOPICS: Final = "pydoc_data/topics.py"

Progress: TypeAlias = Callable[[int, int], None]
"""Called with files done and files in all."""


class Split(StrEnum):
    """The use of a document."""

    TRAIN = "train"
    VALIDATION = "validation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One module's or one topic's prose."""

    name: str
    text: str

    @property
    def split(self) -> Split:
        """A pure function of the name."""
        bucket = int.from_bytes(hashlib.sha256(self.name.encode()).digest()[:8], "big") % 100
        return Split.VALIDATION if bucket < VALIDATION_PERCENT else Split.TRAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """Every document in the order of names, and what could not be read."""

    documents: tuple[Document, ...]
    skipped: tuple[str, ...]
    """Names of sources that were links, too large, unreadable or not valid Python."""

    @property
    def num_bytes(self) -> int:
        """Size of all text in UTF-8."""
        return sum(len(document.text.encode()) for document in self.documents)


def collect(
    stdlib: Path,
    *,
    min_text: int = MIN_TEXT,
    text_limit: int = TEXT_LIMIT,
    progress: Progress | None = None,
) -> Corpus:
    """Read the prose of a standard library.

    Args:
        stdlib: the folder, as ``sysconfig.get_path("stdlib")`` names it.
        min_text: bytes of prose below which this is an error.
        text_limit: bytes of prose after which no further document is taken.
        progress: called after every file.

    Raises:
        UsageError: ST-USAG-011 when there is too little text or no such folder.
    """
    names = _sources(stdlib)
    documents: list[Document] = []
    skipped: list[str] = []
    seen: set[str] = set()
    taken = 0
    for number, name in enumerate(names, start=1):
        try:
            tree = _parse(stdlib / name)
        except (SecureTrainError, SyntaxError, ValueError, RecursionError, MemoryError):
            skipped.append(name)
        else:
            for document in _documents(name, tree, seen):
                taken += len(document.text.encode())
                if taken <= text_limit:
                    documents.append(document)
        if progress is not None:
            progress(number, len(names))
    corpus = Corpus(
        documents=tuple(sorted(documents, key=lambda d: d.name)), skipped=tuple(skipped)
    )
    splits = {document.split for document in corpus.documents}
    if corpus.num_bytes < min_text or splits != set(Split):
        raise UsageError(
            "ST-USAG-011",
            f"{corpus.num_bytes} bytes of prose in {len(names)} files ({len(skipped)} could not be"
            f" read), at least {min_text} are needed",
            str(stdlib),
        )
    return corpus


def _sources(stdlib: Path) -> list[str]:
    """Names of the modules below `stdlib`, in order, with forward slashes."""
    names: list[str] = []
    try:
        for folder, folders, files in os.walk(stdlib, followlinks=False, onerror=_raise):
            folders[:] = sorted(f for f in folders if f not in SKIPPED_FOLDERS)
            here = Path(folder).relative_to(stdlib)
            names.extend((here / file).as_posix() for file in files if file.endswith(".py"))
            if len(names) > MAX_FILES:
                raise UsageError("ST-USAG-011", f"more than {MAX_FILES} source files", str(stdlib))
    except OSError as error:
        raise os_error(error, str(stdlib)) from error
    return sorted(names)


def _raise(error: OSError) -> None:
    raise error


def _parse(path: Path) -> ast.Module:
    source = read_file(path, SOURCE_LIMIT)
    with warnings.catch_warnings():
        # a stray backslash in somebody's string is not our user's business
        warnings.simplefilter("ignore")
        return ast.parse(source)


def _documents(name: str, tree: ast.Module, seen: set[str]) -> Iterator[Document]:
    if name == TOPICS:
        for topic, text in _topics(tree):
            if len(text) > MIN_DOCSTRING and text not in seen:
                seen.add(text)
                yield Document(name=f"topics/{topic}", text=text)
        return
    parts = []
    for text in _docstrings(tree):
        if len(text) > MIN_DOCSTRING and text not in seen:
            seen.add(text)
            parts.append(text)
    if parts:
        yield Document(name=f"stdlib/{name}", text="\n\n".join(parts) + "\n")


def _docstrings(tree: ast.Module) -> Iterator[str]:
    """Docstrings in the order of the file."""
    stack: list[ast.AST] = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node, clean=True)
            # an escape such as \udc80 makes text that no encoding can write
            if text and _encodable(text):
                yield text
        stack.extend(reversed(list(ast.iter_child_nodes(node))))


def _topics(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """The entries of the one dictionary of strings that the topics file is."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Dict):
            continue
        for key, value in zip(node.keys, node.values, strict=True):
            match key, value:
                case ast.Constant(value=str(topic)), ast.Constant(value=str(text)):
                    if _encodable(topic) and _encodable(text):
                        yield topic, text
                case _:
                    continue


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
