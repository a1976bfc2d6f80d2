# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A directory of signed files, wherever it lies.

Rules that every kind of storage keeps:

1. names are plain and below one root; nothing is followed out of it;
2. a reader gets bytes at an offset and the size that the store has; what they are worth is decided
   above, by hashes;
3. the statement is written last. Locally the directory is then renamed to its free name at once;
   in an object store, which cannot rename, the statement's appearance is the commit: before it
   there is nothing that a loader would take (`bucket.py` says how that is kept to);
4. nothing is overwritten.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol, runtime_checkable

from securetrain.core.files import FileEntry, UnsafeEntry


class Source(Protocol):
    """An open file."""

    size: int
    linked: bool
    """Whether the file has a second name, by which it could change."""
    whole: bool
    """Whether one large read costs less than many small ones."""

    def read_into(self, view: memoryview, offset: int) -> None:
        """Fill `view`; EOFError when the file ends first."""

    def close(self) -> None:
        """Give it back."""


class Sink(Protocol):
    """A file that is being written from front to back."""

    def write(self, data: memoryview) -> None:
        """Append all of `data`."""


class Staging(Protocol):
    """A directory in the making."""

    @property
    def name(self) -> str:
        """For messages."""

    def begin(self) -> None:
        """Make it; FileExistsError when its name is taken. Called once, by the coordinator."""

    def create(self, name: str) -> AbstractContextManager[Sink]:
        """A new file, durable when the block ends well."""

    def put(self, name: str, data: bytes) -> None:
        """A new small file, whole or absent."""

    def size(self, name: str) -> int | None:
        """The size of a file; None when it is not there."""

    def commit(self) -> None:
        """Give the finished directory its name; FileExistsError when that is taken."""

    def discard(self) -> None:
        """Remove what was written, unless it has been committed."""


@runtime_checkable
class Storage(Protocol):
    """One directory, there or not."""

    @property
    def name(self) -> str:
        """For messages."""

    @property
    def base(self) -> str:
        """Its own name, without what is above it."""

    def unsafe(self) -> str:
        """The reason why the directory itself may not be read; empty when it may."""

    def exists(self) -> bool:
        """Tell whether anything is at this place."""

    def has(self, name: str) -> bool:
        """Tell whether a file of this name is in it."""

    def survey(self) -> tuple[list[FileEntry], list[UnsafeEntry]]:
        """Everything below it; OSError when it cannot be listed."""

    def open(self, name: str) -> Source:
        """Open a file. FileNotFoundError, OSError; UsageError when it is no regular file."""

    def read(self, name: str, limit: int) -> bytes:
        """A small file; UsageError when it is larger or cannot be read."""

    def staging(self, save_id: str) -> Staging:
        """The place where a save with this id is built."""

    def exchange(self, name: str, data: bytes, before: bytes | None) -> None:
        """Put a small file in place of `before`, whole or not at all; None: where there is none.

        FileExistsError when something else lies there, where the store can tell; elsewhere the
        caller holds a lock.
        """

    def names(self, folder: str) -> Sequence[str]:
        """The files in a folder inside it, by their paths from here; none without the folder."""

    def siblings(self) -> "list[Storage]":
        """The directories beside this one; OSError when they cannot be listed."""

    def above(self) -> "Storage":
        """The folder that this directory lies in."""
