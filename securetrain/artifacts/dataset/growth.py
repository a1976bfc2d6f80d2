# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Show by its tree, page by page, that a file which has grown begins with what it was.

A signed file entry names what the file was in earlier versions. What it was is made again from the
tree that it has now, as in a consistency proof of RFC 6962: the pages that were full are the same
pages; of the page where it ended, the leaf hashes before the end; and the leaf in which it ended is
hashed again, up to that byte. Those lead to the old root, or the file is refused. So one page of
hashes and one leaf of data are read for each earlier version, however long the file is.
"""

from collections.abc import Callable

from securetrain.artifacts.statement.dataset_predicate import DataFile, Stage
from securetrain.artifacts.statement.reading import SignedFile
from securetrain.artifacts.tree.problems import Problem
from securetrain.core.hashtree import DIGEST_SIZE, PAGE_LEAVES, Buffer

CODE = "ST-DATA-171"


def check_growth(
    entry: DataFile, file: SignedFile, pages: Buffer, page: Callable[[int], Buffer]
) -> None:
    """Check that a file begins with what it was in every earlier version.

    Args:
        entry: What was signed.
        file: The file as it is now.
        pages: Its page hashes, which lead to the signed root.
        page: The leaf hashes of one page, verified.

    Raises:
        IntegrityError: ST-DATA-171 when it does not; 130, 131 and 200 as for any read.
    """
    for stage in entry.before:
        if _root(stage, file, pages, page).hex() != stage.root:
            what = f"its first {stage.size} bytes are not those of version {stage.added}"
            raise Problem(CODE, what, entry.name).error(file.root.name)


def _root(stage: Stage, file: SignedFile, pages: Buffer, page: Callable[[int], Buffer]) -> bytes:
    """The root of the first bytes of a file."""
    params = file.params
    full, rest = divmod(stage.size, params.leaf_size)
    number, place = divmod(full, PAGE_LEAVES)
    kept = bytes(memoryview(pages)[: number * DIGEST_SIZE])
    if not place and not rest:
        return params.root(stage.size, kept)
    leaves = page(number)
    tail = bytes(memoryview(leaves)[: place * DIGEST_SIZE])
    if rest:
        expected = bytes(memoryview(leaves)[place * DIGEST_SIZE : (place + 1) * DIGEST_SIZE])
        leaf = memoryview(bytearray(file.leaf_range(full)[1]))
        file.read_leaf(full, expected, leaf)
        tail += params.leaf(full, leaf[:rest])
    return params.root(stage.size, kept + params.page(number, tail))
