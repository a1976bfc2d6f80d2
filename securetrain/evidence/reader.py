# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Reads binary structures within bounds; every misfit is a refusal with the caller's code.

TPM structures are big-endian, firmware and TEE structures little-endian. Nothing is allocated from
a length that has not been compared with what is there.
"""

from struct import Struct
from typing import Any, Literal

from securetrain.core.errors import AttestationError


class Reader:
    """A cursor over one structure."""

    __slots__ = ("_code", "_data", "_order", "_position", "where")

    def __init__(
        self,
        data: bytes,
        code: str,
        where: str,
        order: Literal["big", "little"] = "big",
    ) -> None:
        """Start at the first byte.

        Args:
            data: the whole structure.
            code: what a misfit is refused with.
            where: names the structure in errors.
            order: of the bytes of its numbers.
        """
        self._data = data
        self._code = code
        self._order = order
        self._position = 0
        self.where = where

    @property
    def position(self) -> int:
        """Offset of the next byte."""
        return self._position

    @property
    def left(self) -> int:
        """Bytes that have not been read."""
        return len(self._data) - self._position

    def take(self, size: int) -> bytes:
        """Exactly `size` bytes.

        Raises:
            AttestationError: the reader's code, when there are fewer (or `size` is negative).
        """
        start = self._position
        end = start + size
        if not start <= end <= len(self._data):
            raise self.bad(f"{size} bytes wanted at offset {start}, {self.left} are left")
        self._position = end
        return self._data[start:end]

    def number(self, size: int) -> int:
        """An unsigned number of `size` bytes."""
        start = self._position
        data = self._data[start : start + size]
        if size < 0 or len(data) != size:
            self.take(size)  # it says what is wrong
        self._position = start + size
        return int.from_bytes(data, self._order)

    def u8(self) -> int:
        """One byte."""
        return self.number(1)

    def u16(self) -> int:
        """Two bytes."""
        return self.number(2)

    def u32(self) -> int:
        """Four bytes."""
        return self.number(4)

    def u64(self) -> int:
        """Eight bytes."""
        return self.number(8)

    def unpack(self, layout: Struct) -> tuple[Any, ...]:
        """Read values at fixed places in one go; the layout says the order of bytes.

        Raises:
            AttestationError: the reader's code, when there are fewer bytes.
        """
        start = self._position
        end = start + layout.size
        if end > len(self._data):
            self.take(layout.size)  # it says what is wrong
        self._position = end
        return layout.unpack_from(self._data, start)

    def sized(self, width: int, limit: int) -> bytes:
        """Bytes behind their own length of `width` bytes, at most `limit` of them.

        Raises:
            AttestationError: the reader's code, when the length is over the limit or lies.
        """
        begin = self._position + width
        data = self._data
        size = int.from_bytes(data[begin - width : begin], self._order)
        end = begin + size
        if end > len(data) or size > limit:
            size = self.number(width)
            if size > limit:
                where = f"at offset {self._position}"
                raise self.bad(f"a length of {size} {where}, the limit is {limit}")
            return self.take(size)
        self._position = end
        return data[begin:end]

    def rest(self) -> bytes:
        """Everything that is left."""
        return self.take(self.left)

    def end(self) -> None:
        """Nothing may follow.

        Raises:
            AttestationError: the reader's code.
        """
        if self.left:
            raise self.bad(f"{self.left} bytes follow the structure at offset {self._position}")

    def bad(self, what: str) -> AttestationError:
        """The refusal of this structure."""
        return AttestationError(self._code, what, self.where, "collect the evidence again")
