# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Paths to texts: bounded reads of regular files, and a problem for each that is not read.

Rules:

1. a folder gives the files in it whose names are those of manifests, templates of them, or scripts;
   hidden names are left out, a file that was named itself is read whatever it is called;
2. a symbolic link inside a folder is followed to a regular file inside the folder, and is a problem
   otherwise; links to folders are a problem (what they lead to may be anywhere, or a cycle);
3. pipes, devices and sockets are a problem and are never opened; so is what is too large.
"""

import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from securetrain.audit.documents.facts import Outcome
from securetrain.audit.subjects.kubernetes.collect.parser.errors import (
    MAX_ENTRIES,
    MAX_FILE_BYTES,
    MAX_FILES,
    MAX_LIST_BYTES,
)
from securetrain.audit.subjects.launches.collect.images import holds_scripts
from securetrain.core.errors import UsageError
from securetrain.core.files import read_file

_TEMPLATE_SUFFIXES: Final = frozenset(
    {".j2", ".jinja", ".jinja2", ".erb", ".tmpl", ".tpl", ".gotmpl", ".template", ".in", ".tftpl"}
)
MANIFESTS: Final = frozenset({".yaml", ".yml", ".json"})
SCRIPTS: Final = frozenset({".sh", ".bash", ".sbatch", ".slurm", ".batch", ".job"})


@dataclass(frozen=True, slots=True)
class Unread:
    """A file that was not read, and why."""

    path: str
    outcome: Outcome
    reason: str


@dataclass(frozen=True, slots=True)
class Text:
    """A file's content."""

    path: str
    text: str
    is_script: bool


@dataclass(frozen=True, slots=True)
class Large:
    """A file that is too large to be read whole, and may be a `List` of objects."""

    path: str
    real: Path
    reason: str


def kind_of(name: str) -> str:
    """``manifest``, ``script``, ``scripts`` or nothing, by a file's name."""
    path = Path(name.lower())
    suffixes = path.suffixes
    while suffixes and suffixes[-1] in _TEMPLATE_SUFFIXES:
        suffixes.pop()
    last = suffixes[-1] if suffixes else ""
    if last in MANIFESTS:
        return "manifest"
    if last in SCRIPTS:
        return "script"
    if holds_scripts(name):
        return "scripts"
    return "manifest" if path.suffix in {".tpl", ".gotmpl"} else ""


def texts(paths: Iterable[Path]) -> Iterator[Text | Large | Unread]:
    """Yield the texts of files and folders, one at a time, in a stable order."""
    seen: set[str] = set()
    for path in paths:
        for found in _files(path):
            name = found.path if isinstance(found, Unread) else str(found)
            if name in seen:
                continue
            seen.add(name)
            if len(seen) > MAX_FILES:
                yield Unread(str(path), Outcome.ERROR, f"more than {MAX_FILES} files")
                return
            yield found if isinstance(found, Unread) else _read(found)


def _files(path: Path) -> Iterator[Path | Unread]:
    path = Path(os.path.normpath(path))
    try:
        info = path.stat()
    except OSError as error:
        yield _failure(str(path), error)
        return
    if not stat.S_ISDIR(info.st_mode):
        yield path
        return
    yield from _below(path, path.resolve())


def _below(root: Path, real: Path) -> Iterator[Path | Unread]:
    folders = [root]
    count = 0
    while folders:
        folder = folders.pop()
        try:
            with os.scandir(folder) as entries:
                listed = sorted(entries, key=lambda entry: entry.name)
        except OSError as error:
            yield _failure(str(folder), error)
            continue
        count += len(listed)
        if count > MAX_ENTRIES:
            yield Unread(str(root), Outcome.ERROR, f"more than {MAX_ENTRIES} names in it")
            return
        inner = []
        for entry in listed:
            if entry.name.startswith("."):
                continue
            if entry.is_dir(follow_symlinks=False):
                inner.append(Path(entry.path))
            elif entry.is_symlink():
                yield from _linked(Path(entry.path), real)
            elif kind_of(entry.name):
                yield Path(entry.path)
        folders.extend(reversed(inner))


def _linked(path: Path, real: Path) -> Iterator[Path | Unread]:
    try:
        target = path.resolve(strict=True)
        if target.is_dir():
            yield Unread(
                str(path), Outcome.ERROR, "a symbolic link to a folder; it is not followed"
            )
        elif not kind_of(path.name):
            return
        elif not target.is_relative_to(real):
            yield Unread(str(path), Outcome.ERROR, "a symbolic link that leads out of the folder")
        else:
            yield path
    except (OSError, RuntimeError) as error:
        yield Unread(str(path), Outcome.ERROR, f"a symbolic link that leads nowhere ({error})")


def _read(path: Path) -> Text | Large | Unread:
    name = str(path)
    real = path
    try:
        real = path.resolve(strict=True) if path.is_symlink() else path
        data = read_file(real, MAX_FILE_BYTES)
    except OSError as error:
        return _failure(name, error)
    except UsageError as error:
        if _may_be_list(real):
            return Large(name, real, error.what)
        denied = isinstance(error.__cause__, PermissionError)
        return Unread(name, Outcome.DENIED if denied else Outcome.ERROR, error.what)
    try:
        text = _decoded(data)
    except ValueError as error:
        return Unread(name, Outcome.OK, str(error))
    is_script = kind_of(path.name) == "script" or text.startswith("#!")
    return Text(name, text, is_script)


def _may_be_list(path: Path) -> bool:
    try:
        info = path.stat()
    except OSError:
        return False
    is_large = MAX_FILE_BYTES < info.st_size <= MAX_LIST_BYTES
    return is_large and stat.S_ISREG(info.st_mode) and kind_of(path.name) == "manifest"


def _decoded(data: bytes) -> str:
    """The text of UTF-8, or of UTF-16 and UTF-32 with a byte order mark.

    Raises:
        ValueError: with what is wrong.
    """
    encoding = "utf-8"
    for mark, name in _MARKS:
        if data.startswith(mark):
            encoding = name
            break
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not {encoding.upper()}: byte {error.start}") from error
    if "\0" in text:
        raise ValueError("it holds a zero byte: no text, or UTF-16 without a byte order mark")
    return text.removeprefix("\ufeff").replace("\r\n", "\n")


_MARKS: Final = (
    (b"\xff\xfe\x00\x00", "utf-32"),
    (b"\x00\x00\xfe\xff", "utf-32"),
    (b"\xff\xfe", "utf-16"),
    (b"\xfe\xff", "utf-16"),
    (b"\xef\xbb\xbf", "utf-8"),
)


def _failure(path: str, error: OSError) -> Unread:
    outcome = Outcome.DENIED if isinstance(error, PermissionError) else Outcome.ERROR
    return Unread(path, outcome, error.strerror or str(error))
