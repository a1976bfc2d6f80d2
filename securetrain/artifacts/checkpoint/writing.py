# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""One rank's data file: tensors written and hashed in one pass.

Small pieces gather in a buffer; large ones go to the file straight from the tensor's memory, while
a helper thread hashes the same memory (both release the interpreter's lock). Tensors start at
multiples of 64 bytes; the gaps are zeros and belong to the tree like everything else.
"""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from securetrain.artifacts.index import ALIGNMENT
from securetrain.core.files import PUBLIC_FILE
from securetrain.core.hashtree import Tree, TreeParams, TreeWriter

BUFFER: Final = 1 << 20
LARGE: Final = 256 << 10


@dataclass(slots=True)
class RankWriter:
    """Writes a file from front to back."""

    fd: int
    tree: TreeWriter
    pool: ThreadPoolExecutor
    size: int = 0
    _buffer: bytearray = field(default_factory=lambda: bytearray(BUFFER))
    _filled: int = 0

    @classmethod
    @contextmanager
    def create(cls, path: Path, params: TreeParams) -> Iterator["RankWriter"]:
        """Create the file, which must not exist; it is durable when the block ends well."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(path, flags, PUBLIC_FILE)
        try:
            with ThreadPoolExecutor(1, thread_name_prefix="hash") as pool:
                writer = cls(fd, TreeWriter(params), pool)
                yield writer
                writer._flush()
            os.fsync(fd)
        finally:
            os.close(fd)

    def write(self, data: memoryview) -> int:
        """Append one tensor's bytes; returns the offset at which they start."""
        self._small(memoryview(bytes(-self.size % ALIGNMENT)))
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
            done = 0
            while done < len(data):
                done += os.write(self.fd, data[done:])
        finally:
            hashing.result()
