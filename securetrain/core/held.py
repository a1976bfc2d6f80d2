# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A directory that this process holds open, and paths below it that go by the handle.

A path is a question that is asked anew at each use, and whoever may rename a folder above it
answers: a link in its place leads every later write elsewhere. Rules:

1. `hold` opens a directory once. Its paths keep their names for people and for other processes
   (``str``); for this process they lead through the handle, so that nothing which happens to the
   folders above matters;
2. `open_held` opens what lies below with ``openat2(2)``: beneath the handle, through no link at
   all, asked again while the kernel says that a rename was under way. Where a kernel or a filter
   has no such call, each component is opened by itself, with O_NOFOLLOW;
3. the methods of a path that ask, open, list, make, rename and remove do so by rule 2: of what lies
   below, too, no link is followed. Libraries that take a path get one through the handle
   (``os.fspath``), which follows links below it: they are for folders that workers cannot change;
4. `moved` tells whether the name still leads to the handle.
"""

import errno
import os
import stat
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PosixPath
from typing import Any, Final, Self

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

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """See base class; a link is there, and leads nowhere (ELOOP)."""
        if _root_of(self) is None:
            return super().stat(follow_symlinks=follow_symlinks)
        handle = open_held(self, os.O_PATH)
        try:
            found = os.fstat(handle)
        finally:
            os.close(handle)
        if follow_symlinks and stat.S_ISLNK(found.st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(self))
        return found

    def open(self, mode: str = "r", *given: Any, **named: Any) -> Any:
        """See base class."""

        def opener(_: str, flags: int) -> int:
            return open_held(self, flags, 0o666)

        opened: Any = open
        return opened(self, mode, *given, **named, opener=opener)

    def iterdir(self) -> Generator[Self, None, None]:
        """See base class; all names are read before the first is given."""
        with Folder.opened(self) as folder:
            names = os.listdir(folder.handle)  # noqa: PTH208 - the handle's
        return (self / name for name in names)

    def mkdir(
        self,
        mode: int = 0o777,
        parents: bool = False,  # noqa: FBT001, FBT002 - as the base class
        exist_ok: bool = False,  # noqa: FBT001, FBT002
    ) -> None:
        """See base class."""
        try:
            with Folder.opened(self.parent) as above:
                os.mkdir(self.name, mode, dir_fd=above.handle)
        except FileNotFoundError:
            if not parents or self.parent == self:
                raise
            self.parent.mkdir(parents=True, exist_ok=True)
            self.mkdir(mode, exist_ok=exist_ok)
        except FileExistsError:
            if not exist_ok or not self.is_dir():
                raise

    def unlink(self, missing_ok: bool = False) -> None:  # noqa: FBT001, FBT002 - as the base class
        """See base class."""
        try:
            with Folder.opened(self.parent) as above:
                above.remove(self.name)
        except FileNotFoundError:
            if not missing_ok:
                raise

    def rmdir(self) -> None:
        """See base class."""
        with Folder.opened(self.parent) as above:
            os.rmdir(self.name, dir_fd=above.handle)

    def rename(self, target: str | os.PathLike[str]) -> Self:
        """See base class."""
        new = type(self)(target)
        with Folder.opened(self.parent) as above, Folder.opened(new.parent) as there:
            os.rename(self.name, new.name, src_dir_fd=above.handle, dst_dir_fd=there.handle)
        return new

    replace = rename

    def chmod(self, mode: int, *, follow_symlinks: bool = True) -> None:
        """See base class; a link is refused."""
        del follow_symlinks
        self.stat()
        handle = open_held(self, os.O_PATH)
        try:
            os.chmod(f"/proc/self/fd/{handle}", mode)  # noqa: PTH101 - of what was opened
        finally:
            os.close(handle)

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


@contextmanager
def holding(directory: Path) -> Iterator[HeldPath]:
    """Hold a directory while the block lasts, or go on with the handle that there is.

    For who reads: the name may be a link, as a person gave it; it is followed once.

    Raises:
        OSError: It cannot be opened, or is no directory.
    """
    root = str(directory.absolute())
    if root in _HANDLES:
        yield HeldPath(root)
        return
    _HANDLES[root] = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield HeldPath(root)
    finally:
        release(directory)


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
