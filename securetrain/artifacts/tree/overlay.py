# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A directory seen with some files added that lie in memory, some hidden, and reads watched.

With it a directory that others have signed in their way is read as if it were signed in ours, and
nothing in it is touched.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from securetrain.artifacts.tree.storage import LocalStorage, Source, Staging, Storage
from securetrain.core.files import FileEntry, UnsafeEntry


@dataclass(slots=True)
class MemorySource:
    """A file in memory."""

    data: bytes
    size: int
    linked: bool = False
    whole: bool = False

    def read_into(self, view: memoryview, offset: int) -> None:
        """See `Source`."""
        piece = self.data[offset : offset + len(view)]
        if len(piece) != len(view):
            raise EOFError
        view[:] = piece

    def close(self) -> None:
        """See `Source`."""


@dataclass(slots=True)
class WatchedSource:
    """A file that is read from front to back; `state` has seen every byte that was handed out."""

    inner: Source
    state: Any
    size: int
    linked: bool
    whole: bool
    _at: int = 0

    def read_into(self, view: memoryview, offset: int) -> None:
        """See `Source`."""
        assert offset == self._at, "watched files are read in order"
        self.inner.read_into(view, offset)
        self.state.update(view)
        self._at += len(view)

    def close(self) -> None:
        """See `Source`."""
        self.inner.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlay:
    """A `Storage` for reading."""

    folder: LocalStorage
    memory: dict[str, bytes] = field(default_factory=dict)
    hidden: frozenset[str] = frozenset()
    """Names that are not there for a reader, with all below them."""
    watched: dict[str, Any] | None = None
    """Given, it gets the SHA-256 state of every file that is read."""

    @property
    def name(self) -> str:
        """See `Storage`."""
        return self.folder.name

    @property
    def base(self) -> str:
        """See `Storage`."""
        return self.folder.base

    def unsafe(self) -> str:
        """See `Storage`."""
        return self.folder.unsafe()

    def exists(self) -> bool:
        """See `Storage`."""
        return self.folder.exists()

    def has(self, name: str) -> bool:
        """See `Storage`."""
        return name in self.memory or (not self._is_hidden(name) and self.folder.has(name))

    def survey(self) -> tuple[list[FileEntry], list[UnsafeEntry]]:
        """See `Storage`."""
        files, unsafe = self.folder.survey()
        files = [
            file
            for file in files
            if file.name not in self.memory and not self._is_hidden(file.name)
        ]
        unsafe = [entry for entry in unsafe if not self._is_hidden(entry.name)]
        files += [FileEntry(name, len(data)) for name, data in self.memory.items()]
        return files, unsafe

    def open(self, name: str) -> Source:
        """See `Storage`."""
        if name in self.memory:
            return MemorySource(self.memory[name], len(self.memory[name]))
        if self._is_hidden(name):
            raise FileNotFoundError(name)
        inner = self.folder.open(name)
        if self.watched is None:
            return inner
        state = self.watched[name] = hashlib.sha256()
        return WatchedSource(inner, state, inner.size, inner.linked, inner.whole)

    def read(self, name: str, limit: int) -> bytes:
        """See `Storage`."""
        if name in self.memory:
            return self.memory[name]
        data = self.folder.read(name, limit)
        if self.watched is not None:
            self.watched[name] = hashlib.sha256(data)
        return data

    def _is_hidden(self, name: str) -> bool:
        while name and name not in self.hidden:
            name = name.rpartition("/")[0]
        return bool(name)

    def staging(self, save_id: str) -> Staging:
        """Nothing is written here."""
        raise NotImplementedError(save_id)

    def exchange(self, name: str, data: bytes, before: bytes | None) -> None:
        """Nothing is written here."""
        raise NotImplementedError(name)

    def names(self, folder: str) -> Sequence[str]:
        """See `Storage`."""
        return self.folder.names(folder)

    def siblings(self) -> list[Storage]:
        """See `Storage`."""
        return self.folder.siblings()

    def above(self) -> Storage:
        """See `Storage`."""
        return self.folder.above()
