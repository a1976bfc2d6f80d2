# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Pickles that run code where they are loaded: the payload of drills, and of tests."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Call:
    """Unpickles to what a function returns, which is called with these arguments."""

    def __init__(self, function: Callable[..., Any], *args: object) -> None:
        self._call = function, args

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[object, ...]]:
        return self._call


def calling(function: Callable[..., Any], *args: object) -> bytes:
    """A pickle that calls a function."""
    return pickle.dumps(Call(function, *args))


def marker_pickle(marker: Path, original: bytes = b"N.") -> bytes:
    """A pickle that writes the id of the process that loads it to `marker`.

    It is the whole payload of the drills: one small file below the drill's work directory.

    Args:
        marker: The file.
        original: The pickle to which it comes; without one, None.
    """
    mark = f"(file := open({str(marker)!r}, 'a')).write(str(__import__('os').getpid()) + ' ')"
    code = f"[{mark}, file.close(), __import__('pickle').loads({original!r})][-1]"
    return calling(eval, code)


def marked_by(marker: Path) -> list[int]:
    """The ids of the processes that ran the payload."""
    return [int(pid) for pid in marker.read_text().split()] if marker.exists() else []
