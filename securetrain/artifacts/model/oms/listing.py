# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The files that a model consists of: those that count, those left out, and what bars.

Rules, in order:

1. a model is a directory, or one file;
2. what git and a cache keep (`kinds.LEFT_OUT`) is left out at the top, unless it is asked for, and
   so is every path that was named: it and all below it. What is left out is not looked into, and it
   is told apart from what is not there, because nobody has signed it;
3. names are safe ones, unique when case is ignored;
4. directories that hold nothing, special files and hard links bar;
5. a symbolic link bars, unless links are followed. Then one to a regular file counts as that file,
   under the link's name; one that leads out of the model is noted; one to a directory bars: the
   reference implementation leaves out silently what is behind it, and nobody would have signed it.
"""

import os
import stat
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from securetrain.artifacts.model.oms.manifest import ITSELF, plain_ignored
from securetrain.core.errors import UsageError, os_error
from securetrain.core.files import UnsafeEntry, survey


@dataclass(slots=True, kw_only=True)
class Found:
    """The outcome of looking."""

    files: dict[str, int] = field(default_factory=dict)
    """Each with its size in bytes."""
    unsafe: list[UnsafeEntry] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    """Paths that are there and were left out (rule 2)."""
    outside: list[str] = field(default_factory=list)
    """Links that lead out of the model."""


def look(
    root: Path, ignored: Collection[str], *, follow: bool, signed: Collection[str] = ()
) -> Found:
    """List a model's files; those that were signed are never left out.

    Raises:
        UsageError: ST-USAG-002 when it is neither a directory nor a file, or cannot be read.
    """
    found = Found()
    try:
        if root.is_dir():
            _look_into(root, frozenset(ignored), signed, found, follow=follow)
            return found
        info = root.stat() if follow else root.lstat()
    except OSError as error:
        raise os_error(error, str(root)) from error
    if not stat.S_ISREG(info.st_mode):
        raise UsageError(
            "ST-USAG-002", "neither a directory nor a regular file", str(root), "name the model"
        )
    found.files[ITSELF] = info.st_size
    return found


def _look_into(
    root: Path, ignored: frozenset[str], signed: Collection[str], found: Found, *, follow: bool
) -> None:
    kept = {part for name in signed for part in _with_parents(name)}
    found.left_out += (name for name in ignored - kept if os.path.lexists(root / name))
    inside = tuple(f"{name}/" for name in ignored & kept)
    files, unsafe = survey(root, ignored - kept)
    for name, why in [*((one.name, "") for one in files), *((u.name, u.reason) for u in unsafe)]:
        if name.startswith(inside) and name not in kept:
            found.left_out.append(name)
            continue
        is_link = follow and why == "a symbolic link"
        if reason := _bar_link(root, name, found) if is_link else why:
            found.unsafe.append(UnsafeEntry(name, reason))
        else:
            found.files[name] = (root / name).stat().st_size


def _bar_link(root: Path, name: str, found: Found) -> str:
    """Rule 5; empty for what counts."""
    path = root / name
    try:
        mode = path.stat().st_mode
    except OSError:
        return "a symbolic link that leads nowhere, or in a circle"
    if stat.S_ISDIR(mode):
        return "a symbolic link to a directory, behind which nothing would be signed"
    if not stat.S_ISREG(mode):
        return "a symbolic link to a special file"
    if not path.resolve().is_relative_to(root.resolve()):
        found.outside.append(name)
    return ""


def _with_parents(name: str) -> Iterator[str]:
    while name:
        yield name
        name = name.rpartition("/")[0]


def name_below(root: Path, path: Path) -> str:
    """The name of a path below a model; empty when it lies elsewhere. A link is not followed."""
    if not root.is_dir() or path.name in {"", ".."}:
        return ""
    folder = path.parent.resolve()
    try:
        return (folder / path.name).relative_to(root.resolve()).as_posix()
    except ValueError:
        return ""


def names_to_ignore(root: Path, paths: Sequence[Path]) -> Iterator[str]:
    """The names of paths that a person wants left out: seen from here, or from the model's root.

    Raises:
        UsageError: ST-USAG-001 for one that is not below the model, or is the model.
    """
    for path in paths:
        name = name_below(root, path.absolute())
        if not name and not path.is_absolute():
            name = plain_ignored(path.as_posix())
        if not name or name == ".":
            raise UsageError(
                "ST-USAG-001",
                "what is to be left out is not below the model",
                str(path),
                "name a path below it; a model that is one file has none",
            )
        yield name
