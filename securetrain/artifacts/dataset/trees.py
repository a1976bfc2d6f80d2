# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Hashing a dataset's files and writing their trees, wherever the files come from."""

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from securetrain.artifacts.statement.dataset_predicate import DataFile, Stage
from securetrain.artifacts.tree.layout import Kind
from securetrain.core.files import open_regular, write_atomic
from securetrain.core.hashtree import Tree, pages_of

READ_BYTES: Final = 1 << 20

Progress: TypeAlias = Callable[[int, int], None]
"""Called with the bytes done so far and the bytes in all (0 when that is not known)."""


def pieces(path: Path) -> Iterator[memoryview]:
    """A file's bytes, read once. Each piece is good until the next one is asked for.

    Raises:
        UsageError: ST-USAG-002 when it is not a regular file, or a link.
    """
    buffer = memoryview(bytearray(READ_BYTES))
    fd = open_regular(path)
    try:
        while count := os.readv(fd, [buffer]):
            yield buffer[:count]
    finally:
        os.close(fd)


def keep_tree(
    root: Path, name: str, tree: Tree, *, added: int = 0, before: Sequence[Stage] = ()
) -> DataFile:
    """Write a data file's page and leaf hashes; what is signed of the file."""
    table = root / Kind.DATASET.table_of(name)
    table.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(table, pages_of(tree.params, tree.leaves) + tree.leaves)
    return DataFile(
        name=name, size=tree.size, root=tree.root.hex(), added=added, before=list(before)
    )
