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

Mounts are undone by the kernel when the last process of the mount namespace ends, so that nothing
is left behind, whatever kills it. A mount that fails ends this program with exit code 125: a worker
that would see the wrong names, or the engine's socket, does not start.
"""

import os
import sys
from collections.abc import Iterator, Sequence

FAILED = 125
_MOUNT = ("mount", "-n")
"""-n: without notes about it in /run, which the machine's own tools would read."""

_NUM_VALUES = {"--empty": 1, "--bind": 2, "--hand": 2}
_HAND_LIMIT = 4096


def main(arguments: Sequence[str]) -> int:
    """Mount, then become the program; returns only when that fails."""
    words = list(arguments)
    try:
        end = words.index("--")
        options, command = words[:end], words[end + 1 :]
        for file, name in handed(options):
            os.environ[name] = str(hand(file))
        for mount in mounts(options):
            # Not by `subprocess`, whose import takes longer than all the rest.
            if status := os.waitpid(os.posix_spawnp(mount[0], mount, os.environ), 0)[1]:
                raise OSError(f"{' '.join(mount)}: exit code {os.waitstatus_to_exitcode(status)}")
        os.execv(command[0], command)  # noqa: S606 - no shell is the point
    except (OSError, IndexError, ValueError) as error:
        sys.stderr.write(f"exec_private: {error}\n")
    return FAILED


def mounts(options: Sequence[str]) -> list[list[str]]:
    """The commands that the options stand for.

    Raises:
        ValueError: For an option that is unknown or lacks its value.
    """
    commands = []
    words = iter(options)
    for word in words:
        match word:
            case "--empty":
                how = ["-t", "tmpfs", "-o", "mode=0755,nosuid,nodev,noexec,size=1m", "tmpfs"]
                commands.append([*_MOUNT, *how, _next(words, word)])
            case "--bind":
                source, place = _next(words, word), _next(words, word)
                commands.append([*_MOUNT, "--bind", source, place])
                commands.append([*_MOUNT, "-o", "remount,bind,ro", place])
            case "--hand":
                _next(words, word), _next(words, word)
            case _:
                raise ValueError(f"unknown option {word!r}")
    return commands


def handed(options: Sequence[str]) -> list[tuple[str, str]]:
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
