# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Directories in the making: whose they are, and what becomes of them when their maker dies.

A lease, ``NAME.tmp-ID.lease``, lies beside the directory ``NAME.tmp-ID`` from before it is made
until after it got its name, and its maker holds the file's lock. Rules, in order:

1. a directory whose maker is alive is left alone. A maker in the same process namespace is looked
   for by its number and start; another one on this machine by the lock; one on another machine is
   believed to live for `OLD`, by the file system's own clock;
2. what has no lease (an older version made it) goes after `OLD`, when nothing but a save's files is
   in it;
3. whoever begins to save removes what is abandoned in the same folder, so that at most one such
   directory is ever left;
4. SIGTERM, where nobody else handles it, removes what this process was making, or lets it be
   committed when that has begun, and then ends the process as it always does.
"""

import fcntl
import os
import re
import shutil
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Final

import msgspec

from securetrain.core.files import PUBLIC_FILE

SUFFIX: Final = ".lease"
OLD: Final = 6 * 3600.0
"""Seconds without a change after which the maker on another machine is believed to be dead."""
GRACE: Final = 60.0
"""Seconds that a maker in another container has between making a lease and locking it."""
LIMIT: Final = 4096
_STAGED: Final = re.compile(r".+\.tmp-[0-9a-f]{32}", re.DOTALL)
_OURS: Final = re.compile(
    r"(?:rank-\d{5,}\.bin|model-\d+-of-\d+\.safetensors)(?:\.leaves)?"
    r"|index\.json|statement\.json|model\.safetensors\.index\.json"
    r"|\..+\.tmp-[0-9a-f]{12}"
)


class Maker(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The process that makes a directory."""

    pid: int
    start: int
    """Ticks after the machine's start at which it began; 0 when nobody says."""
    pids: str
    """Its namespace of process numbers."""
    boot: str
    """This start of its machine."""
    host: str
    """For people."""


def this_process() -> Maker:
    """The maker that this process is."""
    pid = os.getpid()
    return Maker(
        pid=pid,
        start=_start(pid),
        pids=_namespace(),
        boot=_line("/proc/sys/kernel/random/boot_id"),
        host=socket.gethostname()[:255],
    )


def abandoned(maker: Maker | None, here: Maker, *, locked: bool, age: float) -> bool:
    """Rules 1 and 2.

    Args:
        maker: what the lease says; None without one that can be read.
        here: this process.
        locked: whether somebody holds the lease's lock.
        age: seconds since the directory or its lease changed.
    """
    if maker is None:
        return age >= OLD
    if not maker.boot or maker.boot != here.boot:
        return not locked and age >= OLD
    if maker.pids and maker.pids == here.pids:
        return not _lives(maker)
    return not locked and age >= GRACE


