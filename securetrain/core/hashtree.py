# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Two-level hash trees over byte strings.

A tree cuts data into leaves of a fixed size, and the list of leaf hashes into pages of
``PAGE_LEAVES``. Rules that make a root mean one thing only:

1. leaf, page and root hashes are domain-separated and name algorithm and leaf size;
2. a leaf hash binds its index, a page hash its number, the root the total size: moving, swapping,
   truncating or appending changes the root. All that is in a trailer of fixed length behind the
   data: before it, the data would not lie on the borders at which BLAKE3 works on many blocks at
   once, which costs a quarter of the time of a small leaf;
3. the leaf table (32 bytes a leaf) lies beside the data; only the root is signed. A reader checks
   the page that it needs against the page hashes, those against the root, and then the leaf.
"""

import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, TypeAlias

from blake3 import blake3

Buffer: TypeAlias = bytes | bytearray | memoryview

DIGEST_SIZE: Final = 32
PAGE_LEAVES: Final = 2048
CHECKPOINT_LEAF: Final = 1 << 20
DATASET_LEAF: Final = 64 << 10
MAX_LEAF: Final = 16 << 20

_TRAILER: Final = struct.Struct("<24sQQ")
_LEAF: Final = b"securetrain/tree/2/leaf"
_PAGE: Final = b"securetrain/tree/2/page"
_ROOT: Final = b"securetrain/tree/2/root"


class HashAlgorithm(StrEnum):
    """BLAKE3 by default; SHA-256 for FIPS environments (the same tree over another function)."""

    BLAKE3 = "blake3"
    SHA256 = "sha256"


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeParams:
    """The parameters of a tree; part of every signed file entry."""

    algorithm: HashAlgorithm = HashAlgorithm.BLAKE3
    leaf_size: int = CHECKPOINT_LEAF
    """Bytes of data under one leaf: a power of two, 1 KiB to 16 MiB."""

    def __post_init__(self) -> None:
        if not 1024 <= self.leaf_size <= MAX_LEAF or self.leaf_size & (self.leaf_size - 1):
            raise ValueError(f"leaf_size {self.leaf_size}: a power of two from 1 KiB to 16 MiB")

    def hasher(self) -> Any:
        """A hash object that has taken in nothing; `close` ends it."""
        match self.algorithm:
            case HashAlgorithm.BLAKE3:
                return blake3()
            case HashAlgorithm.SHA256:
                return hashlib.sha256()
            case _:
                raise ValueError(f"unknown hash algorithm {self.algorithm!r}")

    def close(self, state: Any, domain: bytes, number: int) -> bytes:
        """The digest of what `state` has taken in: domain, leaf size and position behind it."""
        state.update(_TRAILER.pack(domain, self.leaf_size, number))
        digest: bytes = state.digest()
        return digest

    def leaf(self, index: int, data: Buffer) -> bytes:
        """The hash of leaf number `index`."""
        return self._hash(_LEAF, index, data)

    def page(self, number: int, leaves: Buffer) -> bytes:
        """The hash of page `number` of the leaf table (`leaves`: its leaf hashes, concatenated)."""
        return self._hash(_PAGE, number, leaves)

    def root(self, size: int, pages: Buffer) -> bytes:
        """The root over all page hashes for data of `size` bytes."""
        return self._hash(_ROOT, size, pages)

    def _hash(self, domain: bytes, number: int, data: Buffer) -> bytes:
        state = self.hasher()
        state.update(data)
        return self.close(state, domain, number)

    def num_leaves(self, size: int) -> int:
        """Count the leaves of `size` bytes of data (empty data has none)."""
        return -(-size // self.leaf_size)


def pages_of(params: TreeParams, leaves: Buffer) -> bytes:
    """All page hashes of a leaf table, concatenated."""
    return b"".join(params.page(n, page) for n, page in enumerate(_cut(leaves)))


def root_of(params: TreeParams, size: int, leaves: Buffer) -> bytes:
    """The root of data of `size` bytes whose leaf table is `leaves`.

    Raises:
        ValueError: the table has another length than `size` asks for.
    """
    if len(leaves) != params.num_leaves(size) * DIGEST_SIZE:
        raise ValueError(f"a leaf table of {len(leaves)} bytes does not fit data of {size} bytes")
    return params.root(size, pages_of(params, leaves))


def _cut(leaves: Buffer) -> Iterator[memoryview]:
    view = memoryview(leaves)
    step = PAGE_LEAVES * DIGEST_SIZE
    for start in range(0, len(view), step):
        yield view[start : start + step]


@dataclass(slots=True)
class TreeWriter:
    """Hashes a stream while it is written: `update` in any pieces, then `root` and `leaves`."""

    params: TreeParams
    size: int = 0
    _leaves: bytearray = field(default_factory=bytearray)
    _state: Any = None
    _filled: int = 0

    def update(self, data: Buffer) -> None:
        """Take in the next bytes."""
        view = memoryview(data).cast("B")
        self.size += len(view)
        leaf = self.params.leaf_size
        at = self._fill(view[: leaf - self._filled]) if self._filled else 0
        while len(view) - at >= leaf:
            index = len(self._leaves) // DIGEST_SIZE
            self._leaves += self.params.leaf(index, view[at : at + leaf])
            at += leaf
        if at < len(view):
            self._fill(view[at:])

    def _fill(self, piece: memoryview) -> int:
        """Take in a part of a leaf; how much it was."""
        if self._state is None:
            self._state = self.params.hasher()
        self._state.update(piece)
        self._filled += len(piece)
        if self._filled == self.params.leaf_size:
            self._close_leaf()
        return len(piece)

    def _close_leaf(self) -> None:
        index = len(self._leaves) // DIGEST_SIZE
        self._leaves += self.params.close(self._state, _LEAF, index)
        self._state = None
        self._filled = 0

    def finish(self) -> "Tree":
        """Close the last leaf and return the tree."""
        if self._filled:
            self._close_leaf()
        leaves = bytes(self._leaves)
        return Tree(self.params, self.size, leaves, root_of(self.params, self.size, leaves))


@dataclass(frozen=True, slots=True)
class Tree:
    """A finished tree: `leaves` is the table to store beside the data, `root` gets signed."""

    params: TreeParams
    size: int
    leaves: bytes
    root: bytes
