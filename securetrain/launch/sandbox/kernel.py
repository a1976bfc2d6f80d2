# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""System calls for `holder`, by ctypes. The standard library only."""

import ctypes
import errno
import os
import struct
from collections.abc import Mapping
from typing import Any, Final

CLONE_NEWNS: Final = 0x20000
CLONE_NEWUSER: Final = 0x10000000
CLONE_NEWPID: Final = 0x20000000
CLONE_NEWNET: Final = 0x40000000
"""linux/sched.h"""
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446

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


def enter_domain(rules: Mapping[str, Any]) -> list[str]:
    """Enter a Landlock domain, for ever and with all children; the paths that have no rule, why."""
    missing = []
    handled = struct.pack("QQQ", rules["handled"], 0, rules["scoped"])[: rules["size"]]
    ruleset = syscall(_LANDLOCK_CREATE, handled, len(handled), 0)
    for path, folder_rights, file_rights in rules["rules"]:
        try:
            where = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError as error:
            if error.errno not in {errno.ENOENT, errno.EACCES}:
                missing.append(f"Landlock: {path}: {error.strerror}")
            continue
        rights = folder_rights if os.path.isdir(path) else file_rights
        if rights:
            syscall(_LANDLOCK_ADD, ruleset, 1, struct.pack("=Qi", rights, where), 0)
        os.close(where)
    syscall(_LANDLOCK_RESTRICT, ruleset, 0)
    os.close(ruleset)
    return missing
