# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The paths of a log's hashes and entries (https://c2sp.org/tlog-tiles), so that any web server can
serve the folder and any client of that form can read it.

A tile holds up to 256 hashes of one level; level L's are the roots of full tiles of level L - 1.
Entry bundles hold up to 256 entries, each with its length in two bytes. A tile that is not full has
its width in its name, so that nothing that was written is ever changed.

Rules: the tree's size says which file is read and how long it must be; a file of another length is
damaged (ST-IDEN-045), never padded or cut.
"""

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from securetrain.core.errors import IdentityError, UsageError
from securetrain.core.files import read_file
from securetrain.identity.log import merkle

HEIGHT: Final = 8
WIDTH: Final = 1 << HEIGHT
_LENGTH: Final = struct.Struct(">H")
_BUNDLE_LIMIT: Final = WIDTH * (_LENGTH.size + (1 << 16))


def tile_path(level: int | None, index: int, width: int) -> Path:
    """The path of a tile below the log's folder; level None is that of the entries."""
    parts = [f"{index % 1000:03d}"]
    while index >= 1000:
        index //= 1000
        parts.append(f"x{index % 1000:03d}")
    path = Path("tile", "entries" if level is None else str(level), *reversed(parts))
    return path if width == WIDTH else path.with_name(f"{path.name}.p") / str(width)


def width_of(level: int, index: int, size: int) -> int:
    """The number of hashes of the tile in a tree of `size`; 0 when there is no such tile."""
    return max(0, min(WIDTH, (size >> (HEIGHT * level)) - index * WIDTH))


class TileReader:
    """The hashes and entries of a tree of one size. Tiles are read once."""

    def __init__(self, folder: Path, size: int) -> None:
        """Read nothing yet."""
        self._folder = folder
        self._size = size
        self._tiles: dict[tuple[int, int], bytes] = {}

    def preload(self, tiles: Mapping[tuple[int, int], bytes]) -> None:
        """Use these tiles instead of what is stored, by (level, index)."""
        self._tiles.update(tiles)

    def hash(self, level: int, index: int) -> bytes:
        """The root of a complete subtree; what `merkle` asks for.

        Raises:
            IdentityError: ST-IDEN-045.
        """
        tile_level, height = divmod(level, HEIGHT)
        first = index << height
        tile = self.tile(tile_level, first // WIDTH)
        start = first % WIDTH * merkle.HASH_SIZE
        row = tile[start : start + (merkle.HASH_SIZE << height)]
        if len(row) != merkle.HASH_SIZE << height:
            raise damaged("a tile ends before the tree does", str(self._folder))
        return row_root(row)

    def tile(self, level: int, index: int) -> bytes:
        """The hashes of a tile, exactly as many as the size calls for.

        Raises:
            IdentityError: ST-IDEN-045.
        """
        if (level, index) not in self._tiles:
            width = width_of(level, index, self._size)
            data, is_full = self._read(level, index, width, WIDTH * merkle.HASH_SIZE)
            wanted = (WIDTH if is_full else width) * merkle.HASH_SIZE
            self._tiles[level, index] = data[: width * merkle.HASH_SIZE]
            if len(data) != wanted:
                path = self._folder / tile_path(level, index, width)
                raise damaged(f"a tile of {len(data)} bytes, not {wanted}", str(path))
        return self._tiles[level, index]

    def entries(self, index: int) -> list[bytes]:
        """The entries of a bundle, exactly as many as the size calls for.

        Raises:
            IdentityError: ST-IDEN-045.
        """
        width = width_of(0, index, self._size)
        data, is_full = self._read(None, index, width, _BUNDLE_LIMIT)
        entries = unpack_bundle(data, str(self._folder / tile_path(None, index, width)))
        if len(entries) != (WIDTH if is_full else width):
            raise damaged(f"bundle {index} has {len(entries)} entries", str(self._folder))
        return entries[:width]

    def _read(self, level: int | None, index: int, width: int, limit: int) -> tuple[bytes, bool]:
        """The file of a tile, and whether it is the full one."""
        path = self._folder / tile_path(level, index, width)
        full = self._folder / tile_path(level, index, WIDTH)
        if width < WIDTH and not path.exists():
            # A partial tile may be gone once the tile is full, which begins with it.
            path = full
        try:
            return read_file(path, limit), path == full
        except UsageError as error:
            raise damaged(error.what, error.where) from error


def row_root(row: bytes) -> bytes:
    """The root over a row of hashes; their number is a power of two."""
    hashes = [row[i : i + merkle.HASH_SIZE] for i in range(0, len(row), merkle.HASH_SIZE)]
    while len(hashes) > 1:
        pairs = zip(hashes[::2], hashes[1::2], strict=True)
        hashes = [merkle.node_hash(left, right) for left, right in pairs]
    return hashes[0]


def pack_bundle(entries: list[bytes]) -> bytes:
    """A bundle's bytes."""
    return b"".join(_LENGTH.pack(len(entry)) + entry for entry in entries)


def unpack_bundle(data: bytes, where: str = "") -> list[bytes]:
    """The entries of a bundle.

    Raises:
        IdentityError: ST-IDEN-045.
    """
    entries: list[bytes] = []
    position = 0
    while position < len(data):
        if len(entries) == WIDTH or position + _LENGTH.size > len(data):
            raise damaged("a bundle with too many entries, or one that is cut off", where)
        (length,) = _LENGTH.unpack_from(data, position)
        position += _LENGTH.size + length
        if position > len(data):
            raise damaged("a bundle that is cut off", where)
        entries.append(data[position - length : position])
    return entries


def damaged(what: str, where: str) -> IdentityError:
    """ST-IDEN-045."""
    return IdentityError("ST-IDEN-045", what, where)
