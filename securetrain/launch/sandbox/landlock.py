# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Landlock rules: the second wall behind the mounts, and the only one where there are none.

Rules:

1. the version of the kernel decides which rights can be asked for; below version 2 nobody may move
   a file from one folder to another, which programs do, so that is not used;
2. behind mounts only writing is judged: under the writable folders everything, elsewhere nothing.
   Without mounts reading is judged too: whatever lies under no hidden folder may be read. Landlock
   has no rule for "all but", so each folder on the way to a hidden one is taken apart (`all_but`).
   It may be listed where a job works in it or imports from it, and with it all below: the names of
   hidden files can be seen there, and nothing in them;
3. no worker sends a signal, or connects to an abstract socket, out of the job (from version 6 on).
   All workers share one domain, so that they may read each other's memory, as NCCL and UCX do;
4. where a policy keeps ranks apart, each has a domain of its own inside the shared one, which its
   children inherit. A process traces only what is in its own domain or further in (that is
   ``PTRACE_MODE`` everywhere: memory, environment, descriptors), and signals no other (from version
   6 on). Abstract sockets stay open among ranks: libraries meet there, and both ends agree to it.
"""

import ctypes
import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

EXECUTE: Final = 1 << 0
WRITE_FILE: Final = 1 << 1
READ_FILE: Final = 1 << 2
READ_DIR: Final = 1 << 3
_CHANGE: Final = sum(1 << bit for bit in range(4, 13))
"""Removing and making files of every kind."""
_REFER: Final = 1 << 13
TRUNCATE: Final = 1 << 14

MIN_VERSION: Final = 2
_TRUNCATE_VERSION: Final = 3
_NETWORK_VERSION: Final = 4
_SCOPE_VERSION: Final = 6
_SIGNALS: Final = 2
_SCOPES: Final = 1 | _SIGNALS
"""Abstract unix sockets, signals."""
_CREATE: Final = 444


def version() -> int:
    """The version of Landlock in this kernel; 0 without any."""
    libc = ctypes.CDLL(None, use_errno=True)
    nothing, flag = ctypes.c_void_p(None), ctypes.c_long(1)
    return max(0, int(libc.syscall(ctypes.c_long(_CREATE), nothing, ctypes.c_long(0), flag)))


def rules(
    found: int,
    writable: Iterable[str],
    *,
    devices: Collection[str] = (),
    readable: Iterable[str] | None = None,
    listed: Iterable[str] = (),
) -> Mapping[str, Any]:
    """The rules as `holder` takes them; empty when Landlock cannot be used.

    Args:
        found: Of `version`.
        writable: Folders and files.
        devices: Where files may be written, and none made.
        readable: The folders and files that may be read and run; None to leave reading alone.
        listed: Folders whose names, and those below, may be seen.
    """
    if found < MIN_VERSION:
        return {}
    write = WRITE_FILE | _CHANGE | _REFER | (TRUNCATE if found >= _TRUNCATE_VERSION else 0)
    read = EXECUTE | READ_FILE | READ_DIR
    of_file = EXECUTE | READ_FILE | WRITE_FILE | TRUNCATE
    handled = write | (read if readable is not None else 0)
    allowed = [(path, handled) for path in writable]
    allowed += [(path, (WRITE_FILE | TRUNCATE | read) & handled) for path in devices]
    allowed += [(path, read) for path in readable or ()]
    allowed += [(path, READ_DIR) for path in listed]
    size = 8
    if found >= _NETWORK_VERSION:
        size = 16
    if found >= _SCOPE_VERSION:
        size = 24
    return {
        "handled": handled,
        "scoped": _SCOPES if found >= _SCOPE_VERSION else 0,
        "size": size,
        "rules": [(path, rights & handled, rights & handled & of_file) for path, rights in allowed],
    }


def own_domain(found: int) -> Mapping[str, Any]:
    """The rules of one rank's domain: none but those that make it one (rule 4).

    Args:
        found: Of `version`; `MIN_VERSION` at least.
    """
    if found >= _SCOPE_VERSION:
        return {"handled": 0, "scoped": _SIGNALS, "size": 24, "rules": []}
    # A domain must handle something: moving files, which stays allowed everywhere.
    return {"handled": _REFER, "scoped": 0, "size": 8, "rules": [("/", _REFER, 0)]}


def ranks_label(found: int) -> str:
    """Describe ranks that have a domain each, for people."""
    signals = "" if found >= _SCOPE_VERSION else ", but for signals (Landlock 6)"
    return f"ranks kept apart{signals}"


def all_but(hidden: Iterable[str], root: str = "/") -> list[str]:
    """The folders and files that together are everything below `root` but what is hidden."""
    places = {os.path.realpath(path) for path in hidden}
    on_the_way = {str(parent) for place in places for parent in Path(place).parents}
    found: list[str] = []
    waiting = [root]
    while waiting:
        folder = waiting.pop()
        if folder in places:
            continue
        if folder not in on_the_way:
            found.append(folder)
            continue
        try:
            names = sorted(os.listdir(folder))
        except OSError:
            continue
        children = [os.path.join(folder, name) for name in names]
        # A link may lead to what is hidden; where it leads has a rule of its own.
        waiting += [child for child in children if not os.path.islink(child)]
    return found
