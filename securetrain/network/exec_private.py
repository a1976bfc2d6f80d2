# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Starts a program with a few mounts of its own. A program itself, run by path; library only.

``unshare --mount -- python -I -S exec_private.py [OPTION ...] -- PROGRAM ARGUMENT ...``

=====================  ==========================================================
``--empty DIR``        DIR is empty, and in memory
``--bind FILE PLACE``  PLACE shows FILE, read-only
``--hand FILE NAME``   the program inherits what is in FILE as a file in memory; the
                       variable NAME has the number of its descriptor
=====================  ==========================================================

A secret is handed over so: it stands in no environment, no argument list and no file that the
program could open, and it can be read once. Files are read before anything is mounted over them.

Mounts are made by mount(2): a process for each would take longer than all the rest. They are undone
by the kernel when the last process of the mount namespace ends, so that nothing
is left behind, whatever kills it. A mount that fails ends this program with exit code 125: a worker
that would see the wrong names, or the engine's socket, does not start.
"""

import ctypes
import os
import sys
from collections.abc import Iterator, Sequence

FAILED = 125

READ_ONLY, NOSUID, NODEV, NOEXEC, REMOUNT, BIND = 1, 2, 4, 8, 32, 4096
"""linux/mount.h, as those below."""
_REC, _PRIVATE, _RELATIME = 1 << 14, 1 << 18, 1 << 21
_KEPT = NOSUID | NODEV | NOEXEC | os.ST_NOATIME | os.ST_NODIRATIME
"""Flags that a remount drops unless they are given again: the same numbers in statvfs(3)."""
_CLONE_NEWNS = 0x20000

_NUM_VALUES = {"--empty": 1, "--bind": 2, "--hand": 2}
_HAND_LIMIT = 4096


def main(arguments: Sequence[str]) -> int:
    """Mount, then become the program; returns only when that fails."""
    words = list(arguments)
    try:
        end = words.index("--")
        options, command = words[:end], words[end + 1 :]
        for file, name in inherited_files(options):
            os.environ[name] = str(hand(file))
        make(mounts(options))
        os.execv(command[0], command)  # noqa: S606 - no shell is the point
    except (OSError, IndexError, ValueError) as error:
        sys.stderr.write(f"exec_private: {error}\n")
    return FAILED


def mounts(options: Sequence[str]) -> list[tuple[str, str, str, int, str]]:
    """Translate the options into arguments of mount(2): source, place, type, flags, data.

    Raises:
        ValueError: For an option that is unknown or lacks its value.
    """
    made = []
    words = iter(options)
    for word in words:
        match word:
            case "--empty":
                how = (NOSUID | NODEV | NOEXEC, "mode=0755,size=1m")
                made.append(("tmpfs", _next(words, word), "tmpfs", *how))
            case "--bind":
                source, place = _next(words, word), _next(words, word)
                made.append((source, place, "", BIND, ""))
                made.append(("", place, "", REMOUNT | BIND | READ_ONLY, ""))
            case "--hand":
                _next(words, word), _next(words, word)
            case _:
                raise ValueError(f"unknown option {word!r}")
    return made


def make(planned: Sequence[tuple[str, str, str, int, str]]) -> None:
    """Mount.

    Raises:
        OSError: One cannot be done; those before it were.
    """
    for source, place, kind, flags, data in planned:
        if flags & REMOUNT:
            had = os.statvfs(place).f_flag
            flags |= had & _KEPT | (_RELATIME if had & os.ST_RELATIME else 0)  # noqa: PLW2901
        _call("mount", source.encode(), place.encode(), kind.encode(), flags, data.encode())


def unshare() -> None:
    """Give the calling thread mounts of its own, which nobody else sees, nor it theirs.

    Raises:
        OSError: It has no right to.
    """
    _call("unshare", _CLONE_NEWNS)
    _call("mount", b"none", b"/", b"", _REC | _PRIVATE, b"")


def _call(name: str, *arguments: bytes | int) -> None:
    function = getattr(ctypes.CDLL(None, use_errno=True), name)
    given = [ctypes.c_ulong(a) if isinstance(a, int) else a for a in arguments]
    if function(*given) != 0:
        number = ctypes.get_errno()
        words = [a.decode() for a in arguments if isinstance(a, bytes) and a]
        raise OSError(number, os.strerror(number), " ".join([name, *words]))


def inherited_files(options: Sequence[str]) -> list[tuple[str, str]]:
    """The files that the program inherits, with the variables that say where."""
    found = []
    words = iter(options)
    for word in words:
        values = [_next(words, word) for _ in range(_NUM_VALUES.get(word, 0))]
        if word == "--hand":
            found.append((values[0], values[1]))
    return found


def hand(file: str) -> int:
    """The descriptor of a copy of a small file in memory, which the program inherits."""
    with open(file, "rb") as source:  # noqa: PTH123 - pathlib is not worth its import here
        data = source.read(_HAND_LIMIT + 1)
    if not 0 < len(data) <= _HAND_LIMIT:
        raise ValueError(f"{file} has {len(data)} bytes, the limit is {_HAND_LIMIT}")
    descriptor = os.memfd_create("securetrain")
    os.write(descriptor, data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    os.set_inheritable(descriptor, True)
    return descriptor


def _next(words: Iterator[str], option: str) -> str:
    word = next(words, None)
    if word is None:
        raise ValueError(f"{option} lacks a value")
    return word


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
