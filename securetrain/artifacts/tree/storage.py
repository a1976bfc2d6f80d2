# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The places of signed directories: a local directory, or a prefix in an object store.

Everything that reads or writes artifacts speaks to a `Storage`; what each kind keeps to is said in
`directory.py`. Here are the directories of this machine, and the one place that knows every kind:
`storage_of` finds the storage that a path or URL names.

The disk begins while a file is still being written and hashed (`begin_writeback`). Without it the
disk idles until the final fsync, which then waits for everything. What is begun early counts for
nothing: durable is a file when its fsync has returned without an error, which also tells of errors
of what was begun early.
"""

import ctypes
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

from securetrain.artifacts.tree import lease
from securetrain.artifacts.tree.directory import Sink, Source, Staging, Storage
from securetrain.core.errors import UsageError
from securetrain.core.files import (
    PUBLIC_FILE,
    FileEntry,
    UnsafeEntry,
    commit_dir,
    open_regular,
    read_file,
    survey,
    write_atomic,
)

PIECE: Final = 8 << 20
"""Bytes that are written before the disk is told."""
_WRITE: Final = 2  # SYNC_FILE_RANGE_WRITE: begin, and wait for nothing


@cache
def _sync_file_range() -> Any:
    """sync_file_range of the C library; None where there is none."""
    try:
        found = ctypes.CDLL(None).sync_file_range
    except (OSError, AttributeError):
        return None
    found.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    found.restype = ctypes.c_int
    return found


def begin_writeback(fd: int, offset: int, length: int) -> None:
    """Begin to write a stretch of a file to the disk. A hint: a refusal changes nothing."""
    function = _sync_file_range()
    if function is not None:
        function(fd, offset, length, _WRITE)


__all__ = [
    "LocalStaging",
    "LocalStorage",
    "Place",
    "Sink",
    "Source",
    "Staging",
    "Storage",
    "local_path",
    "shown",
    "storage_of",
]


@dataclass(slots=True)
class FdSource:
    """A descriptor of a regular file."""

    fd: int
    size: int
    linked: bool
    whole: bool = False

    def read_into(self, view: memoryview, offset: int) -> None:
        """See `Source`."""
        done = 0
        while done < len(view):
            count = os.preadv(self.fd, [view[done:]], offset + done)
            if count == 0:
                raise EOFError
            done += count

    def close(self) -> None:
        """See `Source`."""
        os.close(self.fd)


@dataclass(slots=True)
class FdSink:
    """A descriptor that is written to."""

    fd: int
    durable: bool = False
    """Whether the disk begins at once, because an fsync follows."""
    at: int = 0

    def write(self, data: memoryview) -> None:
        """See `Sink`."""
        done = 0
        while done < len(data):
            count = os.write(self.fd, data[done : done + PIECE])
            if self.durable:
                begin_writeback(self.fd, self.at, count)
            self.at += count
            done += count


@dataclass(frozen=True, slots=True)
class LocalStaging:
    """A temporary directory beside the final one."""

    folder: Path
    final: Path
    durable: bool = True

    @property
    def name(self) -> str:
        """See `Staging`."""
        return str(self.folder)

    def begin(self) -> None:
        """See `Staging`."""
        if self.final.exists() or self.final.is_symlink():
            raise FileExistsError(str(self.final))
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        lease.take(self.folder)
        try:
            self.folder.mkdir()
        except BaseException:
            lease.release(self.folder)
            raise

    @contextmanager
    def create(self, name: str, *, later: bool = False) -> Iterator[Sink]:
        """See `Staging`; `later`, when the directory is committed, it is durable."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(self.folder / name, flags, PUBLIC_FILE)
        try:
            yield FdSink(fd, self.durable)
            if self.durable and not later:
                os.fsync(fd)
        finally:
            os.close(fd)

    def put(self, name: str, data: bytes) -> None:
        """See `Staging`.

        The process that commits makes small files durable then, before the directory gets its name:
        the disk has begun with all of them, and one commit of its journal does for all. Another
        one's file is durable at once: it may be another machine's.
        """
        temporary = f".{name}.tmp-{os.urandom(6).hex()}"
        with self.create(temporary, later=lease.is_held(self.folder)) as sink:
            sink.write(memoryview(data))
        (self.folder / temporary).replace(self.folder / name)

    def size(self, name: str) -> int | None:
        """See `Staging`."""
        try:
            return (self.folder / name).stat().st_size
        except FileNotFoundError:
            return None

    def commit(self) -> None:
        """See `Staging`."""
        with lease.committing(self.folder):
            if self.durable:
                try:
                    commit_dir(self.folder, self.final)
                except UsageError as error:
                    if error.code == "ST-USAG-005":
                        raise FileExistsError(str(self.final)) from error
                    raise
            else:
                if self.final.exists() or self.final.is_symlink():
                    raise FileExistsError(str(self.final))
                self.folder.rename(self.final)

    def discard(self) -> None:
        """See `Staging`."""
        lease.remove(self.folder)


