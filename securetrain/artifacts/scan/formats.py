# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Tell the format of bytes: by their first bytes, and by the loaders that their name invites.

A name adds loaders, and takes none away: what is called like a pickle is read as one whatever it
begins with, and what is called ``.safetensors`` must be that.

A stretch of an open file that reads like a file of its own, with bounds on every read.
"""

import os
import re
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Final, cast

from securetrain.artifacts.scan.findings import BrokenError, UnjudgedError

READ_LIMIT: Final = 16 << 20
"""The longest argument of a pickle opcode that is looked at; longer bytes are stepped over."""
LINE_LIMIT: Final = 1 << 20
CHUNK: Final = 1 << 20


class TooLargeError(ValueError):
    """Something is longer than a scanner reads."""


class Skipped:
    """Bytes that were stepped over: they have a length and no content."""

    __slots__ = ("_length",)

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length


class Window:
    """Bytes `start` to `end` of a file descriptor, read with pread.

    The position belongs to the window, so several windows over one descriptor do not disturb each
    other. `read` has the signature that pickletools and tarfile want.
    """

    def __init__(self, fd: int, start: int, end: int) -> None:
        self.fd = fd
        self.start = start
        self.end = end
        self._at = start

    @classmethod
    def whole(cls, fd: int) -> "Window":
        """All of a file."""
        return cls(fd, 0, os.fstat(fd).st_size)

    @property
    def size(self) -> int:
        """Length in bytes."""
        return self.end - self.start

    def part(self, offset: int, length: int) -> "Window":
        """A window on a stretch of this one.

        Raises:
            ValueError: it does not lie inside.
        """
        if offset < 0 or length < 0 or offset + length > self.size:
            raise ValueError(f"bytes {offset}..{offset + length} of {self.size}")
        return Window(self.fd, self.start + offset, self.start + offset + length)

    def peek(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes (at most `READ_LIMIT`) from `offset`; the position stays."""
        place = min(self.start + offset, self.end)
        return os.pread(self.fd, min(length, READ_LIMIT, self.end - place), place)

    def read(self, length: int = -1, /) -> bytes:
        """The next bytes; `Skipped` in their place when they are too many to look at."""
        left = self.end - self._at
        length = left if length < 0 else min(length, left)
        if length > READ_LIMIT:
            self._at += length
            # Duck typing that pickletools allows: it asks for no more than the length.
            return cast("bytes", Skipped(length))
        data = os.pread(self.fd, length, self._at)
        self._at += len(data)
        return data

    def readinto(self, buffer: bytearray | memoryview, /) -> int:
        """Fill a buffer; how many bytes there were."""
        view = memoryview(buffer)
        data = os.pread(self.fd, min(len(view), self.end - self._at), self._at)
        view[: len(data)] = data
        self._at += len(data)
        return len(data)

    def readline(self, limit: int = -1, /) -> bytes:  # noqa: ARG002 - the signature of a file
        """The rest of the line, its end included.

        Raises:
            TooLargeError: it is longer than `LINE_LIMIT`.
        """
        line = bytearray()
        while len(line) <= LINE_LIMIT:
            piece = os.pread(self.fd, min(256, self.end - self._at), self._at)
            cut = piece.find(b"\n") + 1
            line += piece[:cut] if cut else piece
            self._at += cut or len(piece)
            if cut or not piece:
                return bytes(line)
        raise TooLargeError(f"a line of more than {LINE_LIMIT} bytes")

    def tell(self) -> int:
        """The position, counted from the window's start."""
        return self._at - self.start

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Move; the new position."""
        base = {os.SEEK_SET: self.start, os.SEEK_CUR: self._at, os.SEEK_END: self.end}[whence]
        self._at = max(self.start, min(base + offset, self.end))
        return self.tell()

    def seekable(self) -> bool:
        """Always."""
        return True


class Cursor:
    """Reads a window from front to back through a buffer; every read is inside the window."""

    def __init__(self, window: Window) -> None:
        self.window = window
        self.at = 0
        self._buffer = b""
        self._start = 0

    @property
    def left(self) -> int:
        """Bytes to the end."""
        return self.window.size - self.at

    def take(self, count: int, limit: int = CHUNK) -> bytes:
        """The next bytes.

        Raises:
            BrokenError: there are fewer.
            UnjudgedError: they are more than `limit`.
        """
        if count < 0 or count > self.left:
            raise BrokenError(f"{count} bytes at {self.at} of {self.window.size}")
        if count > limit:
            raise UnjudgedError(f"{count} bytes in one piece, the limit is {limit}")
        begin = self.at - self._start
        if begin < 0 or begin + count > len(self._buffer):
            self._start, begin = self.at, 0
            self._buffer = self.window.peek(self.at, max(count, 64 << 10))
        self.at += count
        return self._buffer[begin : begin + count]

    def skip(self, count: int) -> None:
        """Step over bytes.

        Raises:
            BrokenError: there are fewer.
        """
        if count < 0 or count > self.left:
            raise BrokenError(f"{count} bytes at {self.at} of {self.window.size}")
        self.at += count

    def number(self, width: int) -> int:
        """An unsigned little-endian number."""
        return int.from_bytes(self.take(width), "little")

    def varint(self) -> int:
        """A number as Protocol Buffers write it.

        Raises:
            BrokenError: it is longer than ten bytes.
        """
        value = 0
        for shift in range(0, 70, 7):
            (byte,) = self.take(1)
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value & 0xFFFF_FFFF_FFFF_FFFF
        raise BrokenError(f"a number of more than ten bytes at {self.at}")


def whole(window: Window, limit: int) -> bytes:
    """All bytes of a window.

    Raises:
        UnjudgedError: they are more than `limit`.
    """
    if window.size > limit:
        raise UnjudgedError(f"{window.size} bytes, the limit is {limit}")
    return b"".join(window.peek(at, CHUNK) for at in range(0, window.size, CHUNK))


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
READ_TOO: Final = frozenset({".bin", ".data", ".model", ".npy", ".pt2"})
"""Suffixes under which frameworks unpickle what they find, beside what else is kept under them."""
INDEX: Final = ".metadata"
"""The whole name of an index of torch.distributed.checkpoint."""
_NAMED: Final = {
    ".onnx": Format.ONNX,
    ".ipynb": Format.NOTEBOOK,
    ".safetensors": Format.SAFETENSORS,
    **dict.fromkeys((".jinja", ".jinja2", ".j2"), Format.TEMPLATE),
    **dict.fromkeys((".json", ".yaml", ".yml", ".cfg", "mlmodel"), Format.CONFIG),
}
"""The formats that loaders take files for by their names."""
_SOURCES: Final = frozenset(
    {
        ".py", ".pyw", ".pyc", ".pyx", ".sh", ".bash", ".bat", ".cmd", ".ps1", ".js", ".mjs", ".ts",
        ".c", ".cc", ".cpp", ".cu", ".h", ".hpp", ".rs", ".go", ".java", ".jar", ".class", ".lua",
        ".rb", ".pl", ".r", ".jl", ".wasm", ".whl", ".egg", ".html", ".htm", ".svg", ".xml",
        ".gin", ".prototxt", ".pbtxt",
    }
)  # fmt: skip
"""Suffixes of what something runs, or may run, when it is opened."""

_MAGIC: Final = {
    Format.ZIP: (b"PK\x03\x04", b"PK\x05\x06"),
    Format.NUMPY: (b"\x93NUMPY",),
    Format.GZIP: (b"\x1f\x8b",),
    Format.BZIP2: (b"BZh",),
    Format.XZ: (b"\xfd7zXZ\x00",),
    Format.PACKED: (
        b"\x28\xb5\x2f\xfd",
        b"\x04\x22\x4d\x18",
        b"7z\xbc\xaf\x27\x1c",
        b"Rar!\x1a\x07",
    ),
    Format.HDF5: (b"\x89HDF\r\n\x1a\n",),
    Format.GGUF: (b"GGUF",),
    Format.ELF: (b"\x7fELF", b"\xcf\xfa\xed\xfe", b"\xce\xfa\xed\xfe", b"\xca\xfe\xba\xbe"),
    Format.MEDIA: (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF8", b"fLaC", b"OggS"),
}
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
    for found, magic in _MAGIC.items():
        if head.startswith(magic):
            return found
    if head[_TAR_MAGIC] == b"ustar":
        return Format.TAR
    if _is_safetensors(window, head) or invited(name) is Format.SAFETENSORS:
        return Format.SAFETENSORS
    if _PROTOCOL.match(head):
        return Format.PICKLE
    if is_pickle_name(name):
        return Format.ZLIB if _ZLIB.match(head) else Format.PICKLE
    return _by_name(head, name)


def _by_name(head: bytes, name: str) -> Format:
    """The format that bytes without a signature are taken for."""
    path, named = PurePosixPath(name.lower()), invited(name)
    if named is Format.ONNX or (_ONNX.match(head) and path.suffix not in _SOURCES):
        return Format.ONNX
    if head[:2] == b"MZ" and b"\0" in head:
        return Format.ELF
    if head[:4] == b"RIFF" and head[8:12] in (b"WAVE", b"WEBP"):
        return Format.MEDIA
    if path.suffix in _SOURCES or head.startswith(b"#!"):
        return Format.SOURCE
    return (named or Format.TEXT) if _is_text(head) else Format.UNKNOWN


def invited(name: str) -> Format | None:
    """The format that a name invites a loader of; None when that is not of `_NAMED`."""
    path = PurePosixPath(name.lower())
    return _NAMED.get(path.suffix, _NAMED.get(path.name))


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


def may_be_pickle(name: str) -> bool:
    """Tell whether frameworks unpickle files of that name, among others."""
    return is_pickle_name(name) or PurePosixPath(name.lower()).suffix in READ_TOO


def _is_safetensors(window: Window, head: bytes) -> bool:
    length = int.from_bytes(head[:8], "little")
    return len(head) > 8 and head[8:9] == b"{" and 2 <= length <= window.size - 8
