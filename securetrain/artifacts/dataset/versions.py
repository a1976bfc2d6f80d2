# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The word of a dataset's later version on earlier ones: what was removed, and what has grown.

`Removals` are bytes that must not be read any more (tombstones). What has to go, because a person
asked for it or because it was poisoned, cannot simply vanish from a signed file. The next version
of the statement names the bytes, and from then on no reader of ours hands them out; a read that
touches one of them is refused.

`check_growth` shows by its tree, page by page, that a file begins with what it was. A signed file
entry names what the file was in earlier versions. What it was is made again from the tree that it
has now, as in a consistency proof of RFC 6962: the pages that were full are the same pages; of the
page where it ended, the leaf hashes before the end; and the leaf in which it ended is hashed again,
up to that byte. Those lead to the old root, or the file is refused. So one page of hashes and one
leaf of data are read for each earlier version, however long the file is.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from securetrain.artifacts.statement.dataset_predicate import DataFile, Removed, Stage
from securetrain.artifacts.statement.reading import SignedFile
from securetrain.artifacts.tree.layout import Problem
from securetrain.core.errors import IntegrityError
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


@dataclass(slots=True)
class Removals:
    """The removed stretches, by file."""

    _starts: dict[str, list[int]] = field(default_factory=dict)
    _stretches: dict[str, list[Removed]] = field(default_factory=dict)

    @classmethod
    def of(cls, removed: Sequence[Removed]) -> "Removals":
        """Those of a verified statement, which are sorted and do not overlap."""
        found = cls()
        for one in removed:
            found._starts.setdefault(one.file, []).append(one.offset)
            found._stretches.setdefault(one.file, []).append(one)
        return found

    def __bool__(self) -> bool:
        return bool(self._starts)

    def touching(self, file: str, offset: int, length: int) -> Removed | None:
        """The first removed stretch that shares a byte with a range; None when there is none."""
        starts = self._starts.get(file)
        if starts is None or length == 0:
            return None
        at = bisect_right(starts, offset) - 1
        for one in self._stretches[file][max(at, 0) : at + 2]:
            if one.offset < offset + length and offset < one.offset + one.length:
                return one
        return None

    def kept(self, file: str, size: int) -> list[tuple[int, int]]:
        """Begin and end of the stretches of a file that may be read."""
        stretches, at = [], 0
        for one in self._stretches.get(file, []):
            stretches.append((at, one.offset))
            at = one.offset + one.length
        stretches.append((at, size))
        return [(begin, end) for begin, end in stretches if begin < end]

    def check(self, file: str, offset: int, length: int, where: str) -> None:
        """Refuse a read that touches what was removed.

        Raises:
            IntegrityError: ST-DATA-122.
        """
        one = self.touching(file, offset, length)
        if one is not None:
            what = f"sample {one.sample}" if one.sample else f"{one.length} bytes"
            because = f": {one.reason}" if one.reason else ""
            raise IntegrityError(
                "ST-DATA-122",
                f"{what} at byte {one.offset} was removed{because}",
                f"{where}/{file}",
            )