@dataclass(frozen=True, slots=True)
class LocalStorage:
    """A directory of this machine, or of a file system that it has mounted."""

    path: Path
    durable: bool = True
    """Whether what is written is flushed to the disk before it counts."""

    @property
    def name(self) -> str:
        """See `Storage`."""
        return str(self.path)

    @property
    def base(self) -> str:
        """See `Storage`."""
        return self.path.name

    def unsafe(self) -> str:
        """See `Storage`."""
        return "a symbolic link, which is never followed" if self.path.is_symlink() else ""

    def exists(self) -> bool:
        """See `Storage`."""
        return self.path.exists() or self.path.is_symlink()

    def has(self, name: str) -> bool:
        """See `Storage`."""
        return (self.path / name).exists() or (self.path / name).is_symlink()

    def survey(self) -> tuple[list[FileEntry], list[UnsafeEntry]]:
        """See `Storage`."""
        return survey(self.path)

    def open(self, name: str) -> Source:
        """See `Storage`."""
        path = self.path / name
        try:
            fd = open_regular(path)
        except OSError as error:
            if path.is_symlink():
                raise UsageError(
                    "ST-USAG-002", "a symbolic link", str(path), "put the file itself there"
                ) from error
            raise
        info = os.fstat(fd)
        return FdSource(fd, info.st_size, linked=info.st_nlink != 1)

    def read(self, name: str, limit: int) -> bytes:
        """See `Storage`."""
        return read_file(self.path / name, limit)

    def staging(self, save_id: str) -> Staging:
        """See `Storage`."""
        folder = self.path.with_name(f"{self.path.name}.tmp-{save_id}")
        return LocalStaging(folder, self.path, self.durable)

    def exchange(self, name: str, data: bytes, before: bytes | None) -> None:
        """See `Storage`."""
        del before  # whoever exchanges holds the folder's lock
        write_atomic(self.path / name, data)

    def names(self, folder: str) -> Sequence[str]:
        """See `Storage`; what lies behind a link is none of it."""
        path = self.path / folder
        there = path.is_dir() and not path.is_symlink()
        return [f"{folder}/{one.name}" for one in (survey(path)[0] if there else ())]

    def siblings(self) -> list[Storage]:
        """See `Storage`."""
        folder = self.path.absolute().parent
        if not folder.is_dir():
            return []
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        return [LocalStorage(folder / name) for name in sorted(names) if name != self.path.name]

    def above(self) -> "LocalStorage":
        """See `Storage`."""
        return LocalStorage(self.path.absolute().parent, self.durable)


LOCAL_SCHEMES: Final = ("file", "local")
STORES: Final = ("s3", "gs", "az")

Place: TypeAlias = Annotated[
    Path | str | Storage, "the path of a directory, or the URL of one: s3://bucket/run/step-100"
]
"""A directory as a caller names it: a path, a URL such as ``s3://bucket/run/step-100``, or a
storage that was made before."""


def storage_of(place: Place) -> Storage:
    """The storage that a path or URL names.

    Raises:
        UsageError: ST-USAG-004 when the URL needs a package that is not installed, ST-USAG-001 when
            it names no place or no store that is known, ST-USAG-023 when its store would be asked
            without TLS.
    """
    if isinstance(place, Path):
        return LocalStorage(place)
    if not isinstance(place, str):
        return place
    path = local_path(place)
    if path is not None:
        return LocalStorage(path)
    scheme = place.partition("://")[0]
    if scheme not in STORES:
        raise UsageError(
            "ST-USAG-001",
            f"no store of the scheme {scheme}:// is known",
            place,
            f"name a path, or one of {'://, '.join(STORES)}://; copy from elsewhere first",
        )
    from securetrain.artifacts.tree.bucket import BucketStorage  # noqa: PLC0415 - ssl and http

    return BucketStorage.open_url(place)


def local_path(place: str) -> Path | None:
    """The path that a path or a URL of this machine's files names; None for other URLs.

    Such a URL is a path, so that no link is followed.
    """
    scheme, found, rest = place.partition("://")
    if not found:
        return Path(place)
    return Path(rest) if scheme in LOCAL_SCHEMES and "::" not in rest else None


def shown(place: Place) -> Path | str:
    """A place as it is shown and given back: a path of this machine, or a URL."""
    if isinstance(place, Path):
        return place
    storage = storage_of(place)
    return storage.path if isinstance(storage, LocalStorage) else storage.name
