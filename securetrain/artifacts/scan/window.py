# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A stretch of an open file that reads like a file of its own, with bounds on every read."""

import os
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
