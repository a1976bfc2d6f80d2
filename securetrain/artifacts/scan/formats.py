# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Tell the format of bytes: by their first bytes, never by their name alone.

A name only decides whether bytes without a signature must be a sound pickle (of protocol 0 or 1, as
loaders take them for), or merely must not be an unsafe one.
"""

import re
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Final

from securetrain.artifacts.scan.window import Window

HEAD: Final = 512


class Format(StrEnum):
    """The formats that the scanner tells apart."""

    PICKLE = "pickle"
    ZIP = "zip archive"
    TAR = "tar archive"
    NUMPY = "numpy array"
    SAFETENSORS = "safetensors"
    GZIP = "gzip"
    BZIP2 = "bzip2"
    XZ = "xz"
    PACKED = "packed in a way that is not unpacked here"
    HDF5 = "HDF5"
    GGUF = "GGUF"
    ELF = "machine code"
    UNKNOWN = "unknown"


PICKLE_NAMES: Final = frozenset(
    {
        ".ckpt", ".dill", ".distcp", ".joblib", ".metadata", ".p", ".pickle", ".pk", ".pkl", ".pt",
        ".pth", ".pyd", ".t7", ".th",
    }
)  # fmt: skip
"""Suffixes under which frameworks unpickle what they find, and under which nothing else is kept."""

_MAGIC: Final[tuple[tuple[bytes, Format], ...]] = (
    (b"PK\x03\x04", Format.ZIP),
    (b"PK\x05\x06", Format.ZIP),
    (b"\x93NUMPY", Format.NUMPY),
    (b"\x1f\x8b", Format.GZIP),
    (b"BZh", Format.BZIP2),
    (b"\xfd7zXZ\x00", Format.XZ),
    (b"\x28\xb5\x2f\xfd", Format.PACKED),
    (b"\x04\x22\x4d\x18", Format.PACKED),
    (b"7z\xbc\xaf\x27\x1c", Format.PACKED),
    (b"Rar!\x1a\x07", Format.PACKED),
    (b"\x89HDF\r\n\x1a\n", Format.HDF5),
    (b"GGUF", Format.GGUF),
    (b"\x7fELF", Format.ELF),
)
_TAR_MAGIC: Final = slice(257, 262)
_PROTOCOL: Final = re.compile(rb"\x80[\x00-\x05]")
"""Loaders refuse other versions; hashes and other random bytes begin so now and then."""
_ZLIB: Final = re.compile(rb"\x78[\x01\x5e\x9c\xda]")
"""joblib packs pickles with zlib."""


def recognise(window: Window, name: str) -> Format:
    """The format of a window's bytes; `name` is what the file or member is called."""
    head = window.peek(0, HEAD)
    for magic, found in _MAGIC:
        if head.startswith(magic):
            return found
    if head[_TAR_MAGIC] == b"ustar":
        return Format.TAR
    if _is_safetensors(window, head):
        return Format.SAFETENSORS
    if _PROTOCOL.match(head):
        return Format.PICKLE
    if is_pickle_name(name):
        return Format.PACKED if _ZLIB.match(head) else Format.PICKLE
    return Format.UNKNOWN


def is_pickle_name(name: str) -> bool:
    """Tell whether frameworks unpickle files of that name."""
    path = PurePosixPath(name.lower())
    return path.suffix in PICKLE_NAMES or path.name in PICKLE_NAMES


def _is_safetensors(window: Window, head: bytes) -> bool:
    length = int.from_bytes(head[:8], "little")
    return len(head) > 8 and head[8:9] == b"{" and 2 <= length <= window.size - 8
