# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Signed directories in object stores, through fsspec (``gs://``, ``memory://`` ...).

S3 has a module of its own (`s3.py`). fsspec has no way to say "only if absent", which a store
without renames needs. What that costs is said in docs/explanation/limits.md: an interrupted save
leaves files without a statement under the final name (no loader takes them, and the next save there
is refused until somebody removes them), and two jobs that save to one name at the same moment can
spoil each other's files, which loading then refuses.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from securetrain.artifacts.tree.directory import Sink, Source, Staging, Storage
from securetrain.artifacts.tree.layout import STATEMENT
from securetrain.core.errors import UsageError
from securetrain.core.files import FileEntry, UnsafeEntry, unsafe_name


def asked(method: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """The answer of a store.

    Raises:
        OSError: it refuses, or cannot be reached; each package of a store has errors of its own.
    """
    try:
        return method(*args, **options)
    except OSError:
        raise
    except Exception as error:
        raise OSError(f"{type(error).__name__}: {error}") from error


@dataclass(slots=True)
class _ObjectSource:
    """Ranged reads of one object."""

    fs: Any
    path: str
    size: int
    linked: bool = False
    whole: bool = True

    def read_into(self, view: memoryview, offset: int) -> None:
        """See `Source`."""
        if not len(view):
            return
        data = asked(self.fs.cat_file, self.path, start=offset, end=offset + len(view))
        if len(data) > len(view):
            raise OSError(f"the store sent {len(data)} bytes, {len(view)} were asked for")
        if len(data) < len(view):
            raise EOFError
        view[:] = data

    def close(self) -> None:
        """Nothing is held."""


@dataclass(slots=True)
class _ObjectSink:
    """One upload."""

    file: Any

    def write(self, data: memoryview) -> None:
        """See `Sink`."""
        self.file.write(data)


@dataclass(frozen=True, slots=True)
class _ObjectStaging:
    """Files go to their final names; the statement comes last and is the commit."""

    storage: "FsspecStorage"
    written: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """See `Staging`."""
        return self.storage.name

    def begin(self) -> None:
        """See `Staging`."""
        if self.storage.exists():
            raise FileExistsError(self.name)

    @contextmanager
    def create(self, name: str) -> Iterator[Sink]:
        """See `Staging`."""
        self.written.append(name)
        with self.storage.fs.open(self.storage.place(name), "wb") as file:
            yield _ObjectSink(file)

    def put(self, name: str, data: bytes) -> None:
        """See `Staging`."""
        self.written.append(name)
        asked(self.storage.fs.pipe_file, self.storage.place(name), data)

    def size(self, name: str) -> int | None:
        """See `Staging`."""
        self.storage.forget()
        try:
            return int(asked(self.storage.fs.size, self.storage.place(name)))
        except FileNotFoundError:
            return None

    def commit(self) -> None:
        """The statement, written just before, has committed it."""

    def discard(self) -> None:
        """See `Staging`; what other ranks wrote stays, and is nothing without a statement."""
        self.storage.forget()
        if self.storage.has(STATEMENT):
            return
        for name in self.written:
            with suppress(Exception):
                self.storage.fs.rm_file(self.storage.place(name))


@dataclass(frozen=True, slots=True)
class FsspecStorage:
    """A prefix in a store that fsspec knows."""

    fs: Any
    root: str
    name: str

    @classmethod
    def open_url(cls, url: str) -> "FsspecStorage":
        """The storage of a URL.

        Raises:
            UsageError: ST-USAG-004, ST-USAG-001.
        """
        try:
            from fsspec.core import (  # type: ignore[import-untyped]  # noqa: PLC0415 - an extra's package
                url_to_fs,
            )

            fs, root = url_to_fs(url)
        except ImportError as error:
            raise UsageError("ST-USAG-004", str(error), url.partition("://")[0]) from error
        except (ValueError, TypeError) as error:
            raise UsageError(
                "ST-USAG-001", str(error), "the URL", "write it like gs://b/x"
            ) from error
        return cls(fs, root.rstrip("/"), url.rstrip("/"))

    @property
    def base(self) -> str:
        """See `Storage`."""
        return self.root.rpartition("/")[2]

    def place(self, name: str) -> str:
        """The full name of a file."""
        return f"{self.root}/{name}"

    def forget(self) -> None:
        """Listings are never taken from a cache."""
        self.fs.invalidate_cache()

    def unsafe(self) -> str:
        """See `Storage`."""
        return ""

    def exists(self) -> bool:
        """See `Storage`."""
        self.forget()
        return bool(asked(self.fs.exists, self.root))

    def has(self, name: str) -> bool:
        """See `Storage`."""
        self.forget()
        return bool(asked(self.fs.exists, self.place(name)))

    def survey(self) -> tuple[list[FileEntry], list[UnsafeEntry]]:
        """See `Storage`."""
        self.forget()
        files: list[FileEntry] = []
        unsafe: list[UnsafeEntry] = []
        folded: set[str] = set()
        prefix = f"{self.root.lstrip('/')}/"
        for path, info in sorted(asked(self.fs.find, self.root, detail=True).items()):
            name = str(path).lstrip("/").removeprefix(prefix)
            reason = next(filter(None, map(unsafe_name, name.split("/"))), "")
            if name.casefold() in folded:
                reason = "two names that differ in case only"
            folded.add(name.casefold())
            size = info.get("size")
            if not reason and info.get("islink"):
                reason = "a symbolic link"
            if not reason and (info.get("type") != "file" or not isinstance(size, int)):
                reason = "something that is not a file"
            if reason:
                unsafe.append(UnsafeEntry(name, reason))
            else:
                files.append(FileEntry(name, size))
        return files, unsafe

    def open(self, name: str) -> Source:
        """See `Storage`."""
        info = asked(self.fs.info, self.place(name))
        if info.get("type") != "file" or info.get("islink"):
            raise UsageError("ST-USAG-002", "not a regular file", self.place(name))
        linked = info.get("nlink", 1) != 1
        return _ObjectSource(self.fs, self.place(name), int(info["size"]), linked)

    def read(self, name: str, limit: int) -> bytes:
        """See `Storage`."""
        try:
            source = self.open(name)
            if source.size > limit:
                raise UsageError(
                    "ST-USAG-002",
                    f"larger than the limit of {limit} bytes",
                    self.place(name),
                    "check that it is the right file",
                )
            data = bytearray(source.size)
            source.read_into(memoryview(data), 0)
        except (OSError, EOFError) as error:
            raise UsageError(
                "ST-USAG-002", str(error) or "it ends early", self.place(name)
            ) from error
        return bytes(data)

    def staging(self, save_id: str) -> Staging:
        """See `Storage`."""
        del save_id
        return _ObjectStaging(self)

    def exchange(self, name: str, data: bytes, before: bytes | None) -> None:
        """See `Storage`."""
        del before  # fsspec knows no conditions
        asked(self.fs.pipe_file, self.place(name), data)

    def siblings(self) -> list[Storage]:
        """See `Storage`."""
        self.forget()
        above = self.above()
        try:
            found = asked(self.fs.ls, above.root, detail=True)
        except FileNotFoundError:
            return []
        names = [
            str(entry["name"]).rstrip("/").rpartition("/")[2]
            for entry in found
            if entry["type"] == "directory"
        ]
        return [
            FsspecStorage(self.fs, f"{above.root}/{name}", f"{above.name}/{name}")
            for name in sorted(names)
            if name != self.base
        ]

    def above(self) -> "FsspecStorage":
        """See `Storage`."""
        return FsspecStorage(self.fs, self.root.rpartition("/")[0], self.name.rpartition("/")[0])
