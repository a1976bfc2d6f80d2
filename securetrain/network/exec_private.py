# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Starts a program with a few mounts of its own. A program itself, run by path; library only.

``unshare --mount -- python -I -S exec_private.py [OPTION ...] -- PROGRAM ARGUMENT ...``

=====================  ==========================================================
``--empty DIR``        DIR is empty, and in memory
``--bind FILE PLACE``  PLACE shows FILE, read-only
=====================  ==========================================================

Mounts are undone by the kernel when the last process of the mount namespace ends, so that nothing
is left behind, whatever kills it. A mount that fails ends this program with exit code 125: a worker
that would see the wrong names, or the engine's socket, does not start.
"""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence

FAILED = 125
_MOUNT = ("mount", "-n")
"""-n: without notes about it in /run, which the machine's own tools would read."""


def main(arguments: Sequence[str]) -> int:
    """Mount, then become the program; returns only when that fails."""
    words = list(arguments)
    try:
        end = words.index("--")
        options, command = words[:end], words[end + 1 :]
        for mount in mounts(options):
            subprocess.run(mount, check=True)
        os.execv(command[0], command)  # noqa: S606 - no shell is the point
    except (OSError, IndexError, ValueError, subprocess.CalledProcessError) as error:
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
            case _:
                raise ValueError(f"unknown option {word!r}")
    return commands


def _next(words: Iterator[str], option: str) -> str:
    word = next(words, None)
    if word is None:
        raise ValueError(f"{option} lacks a value")
    return word


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
