# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The files of a directory that a save has written, told from those that lay there before.

Rules:

1. a file belongs to a save when it is new, or its size, times or inode are not what they were when
   the save began; and, where several processes write into one directory, when it was changed after
   this one had started. What lay there before belongs to nobody: it is not signed;
2. a file with a statement of its own that was made in the meantime, or is as it was, is left to
   that statement; a statement from before the file was written again is out of date, and goes;
3. a directory below that has a statement of its own is a save of its own;
4. links and special files are not signed, and `judging` refuses them.

The time of a change (ctime) is the kernel's: who copies a file here cannot choose it.
"""

import os
import re
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from securetrain.artifacts.statement.saved_files import SUFFIX, Form, is_sidecar, sidecar

Print: TypeAlias = tuple[int, int, int, int]
"""Inode, size, and the nanoseconds of its last writing and its last change."""
_COARSE: Final = 5
"""CLOCK_REALTIME_COARSE of Linux, which Python has no name for."""
_LEFT_OVER: Final = re.compile(r"\..*\.securetrain\.json\.tmp-[0-9a-f]{12}")
"""A statement that was being written when its process died."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """The files that belong to a save, by their names below the directory."""

    written: tuple[str, ...]
    """Without a statement of their own."""
    apart: tuple[str, ...]
    """With one, or below a directory that has one: the places of these statements."""
    kept: tuple[str, ...]
    """As they were before, and without a statement of their own."""
    outdated: tuple[str, ...]
    """Statements of files that were written again."""


def now() -> int:
    """The time of changes, in nanoseconds, as file systems of this machine write it down."""
    return time.clock_gettime_ns(_COARSE)


def look(folder: Path) -> dict[str, Print]:
    """Take down how each regular file below a directory is now; nothing of one that is not there.

    Raises:
        OSError: it cannot be read.
    """
    return dict(_files(folder)) if folder.is_dir() else {}


def contents(folder: Path, before: Mapping[str, Print], *, since: int | None = None) -> Contents:
    """Tell what belongs to a save of a directory (the rules above).

    Args:
        folder: The directory.
        before: What `look` gave when the save began; nothing for all that is there.
        since: Where several processes write there: from when on changes are theirs (`now`).

    Raises:
        OSError: it cannot be read.
    """
    found = look(folder)
    apart = {name for name in found if _is_folders(name) and name != SUFFIX}
    roots = tuple(name.removesuffix(SUFFIX) for name in apart)
    written: list[str] = []
    kept: list[str] = []
    outdated: list[str] = []

    def is_ours(name: str) -> bool:
        changed = found[name][3]
        return before.get(name) != found[name] or (since is not None and changed >= since)

    for name in sorted(found):
        if is_sidecar(name) or _is_left_over(name) or name.startswith(roots):
            continue
        own = sidecar(Path(name), Form.FILE).as_posix()
        if own not in found and not (folder / own).exists():
            (written if is_ours(name) else kept).append(name)
        elif own in found and before.get(own) == found[own] and before.get(name) != found[name]:
            outdated.append(own)
            written.append(name)
        else:
            apart.add(own)
    return Contents(
        written=tuple(written),
        apart=tuple(sorted(apart)),
        kept=tuple(kept),
        outdated=tuple(outdated),
    )


def remove_left_overs(folder: Path, before: int) -> None:
    """Remove statements that were being written when their process died, before a time (`now`)."""
    with suppress(OSError):
        for name, found in _files(folder):
            if _is_left_over(name) and found[3] < before:
                (folder / name).unlink()


def _is_folders(name: str) -> bool:
    return name.rpartition("/")[2] == SUFFIX


def _is_left_over(name: str) -> bool:
    return _LEFT_OVER.fullmatch(name.rpartition("/")[2]) is not None


def print_of(path: Path) -> Print | None:
    """Take down how a file is now; None for what is no regular file, or not there."""
    try:
        info = path.lstat()
    except OSError:
        return None
    if not stat.S_ISREG(info.st_mode):
        return None
    return (info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns)


def _files(root: Path) -> Iterator[tuple[str, Print]]:
    for here, _, names in os.walk(root, followlinks=False, onerror=_raise):
        for name in names:
            path = Path(here, name)
            if (taken := print_of(path)) is not None:  # another process may have removed it
                yield path.relative_to(root).as_posix(), taken


def _raise(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error
