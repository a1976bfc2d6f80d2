# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A directory that this process holds open, and paths below it that go by the handle.

A path is a question that is asked anew at each use, and whoever may rename a folder above it
answers: a link in its place leads every later write elsewhere. Rules:

1. `hold` opens a directory once. Its paths keep their names for people and for other processes
   (``str``); for this process they lead through the handle (``os.fspath``), so that nothing which
   happens to the folders above matters;
2. `open_held` opens what lies below with ``openat2(2)``: beneath the handle, through no link at
   all, asked again while the kernel says that a rename was under way. Where a kernel or a filter
   has no such call, each component is opened by itself, with O_NOFOLLOW;
3. `moved` tells whether the name still leads to the handle.
"""

import errno
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PosixPath
from typing import Final

_OPENAT2: Final = 437
"""The same number on every architecture."""
_NO_MAGICLINKS, _NO_SYMLINKS, _BENEATH = 0x02, 0x04, 0x08
_RESOLVE: Final = _NO_MAGICLINKS | _NO_SYMLINKS | _BENEATH
_ABSENT: Final = frozenset({errno.ENOSYS, errno.EPERM, errno.EINVAL})
"""The answers of a kernel without the call, and of a filter in front of it."""
_TRIES: Final = 128
_HANDLES: dict[str, int] = {}
"""Of the directories that are held, by name."""


class HeldPath(PosixPath):
    """A path at or below a directory that is held (rule 1)."""

    __slots__ = ()

    def __fspath__(self) -> str:
        """The way through the handle; the name, where nothing is held."""
        root = _root_of(self)
        if root is None:
            return str(self)
        return f"/proc/self/fd/{_HANDLES[root]}{str(self)[len(root) :]}"

    def __reduce__(self) -> tuple[type[PosixPath], tuple[str]]:
        """For another process it is its name."""
        return PosixPath, (str(self),)


def hold(directory: Path) -> HeldPath:
    """Open a directory, for as long as this process lives or until it is held anew.

    Raises:
        OSError: It cannot be opened, is no directory, or is a link.
    """
    root = str(directory.absolute())
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(root, flags)
    release(directory)
    _HANDLES[root] = handle
    return HeldPath(root)


def release(directory: Path) -> None:
    """Close the handle of a directory, if it is held."""
    handle = _HANDLES.pop(str(directory.absolute()), None)
    if handle is not None:
        os.close(handle)


def moved(directory: Path) -> bool:
    """Tell whether the name of a directory that is held leads elsewhere by now, or nowhere."""
    handle = _HANDLES.get(str(directory))
    if handle is None:
        return False
    try:
        return not os.path.samestat(os.lstat(str(directory)), os.fstat(handle))
    except OSError:
        return True


def open_held(path: Path, flags: int, mode: int = 0o777) -> int:
    """As `os.open`; below a directory that is held, by rule 2.

    Raises:
        OSError: As `os.open`; ELOOP for a link anywhere on the way, EXDEV for what leads out.
    """
    root = _root_of(path) if isinstance(path, HeldPath) else None
    if root is None:
        return os.open(path, flags, mode)
    below, flags = str(path)[len(root) + 1 :] or ".", flags | os.O_CLOEXEC | os.O_NOFOLLOW
    mode = mode if flags & os.O_CREAT else 0
    for _ in range(_TRIES):
        opened, number = _openat2(_HANDLES[root], os.fsencode(below), flags, mode)
        if opened >= 0:
            return opened
        if number in _ABSENT:
            return _by_component(_HANDLES[root], below, flags, mode)
        if number not in {errno.EAGAIN, errno.EINTR}:
            break
    raise OSError(number, os.strerror(number), str(path))


@dataclass(frozen=True, slots=True)
class Folder:
    """An open directory, whose entries are named within it and nowhere else."""

    handle: int

    @classmethod
    @contextmanager
    def opened(cls, path: Path) -> Iterator["Folder"]:
        """Open a directory while the block lasts.

        Raises:
            OSError: See `open_held`.
        """
        handle = open_held(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield cls(handle)
        finally:
            os.close(handle)

    def create(self, name: str, mode: int) -> int:
        """Make a file that must not be there; returns a descriptor to write it."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        return os.open(name, flags, mode, dir_fd=self.handle)

    def rename(self, name: str, new: str, *, replace: bool) -> None:
        """Give an entry another name, which must be free unless it is replaced."""
        if replace:
            os.rename(name, new, src_dir_fd=self.handle, dst_dir_fd=self.handle)
            return
        os.link(name, new, src_dir_fd=self.handle, dst_dir_fd=self.handle)
        self.remove(name)

    def remove(self, name: str) -> None:
        """Remove an entry that is no folder."""
        os.unlink(name, dir_fd=self.handle)

    def sync(self) -> None:
        """Make its names durable."""
        os.fsync(self.handle)


def _openat2(handle: int, below: bytes, flags: int, mode: int) -> tuple[int, int]:
    """The descriptor, or -1, and the error."""
    how = b"".join(one.to_bytes(8, sys.byteorder) for one in (flags, mode, _RESOLVE))
    return _syscall()(_OPENAT2, handle, below, how, len(how))


@cache
def _syscall() -> Callable[[int, int, bytes, bytes, int], tuple[int, int]]:
    import ctypes  # noqa: PLC0415 - verifying, which holds nothing, starts without it

    call = ctypes.CDLL(None, use_errno=True).syscall
    call.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t)
    call.restype = ctypes.c_long
    return lambda *given: (int(call(*given)), ctypes.get_errno())


def _by_component(handle: int, below: str, flags: int, mode: int) -> int:
    *folders, name = below.split("/")
    if ".." in (*folders, name):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), below)
    at = os.dup(handle)
    try:
        for folder in folders:
            way = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            inner = os.open(folder, way, dir_fd=at)
            os.close(at)
            at = inner
        return os.open(name, flags, mode, dir_fd=at)
    finally:
        os.close(at)


def _root_of(path: Path) -> str | None:
    """The innermost directory that is held and that a path is, or lies below."""
    name = str(path)
    found = [root for root in _HANDLES if name == root or name.startswith(f"{root}/")]
    return max(found, key=len, default=None)