def _lives(maker: Maker) -> bool:
    try:
        os.kill(maker.pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass
    start = _start(maker.pid)
    return not start or not maker.start or start == maker.start


def _start(pid: int) -> int:
    fields = _line(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return int(fields[19]) if len(fields) > 19 else 0


def _line(path: str) -> str:
    """A line that the kernel says; empty where it does not."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123 - of /proc
            return file.read(LIMIT).strip()
    except OSError:
        return ""


def _namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


@dataclass(slots=True)
class _Held:
    """One directory that this process is making."""

    fd: int
    pid: int
    claim: threading.Lock = field(default_factory=threading.Lock)
    """Taken by whoever commits it or removes it: never both."""
    removed: bool = False


_held: Final[dict[Path, _Held]] = {}
_making: Final = threading.Lock()
"""A lease without its entry in `_held` looks abandoned."""


def _active() -> bool:
    """Tell whether this process is making a directory."""
    pid = os.getpid()
    return any(held.pid == pid and not held.removed for held in _held.values())


def is_held(folder: Path) -> bool:
    """Tell whether this process is making a directory, and will commit it."""
    return folder in _held


def lease_of(folder: Path) -> Path:
    """The lease of a directory in the making."""
    return folder.with_name(folder.name + SUFFIX)


def take(folder: Path) -> None:
    """Take the lease of a directory that is about to be made, and collect what is abandoned.

    Raises:
        OSError: the lease cannot be written; FileExistsError when there is one.
    """
    guard()
    with _making:
        _take(folder, lease_of(folder))


def _take(folder: Path, path: Path) -> None:
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(path, flags, PUBLIC_FILE)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(fd, msgspec.json.encode(this_process()))
        _held[folder] = _Held(fd, os.getpid())
        collect(folder.parent, os.fstat(fd).st_mtime)
    except BaseException:
        _held.pop(folder, None)
        os.close(fd)
        path.unlink(missing_ok=True)
        raise


def release(folder: Path) -> None:
    """Give a lease back, after the directory got its name or is gone."""
    held = _held.pop(folder, None)
    if held is not None:
        with suppress(OSError):
            lease_of(folder).unlink(missing_ok=True)
        os.close(held.fd)
    if _Term.pending and not _active():
        os.kill(os.getpid(), signal.SIGTERM)
    _unguard()


@contextmanager
def committing(folder: Path) -> Iterator[None]:
    """Give a directory its name inside of this block; SIGTERM waits for its end (rule 4)."""
    held = _held.get(folder)
    if held is None:
        yield
        return
    with held.claim:
        yield
    release(folder)


def remove(folder: Path) -> None:
    """Remove a directory in the making, and its lease."""
    shutil.rmtree(folder, ignore_errors=True)
    release(folder)


def collect(parent: Path, now: float) -> list[str]:
    """Remove what is abandoned in a folder (rule 3).

    Args:
        parent: the folder.
        now: the time by the clock of its file system.

    Returns:
        The names of what is gone.
    """
    gone = []
    names = {entry.name for entry in list(os.scandir(parent))}
    staged = {name for name in names if _STAGED.fullmatch(name)}
    staged |= {
        name.removesuffix(SUFFIX)
        for name in names
        if name.endswith(SUFFIX) and _STAGED.fullmatch(name.removesuffix(SUFFIX))
    }
    here = this_process()
    for name in sorted(staged):
        folder = parent / name
        with suppress(OSError):  # another rank's, or another saver has been faster
            if folder not in _held and _collect_one(folder, here, now):
                gone.append(name)
    return gone


def _collect_one(folder: Path, here: Maker, now: float) -> bool:
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        return False
    path = lease_of(folder)
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        age = now - _newest(folder)
        if not abandoned(None, here, locked=False, age=age) or not _is_a_saves(folder):
            return False
        shutil.rmtree(folder)
        return True
    try:
        locked = False
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            locked = True
        maker = _read(fd)
        # A lease of this very process that nobody holds is of a save that failed.
        own = maker is not None and (maker.pid, maker.pids, maker.boot, maker.start) == (
            *(here.pid, here.pids, here.boot, here.start),
        )
        age = now - max(os.fstat(fd).st_mtime, _newest(folder))
        # Nothing was made: the maker died at its first step, or has not taken the second one yet.
        # Without a lease its directory is left alone for `OLD`, so that it loses nothing.
        unborn = maker is None and not locked and not folder.exists()
        if not own and not unborn and not abandoned(maker, here, locked=locked, age=age):
            return False
        if maker is None and folder.exists() and not _is_a_saves(folder):
            return False
        if folder.exists():
            shutil.rmtree(folder)
        path.unlink(missing_ok=True)
        return True
    finally:
        os.close(fd)


def _read(fd: int) -> Maker | None:
    data = os.pread(fd, LIMIT + 1, 0)
    try:
        return msgspec.json.decode(data, type=Maker) if len(data) <= LIMIT else None
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _newest(folder: Path) -> float:
    """The time of the last change in a directory; 0 when it is not there."""
    with suppress(FileNotFoundError):
        times = [entry.stat(follow_symlinks=False).st_mtime for entry in list(os.scandir(folder))]
        return max([folder.stat().st_mtime, *times])
    return 0.0


def _is_a_saves(folder: Path) -> bool:
    """Tell whether a directory has nothing in it that a save does not write."""
    return all(
        entry.is_file(follow_symlinks=False) and _OURS.fullmatch(entry.name)
        for entry in list(os.scandir(folder))
    )


class _Term:
    """The state that SIGTERM finds."""

    pending = False
    """It came while a directory got its name."""


def guard() -> None:
    """Handle SIGTERM from here on, when nobody else does and this is the main thread (rule 4)."""
    main = threading.current_thread() is threading.main_thread()
    if main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _on_term)


def _unguard() -> None:
    main = threading.current_thread() is threading.main_thread()
    if main and not _active() and signal.getsignal(signal.SIGTERM) is _on_term:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _on_term(number: int, frame: FrameType | None) -> None:
    del frame
    for folder, held in list(_held.items()):
        # A forked child has what its parent was making, and must not touch it.
        if held.pid != os.getpid() or held.removed:
            continue
        if not held.claim.acquire(blocking=False):
            _Term.pending = True
            continue
        held.removed = True
        for _ in range(3):  # another thread may just have made a file
            shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):
            lease_of(folder).unlink(missing_ok=True)
    if not _active():
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
