# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Check that nobody else could put code where a search path points.

A directory is unsafe when everybody may write to it or to a directory above it that is not sticky,
when it is relative (it then means another place for every working directory), or when it does not
exist and everybody could create it. A compiler cache must besides be the user's own.
"""

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

PathJudge: TypeAlias = Callable[[str], str]
"""Given one entry of a search path, why it is unsafe; empty when it is safe."""


def path_problem(entry: str) -> str:
    """Judge one entry by the file system as it is now."""
    if not entry:
        return "an empty entry means the working directory"
    path = Path(entry)
    if not path.is_absolute():
        return f"{entry!r} is relative"
    try:
        real = path.resolve()
        for ancestor in (*reversed(real.parents), real):
            try:
                mode = ancestor.stat().st_mode
            except FileNotFoundError:
                return _missing(ancestor)
            sticky = bool(mode & stat.S_ISVTX) and ancestor != real
            if mode & stat.S_IWOTH and not sticky:
                return f"{str(ancestor)!r} is writable by everybody"
    except (OSError, RuntimeError) as error:
        return f"{entry!r} cannot be checked: {error}"
    return ""


def _missing(path: Path) -> str:
    """A missing directory is harmless unless everybody could create it."""
    if path.parent.stat().st_mode & stat.S_IWOTH:
        return f"{str(path)!r} does not exist and everybody could create it"
    return ""


def cache_problem(entry: str) -> str:
    """Judge a directory of compiled code: safe as above, and only its user may write to it."""
    if problem := path_problem(entry):
        return problem
    try:
        info = Path(entry).stat()
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"{entry!r} cannot be checked: {error}"
    if info.st_uid != os.geteuid():
        return f"{entry!r} belongs to another user"
    if info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"{entry!r} is writable by others"
    return ""
