# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""System calls for `holder`, by ctypes. The standard library only."""

import ctypes
import os
from typing import Any, Final

CLONE_NEWNS: Final = 0x20000
CLONE_NEWUSER: Final = 0x10000000
CLONE_NEWPID: Final = 0x20000000
CLONE_NEWNET: Final = 0x40000000
"""linux/sched.h"""

libc: Final = ctypes.CDLL(None, use_errno=True)


class SetupError(Exception):
    """A step failed; the launcher decides what follows."""

    def __init__(self, stage: str, why: str) -> None:
        super().__init__(f"{stage}: {why}")
        self.stage = stage
        self.why = why


def prctl(option: int, value: int | bytes, second: bytes | int = 0) -> None:
    """Set an attribute of this process."""
    if libc.prctl(option, *(_word(one) for one in (value, second, 0, 0))) != 0:
        raise last_error("prctl")


def call(name: str, *arguments: bytes | int | None) -> None:
    """Call a function of the C library that returns 0 or sets errno."""
    if getattr(libc, name)(*map(_word, arguments)) != 0:
        raise last_error(name, *arguments)


def syscall(number: int, *arguments: bytes | int) -> int:
    """Make a system call for which the C library has no function."""
    done = libc.syscall(ctypes.c_long(number), *map(_word, arguments))
    if done < 0:
        raise last_error(f"system call {number}", *arguments)
    return int(done)


def _word(value: bytes | int | None) -> Any:
    return ctypes.c_long(value) if isinstance(value, int) else value


def last_error(name: str, *arguments: bytes | int | None) -> OSError:
    """The error that errno names, with the paths that were given."""
    number = ctypes.get_errno()
    words = [one.decode("utf-8", "replace") for one in arguments if isinstance(one, bytes)]
    shown = [one for one in words if one.startswith("/")]
    return OSError(number, os.strerror(number), " ".join([name, *shown]))


def write(path: str, text: str) -> None:
    """Write a file of the kernel's."""
    with open(path, "w") as file:
        file.write(text)
