# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Starts a program that reads what strangers wrote. A program itself, run by path; library only.

``python -I -S confined.py ORDERS -- PROGRAM ARGUMENT ...``, where ORDERS is JSON with `readable`
and `writable` paths and `limits` by the name of the resource.

Rules:

1. the program has no network (a namespace with nothing in it, not even loopback), sees no other
   process, reads and runs what is `readable`, writes what is `writable`, and gains no rights;
2. it ends with this program, and everything that it started ends with it;
3. a wall that cannot be built ends this program with exit code 125 before the other one starts.
"""

import ctypes
import json
import os
import resource
import signal
import stat
import struct
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

FAILED = 125

_NEWUSER, _NEWIPC, _NEWPID, _NEWNET = 0x10000000, 0x08000000, 0x20000000, 0x40000000
"""linux/sched.h"""
_PDEATHSIG, _BOUNDING_DROP, _NO_NEW_PRIVS, _AMBIENT = 1, 24, 38, 47
"""linux/prctl.h"""
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
"""The same numbers on x86-64 and aarch64."""
_EXECUTE, _WRITE, _READ, _READ_DIR = 1, 2, 4, 8
_MAKE_FILE, _MAKE_DIR, _REMOVE_FILE, _REMOVE_DIR = 1 << 8, 1 << 7, 1 << 5, 1 << 4
_OF_FILE = _EXECUTE | _WRITE | _READ | 1 << 14
_ALL = {1: 13, 2: 14, 3: 15, 4: 15}
"""Number of rights that a version of Landlock knows; later ones add a 16th, ioctl of devices."""
_LAST_CAPABILITY = 63

_libc = ctypes.CDLL(None, use_errno=True)


def main(arguments: Sequence[str]) -> int:
    """Build the walls, run the program behind them, and end as it did."""
    try:
        end = arguments.index("--")
        orders, command = json.loads(arguments[0]), list(arguments[end + 1 :])
        _prctl(_PDEATHSIG, signal.SIGKILL)
        for name, value in orders["limits"].items():
            resource.setrlimit(getattr(resource, name), (value, value))
        _leave()
        _landlock(orders)
        return _run(command)
    except (OSError, ValueError, KeyError, IndexError) as error:
        sys.stderr.write(f"confined: {error}\n")
    return FAILED


def _leave() -> None:
    """Enter namespaces with nothing in them; root can do so where no user namespace is allowed."""
    user, group = os.geteuid(), os.getegid()
    spaces = _NEWNET | _NEWPID | _NEWIPC
    if _libc.unshare(_NEWUSER | spaces) == 0:
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{user} {user} 1")
        _write("/proc/self/gid_map", f"{group} {group} 1")
    elif _libc.unshare(spaces) != 0:
        raise OSError(ctypes.get_errno(), "no namespaces without a network can be made")
    _prctl(_NO_NEW_PRIVS, 1)
    for capability in range(_LAST_CAPABILITY + 1):
        with suppress(OSError):  # later ones than this kernel has
            _prctl(_BOUNDING_DROP, capability)


def _write(path: str, text: str) -> None:
    place = os.open(path, os.O_WRONLY)
    try:
        os.write(place, text.encode())
    finally:
        os.close(place)


def _landlock(orders: Mapping[str, Any]) -> None:
    nothing = ctypes.c_void_p(None)
    version = _libc.syscall(ctypes.c_long(_LANDLOCK_CREATE), nothing, ctypes.c_long(0), 1)
    if version < 1:
        raise OSError(ctypes.get_errno(), "this kernel has no Landlock")
    known = (1 << _ALL.get(version, 16)) - 1
    scoped = 3 if version >= 6 else 0
    size = 8 if version < 4 else 16 if version < 6 else 24
    rules = struct.pack("<QQQ", known, 3 if version >= 4 else 0, scoped)[:size]
    ruleset = _call(_LANDLOCK_CREATE, ctypes.c_char_p(rules), size, 0)
    read = _EXECUTE | _READ | _READ_DIR
    written = read | _WRITE | _MAKE_FILE | _MAKE_DIR | _REMOVE_FILE | _REMOVE_DIR | (1 << 14)
    for key, rights in (("readable", read), ("writable", written)):
        for path in orders[key]:
            _allow(ruleset, path, rights & known)
    _call(_LANDLOCK_RESTRICT, ruleset, 0)
    os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return  # what is not there needs no right
    try:
        if not stat.S_ISDIR(os.fstat(place).st_mode):
            rights &= _OF_FILE
        rule = struct.pack("<Qi", rights, place)
        _call(_LANDLOCK_ADD, ruleset, 1, ctypes.c_char_p(rule), 0)
    finally:
        os.close(place)


def _run(command: list[str]) -> int:
    child = os.fork()
    if child == 0:
        try:
            _prctl(_PDEATHSIG, signal.SIGKILL)
            os.execv(command[0], command)  # noqa: S606 - no shell is the point
        except OSError as error:
            sys.stderr.write(f"confined: {error}\n")
        finally:
            os._exit(FAILED)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _prctl(option: int, value: int) -> None:
    words = (ctypes.c_ulong(one) for one in (value, 0, 0, 0))
    if _libc.prctl(option, *words) != 0:
        raise OSError(ctypes.get_errno(), f"prctl {option}")


def _call(number: int, *arguments: Any) -> int:
    words = (ctypes.c_long(one) if isinstance(one, int) else one for one in arguments)
    done = int(_libc.syscall(ctypes.c_long(number), *words))
    if done < 0:
        raise OSError(ctypes.get_errno(), f"system call {number}")
    return done


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
