# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Named secrets in a worker: files in memory, found by a variable that holds their number.

Rules:

1. a secret is in a sealed memory file (memfd_create(2)): it has no name on any disk, nobody changes
   it, and no program that is started later inherits it. Children that are forked have it;
2. ``SECURETRAIN_SECRET_<NAME>_FD`` holds the number. A process that inherited the variable without
   the file may have another file under that number: what the kernel calls it is looked at first;
3. a process that holds secrets writes no core dump (`undumped`).
"""

import fcntl
import os
import resource
from contextlib import suppress
from pathlib import Path
from typing import Final

from securetrain.core.errors import RuntimeRefusal

_LIMIT: Final = 1 << 20
_KIND: Final = "securetrain-secret-"


def secret_variable(name: str) -> str:
    """The variable with the number of a secret's file."""
    return f"SECURETRAIN_SECRET_{name.upper().replace('-', '_')}_FD"


def hold_secret(name: str, value: bytes) -> int:
    """Put a secret into a memory file (rule 1); returns its descriptor.

    Raises:
        OSError: the kernel gives none.
    """
    fd = os.memfd_create(_KIND + name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.write(fd, value)
        seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
        if os.fstat(fd).st_size != len(value):
            raise OSError(f"{name}: it was written in part")
    except BaseException:
        os.close(fd)
        raise
    return fd


def secret(name: str) -> bytes:
    """Read a named secret of the job that this process works for.

    Args:
        name: As in ``node.secrets`` of the policy.

    Raises:
        RuntimeRefusal: ST-RUNT-036 when this process was not given it.
    """
    text = os.environ.get(secret_variable(name), "")
    if not text.isdecimal():
        raise RuntimeRefusal(
            "ST-RUNT-036", f"this process was given no secret {name!r}", secret_variable(name)
        )
    fd = int(text)
    try:
        found = str(Path(f"/proc/self/fd/{fd}").readlink())
        if found.removesuffix(" (deleted)") != f"/memfd:{_KIND}{name}":
            raise OSError("another file has its number")
        return os.pread(fd, _LIMIT, 0)
    except OSError as error:
        raise RuntimeRefusal(
            "ST-RUNT-036",
            f"the secret {name!r} is not open in this process",
            secret_variable(name),
            "read it in the worker, or in a child that it forked, and hand it on yourself to"
            " programs that it starts",
        ) from error


def undumped() -> None:
    """Have this process and all that it starts write no memory to disk when they crash (rule 3).

    A limit of one byte ends a dump into a file, and, unlike zero, one that the kernel would hand
    to a program (core(5), ``kernel.core_pattern`` with a pipe). The filter leaves anonymous memory
    out of what is dumped all the same. The superuser's debugger is not kept out.
    """
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    least = 1 if hard == resource.RLIM_INFINITY or hard >= 1 else 0
    resource.setrlimit(resource.RLIMIT_CORE, (least, least))
    with suppress(OSError):  # no /proc: the limit holds
        Path("/proc/self/coredump_filter").write_text("0")
