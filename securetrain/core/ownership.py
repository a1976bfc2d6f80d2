# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Directories that nobody but this user can change, or exchange for another.

Rules, in order:

1. places that belong to the machine or to the user's whole account (``/``, HOME, ``/tmp`` ...) are
   refused;
2. the directory is no link, and no component of a relative path is one; links above an absolute
   path are followed when root made them where nobody else may write;
3. every directory above belongs to root or to this user, and others may write to it only where it
   is sticky, because there they can rename nothing that is not theirs;
4. one that exists belongs to this user, nobody else may enter it, and its content is `ours`. Its
   mode and owner are not changed: the refusal says what to type;
5. one that is missing is made with mode 0700. Either way it is held open (`held`) before rule 4 is
   asked, so that what was judged is what is used from then on.
"""

import os
import pwd
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final

from securetrain.core.errors import UsageError, os_error
from securetrain.core.files import PRIVATE_DIR, writers
from securetrain.core.held import HeldPath, hold

_SHARED: Final = ("/", "/tmp", "/var/tmp", "/dev/shm", "/run", "/var", "/etc", "/home", "/root")  # noqa: S108 - refused, not used
_PARENT_DIR: Final = 0o755


def claim_dir(path: Path, ours: Callable[[Path], str]) -> HeldPath:
    """Make a directory of this user's own, or show that the one that exists is; and hold it.

    Args:
        path: The directory.
        ours: Why the content of one that exists makes it no such directory; empty when it does not.

    Returns:
        Its absolute path, which goes by the handle.

    Raises:
        UsageError: ST-USAG-017 for a place that is used for something else, ST-USAG-018 for one
            that others could change or exchange, ST-USAG-002 when it cannot be made.
    """
    absolute = path.absolute()
    try:
        judge_place(path)
        if not absolute.exists():
            _make(absolute)
        if not absolute.is_dir():
            raise UsageError("ST-USAG-017", "not a directory", str(absolute))
        held = hold(absolute)
        _judge_itself(held, ours)
    except OSError as error:
        raise os_error(error, str(absolute)) from error
    return held


def judge_place(path: Path) -> None:
    """Check rules 1 to 3 for a directory that may be missing; makes nothing.

    Raises:
        UsageError: ST-USAG-017, ST-USAG-018 or ST-USAG-002.
    """
    absolute = path.absolute()
    try:
        real = os.path.realpath(absolute)
        if real in {os.path.realpath(name) for name in (*_SHARED, *_homes())}:
            raise UsageError(
                "ST-USAG-017",
                "it belongs to the machine or to a whole account",
                str(absolute),
                f"name a new directory in it, such as {absolute / 'runs' / 'first'}",
            )
        here = len(Path.cwd().parts) if not path.is_absolute() else 0
        for depth in range(1, len(absolute.parts) + 1):
            step = Path(*absolute.parts[:depth])
            is_given = depth == len(absolute.parts) or bool(here and depth > here)
            if step.is_symlink() and (is_given or not _is_of_the_machine(step)):
                raise UsageError(
                    "ST-USAG-018",
                    f"a link, to {step.readlink()}, whose target another can choose",
                    str(step),
                    f"name the directory itself: {real}",
                )
        above = next(parent for parent in absolute.parents if parent.exists()).resolve()
        for folder in (*reversed(above.parents), above):
            if problem := _folder_problem(folder):
                raise UsageError("ST-USAG-018", problem, str(folder))
    except OSError as error:
        raise os_error(error, str(absolute)) from error


def _judge_itself(path: Path, ours: Callable[[Path], str]) -> None:
    info = path.stat()
    if info.st_uid != os.geteuid():
        raise UsageError("ST-USAG-018", f"it belongs to user {info.st_uid}", str(path))
    if problem := ours(path):
        raise UsageError("ST-USAG-017", problem, str(path))
    if info.st_mode & 0o077:
        raise UsageError(
            "ST-USAG-018",
            f"others may enter it (mode {stat.S_IMODE(info.st_mode):04o}), and what exists is not"
            " changed",
            str(path),
            f"name a directory that does not exist yet, or type: chmod 700 {path}",
        )


def _make(path: Path) -> None:
    for folder in reversed(path.parents):
        if not folder.exists():
            folder.mkdir(mode=_PARENT_DIR)
    path.mkdir(mode=PRIVATE_DIR)


def _is_of_the_machine(link: Path) -> bool:
    """Tell whether only root could have put a link where it stands."""
    above = link.parent.stat()
    return link.lstat().st_uid == above.st_uid == 0 and not above.st_mode & 0o022


def _folder_problem(folder: Path) -> str:
    info = folder.stat()
    if info.st_uid not in {0, os.geteuid(), unmapped_root()}:
        return f"it belongs to user {info.st_uid}, who could exchange what is in it"
    if (who := writers(info)) and not info.st_mode & stat.S_ISVTX:
        return f"{who} may write to it, and could exchange what is in it"
    return ""


def unmapped_root(proc: Path = Path("/proc")) -> int:
    """The machine's root as it is seen in a user namespace, where it has no number; else root.

    Another user looks the same there: whoever enters a user namespace judges the place before.
    """
    with (proc / "self" / "uid_map").open(encoding="ascii") as file:
        mapped = [line.split() for line in file]
    whole = any(int(outer) == 0 and int(inner) == 0 for inner, outer, _ in mapped)
    return 0 if whole else int((proc / "sys" / "kernel" / "overflowuid").read_text("ascii"))


def _homes() -> tuple[str, ...]:
    said = os.environ.get("HOME", "")
    try:
        account = pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:
        account = ""
    return tuple(name for name in (said, account) if name)
