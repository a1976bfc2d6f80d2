# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The user that a job's workers are.

Rules, the first that applies:

1. who is not root has one user only: its own;
2. ``--user NAME`` or ``--user UID``; root is refused (ST-USAG-001);
3. the owner of the training script, when that is not root;
4. a user that nobody else is: an id of a range that neither people, services nor containers have
   (`FIRST_UID`), another for each job of a machine, so that two jobs have nothing in common.

The job has the user's own group and no other, but for groups of GPU devices that the machine gives
to a group.
"""

import os
import pwd
import secrets
import socket
import stat
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from securetrain.core.errors import UsageError

FIRST_UID: Final = 1_900_000_000
"""Above systemd's ids of containers (to 1,879,048,191), below its foreign ids."""
NUM_UIDS: Final = 1 << 16
_TRIES: Final = 100
_NAME: Final = "securetrain-job"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobUser:
    """The user of a job's workers."""

    uid: int
    gid: int
    name: str
    groups: tuple[int, ...] = ()
    reservation: socket.socket | None = None
    """Holds a user of the range for this launcher, as long as it is open."""

    def release(self) -> None:
        """Let another job have the user, when it is one of the range."""
        if self.reservation is not None:
            self.reservation.close()


def choose_user(asked: str, script: Path | None) -> JobUser:
    """Choose the user; the caller is root.

    Args:
        asked: ``--user``; empty when it was not given.
        script: The training script; None for a module.

    Raises:
        UsageError: ST-USAG-001 for a user that does not exist, or is root.
    """
    return named_user(asked, script) or reserve()


def named_user(asked: str, script: Path | None) -> JobUser | None:
    """The user of rules 2 and 3; None where one is made for the job.

    Raises:
        UsageError: ST-USAG-001, as `choose_user`.
    """
    if asked:
        return _asked(asked)
    if script is not None and (owner := _owner(script)):
        return _of(owner)
    return None


def reserve(
    is_used: Callable[[int], bool] | None = None, draw: Callable[[int], int] = secrets.randbelow
) -> JobUser:
    """Reserve a user of the range for as long as this process keeps it.

    The reservation is a name in the kernel (an abstract socket), which ends with its owner.

    Raises:
        UsageError: ST-USAG-001 when none is free.
    """
    used = is_used or _has_process
    for _ in range(_TRIES):
        uid = FIRST_UID + draw(NUM_UIDS)
        held = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        try:
            held.bind(f"\0{_NAME}-{uid}")
        except OSError:
            held.close()
            continue
        if not used(uid):
            return JobUser(uid=uid, gid=uid, name=_NAME, reservation=held)
        held.close()
    raise UsageError(
        "ST-USAG-001",
        f"no user from {FIRST_UID} to {FIRST_UID + NUM_UIDS - 1} is free",
        "--user",
        "name one: --user NAME",
    )


def _asked(text: str) -> JobUser:
    try:
        entry = pwd.getpwuid(int(text)) if text.isdecimal() else pwd.getpwnam(text)
        user = JobUser(uid=entry.pw_uid, gid=entry.pw_gid, name=entry.pw_name)
    except KeyError:
        if not text.isdecimal():
            raise UsageError(
                "ST-USAG-001", f"there is no user {text!r}", "--user", "name one that exists"
            ) from None
        user = JobUser(uid=int(text), gid=int(text), name=_NAME)
    if user.uid == 0 or user.gid == 0 or user.uid >= 1 << 31:
        raise UsageError(
            "ST-USAG-001",
            f"workers do not run as user {user.uid} of group {user.gid}",
            "--user",
            "name an ordinary user",
        )
    return user


def _of(uid: int) -> JobUser:
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return JobUser(uid=uid, gid=uid, name=_NAME)
    return JobUser(uid=uid, gid=entry.pw_gid or uid, name=entry.pw_name)


def _owner(script: Path) -> int:
    try:
        found = script.stat()
    except OSError:
        return 0
    return found.st_uid if stat.S_ISREG(found.st_mode) else 0


def _has_process(uid: int, proc: Path = Path("/proc")) -> bool:
    with os.scandir(proc) as entries:
        for entry in entries:
            with suppress(OSError):  # it has ended
                if entry.name.isdecimal() and entry.stat().st_uid == uid:
                    return True
    return False
