# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""One rank's data file: tensors written and hashed in one pass.

Small pieces gather in a buffer; large ones go to the file straight from the tensor's memory, while
a helper thread hashes the same memory (both release the interpreter's lock). Tensors start at
multiples of 64 bytes; the gaps are zeros and belong to the tree like everything else.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Final, Protocol

from securetrain.artifacts.tree.index import ALIGNMENT
from securetrain.artifacts.tree.storage import Sink, Staging
from securetrain.core.hashtree import Tree, TreeParams, TreeWriter

BUFFER: Final = 1 << 20
LARGE: Final = 256 << 10


@dataclass(slots=True)
class RankWriter:
    """Writes a file from front to back."""

    sink: Sink
    tree: TreeWriter
    pool: ThreadPoolExecutor
    alignment: int = ALIGNMENT
    size: int = 0
    _buffer: bytearray = field(default_factory=lambda: bytearray(BUFFER))
    _filled: int = 0

    @classmethod
    @contextmanager
    def create(
        cls, staging: Staging, name: str, params: TreeParams, *, alignment: int = ALIGNMENT
    ) -> Iterator["RankWriter"]:
        """Create the file, which must not exist; it is durable when the block ends well."""
        with (
            ThreadPoolExecutor(1, thread_name_prefix="hash") as pool,
            staging.create(name) as sink,
        ):
            writer = cls(sink, TreeWriter(params), pool, alignment)
            yield writer
            writer._flush()

    def write(self, data: memoryview) -> int:
        """Append one tensor's bytes; returns the offset at which they start."""
        self._small(memoryview(bytes(-self.size % self.alignment)))
        start = self.size
        if len(data) < LARGE:
            self._small(data)
        else:
            self._flush()
            self._out(data)
            self.size += len(data)
        return start

    def finish(self) -> Tree:
        """The tree of everything written, after `create`'s block has ended."""
        return self.tree.finish()

    def _small(self, data: memoryview) -> None:
        if self._filled + len(data) > BUFFER:
            self._flush()
        self._buffer[self._filled : self._filled + len(data)] = data
        self._filled += len(data)
        self.size += len(data)

    def _flush(self) -> None:
        if self._filled:
            with memoryview(self._buffer) as view:
                self._out(view[: self._filled])
            self._filled = 0

    def _out(self, data: memoryview) -> None:
        hashing = self.pool.submit(self.tree.update, data)
        try:
            self.sink.write(data)
        finally:
            hashing.result()


class Output(Protocol):
    """Makes the writers of rank files: in this process, or in a helper's."""

    def open(
        self, staging: Staging, name: str, params: TreeParams, alignment: int
    ) -> AbstractContextManager["FileWriter"]:
        """A writer of a new file; the file is durable when the block ends well."""


class FileWriter(Protocol):
    """Takes one file from front to back."""

    def write(self, data: memoryview) -> int:
        """Append bytes at the next aligned offset, which is returned."""

    def finish(self) -> Tree:
        """The tree of everything written, after the block has ended."""


class InThisProcess:
    """Writes and hashes in threads of this process."""

    def open(
        self, staging: Staging, name: str, params: TreeParams, alignment: int
    ) -> AbstractContextManager[FileWriter]:
        """See `Output`."""
        return RankWriter.create(staging, name, params, alignment=alignment)
