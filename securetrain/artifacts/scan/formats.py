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
    ZLIB = "zlib"
    PACKED = "packed in a way that is not unpacked here"
    HDF5 = "HDF5"
    GGUF = "GGUF"
    ELF = "machine code"
    ONNX = "ONNX"
    CONFIG = "configuration"
    TEMPLATE = "template"
    NOTEBOOK = "notebook"
    SOURCE = "source of a program"
    MEDIA = "picture or sound"
    TEXT = "text"
    UNKNOWN = "unknown"


PICKLE_NAMES: Final = frozenset(
    {
        ".ckpt", ".dill", ".distcp", ".joblib", ".p", ".pickle", ".pk", ".pkl", ".pt",
        ".pth", ".pyd", ".t7", ".th",
    }
)  # fmt: skip
"""Suffixes under which frameworks unpickle what they find, and under which nothing else is kept."""
INDEX: Final = ".metadata"
"""The whole name of an index of torch.distributed.checkpoint."""
_CONFIG_NAMES: Final = frozenset({".json", ".yaml", ".yml", "mlmodel"})
_SOURCES: Final = frozenset(
    {
        ".py", ".pyw", ".pyc", ".pyx", ".sh", ".bash", ".bat", ".cmd", ".ps1", ".js", ".mjs", ".ts",
        ".c", ".cc", ".cpp", ".cu", ".h", ".hpp", ".rs", ".go", ".java", ".jar", ".class", ".lua",
        ".rb", ".pl", ".r", ".jl", ".wasm", ".whl", ".egg", ".html", ".htm", ".svg", ".xml",
    }
)  # fmt: skip
"""Suffixes of what something runs, or may run, when it is opened."""

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
    (b"\xcf\xfa\xed\xfe", Format.ELF),
    (b"\xce\xfa\xed\xfe", Format.ELF),
    (b"\xca\xfe\xba\xbe", Format.ELF),
    (b"\x89PNG\r\n\x1a\n", Format.MEDIA),
    (b"\xff\xd8\xff", Format.MEDIA),
    (b"GIF8", Format.MEDIA),
    (b"fLaC", Format.MEDIA),
    (b"OggS", Format.MEDIA),
)
_TAR_MAGIC: Final = slice(257, 262)
_PROTOCOL: Final = re.compile(rb"\x80[\x00-\x05]")
"""Loaders refuse other versions; hashes and other random bytes begin so now and then."""
_ONNX: Final = re.compile(rb"\x08[\x03-\x1f](?:[\x12\x1a\x22\x32\x3a\x42]|\x28)", re.DOTALL)
"""The version of the format, then a field of a model (onnx.proto)."""
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
        return Format.ZLIB if _ZLIB.match(head) else Format.PICKLE
    return _by_name(head, name)


def _by_name(head: bytes, name: str) -> Format:
    """The format that bytes without a signature are taken for."""
    path = PurePosixPath(name.lower())
    if path.suffix == ".onnx" or (_ONNX.match(head) and path.suffix not in _SOURCES):
        return Format.ONNX
    if head[:2] == b"MZ" and b"\0" in head:
        return Format.ELF
    if head[:4] == b"RIFF" and head[8:12] in (b"WAVE", b"WEBP"):
        return Format.MEDIA
    if path.suffix in _SOURCES or head.startswith(b"#!"):
        return Format.SOURCE
    if not _is_text(head):
        return Format.UNKNOWN
    if path.suffix == ".ipynb":
        return Format.NOTEBOOK
    if path.suffix in (".jinja", ".jinja2", ".j2"):
        return Format.TEMPLATE
    if path.suffix in _CONFIG_NAMES or path.name in _CONFIG_NAMES:
        return Format.CONFIG
    return Format.TEXT


def _is_text(head: bytes) -> bool:
    """Tell whether bytes are UTF-8; the last character may be cut."""
    try:
        head[: len(head) - 3 if len(head) == HEAD else None].decode()
    except UnicodeDecodeError as error:
        if len(head) < HEAD or error.start < len(head) - 6:
            return False
    return b"\0" not in head


def is_pickle_name(name: str) -> bool:
    """Tell whether frameworks unpickle files of that name."""
    path = PurePosixPath(name.lower())
    return path.suffix in PICKLE_NAMES or path.name in PICKLE_NAMES or path.name == INDEX


def _is_safetensors(window: Window, head: bytes) -> bool:
    length = int.from_bytes(head[:8], "little")
    return len(head) > 8 and head[8:9] == b"{" and 2 <= length <= window.size - 8
