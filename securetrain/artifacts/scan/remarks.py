# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Remarks of the parsers of one format, and bounded reads for them.

A parser yields a remark for everything that a loader would do and should not; it raises
`UnjudgedError` where it cannot tell, and `BrokenError` where the bytes are not of the format.
"""

from typing import Final, NamedTuple

from securetrain.artifacts.scan.window import Window

CHUNK: Final = 1 << 20
DATA: Final = ""
"""The code of a remark that names a file which holds numbers only, in place of what it says."""


class UnjudgedError(Exception):
    """Something cannot be judged."""


class BrokenError(ValueError):
    """Bytes are not what their format asks for."""


class Remark(NamedTuple):
    """One thing about content."""

    code: str
    what: str
    offset: int | None = None
    """Where, from the start of the window."""


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
