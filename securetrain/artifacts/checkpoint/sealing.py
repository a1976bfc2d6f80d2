# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Encryption on the way into a rank's file and out of it; offsets are those of the plaintext."""

from dataclasses import dataclass, field

import msgspec

from securetrain.artifacts.checkpoint.writing import FileWriter
from securetrain.artifacts.statement.reading import LeafReader, SignedFile
from securetrain.artifacts.tree.encryption import FileCipher, Sealed, undecryptable
from securetrain.artifacts.tree.index import ALIGNMENT
from securetrain.core.hashtree import Tree


@dataclass(slots=True)
class SealingWriter:
    """A `FileWriter` that gives another one ciphertext. Call `close` before that one ends."""

    inner: FileWriter
    cipher: FileCipher
    sealed: Sealed
    size: int = 0
    _number: int = 0
    _filled: int = 0
    _buffer: bytearray = field(default_factory=bytearray)

    def __post_init__(self) -> None:
        self._buffer = bytearray(self.cipher.room)

    def write(self, data: memoryview) -> int:
        """Append one tensor's bytes; the offset in the plaintext at which they start."""
        self._take(memoryview(bytes(-self.size % ALIGNMENT)))
        start = self.size
        self._take(data)
        return start

    def close(self) -> Sealed:
        """Write the last chunk; how the file is encrypted."""
        self._put(last=True)
        return msgspec.structs.replace(self.sealed, size=self.size)

    def finish(self) -> Tree:
        """The tree of the ciphertext."""
        return self.inner.finish()

    def _take(self, data: memoryview) -> None:
        data = data.cast("B")
        while len(data):
            # A full chunk is only written when something follows it: the last one says so.
            if self._filled == len(self._buffer):
                self._put(last=False)
            piece = data[: len(self._buffer) - self._filled]
            self._buffer[self._filled : self._filled + len(piece)] = piece
            self._filled += len(piece)
            self.size += len(piece)
            data = data[len(piece) :]

    def _put(self, *, last: bool) -> None:
        with memoryview(self._buffer) as view:
            sealed = self.cipher.seal(self._number, view[: self._filled], last=last)
        self.inner.write(memoryview(sealed))
        self._number += 1
        self._filled = 0


@dataclass(slots=True)
class SealedReader:
    """Reads ranges of the plaintext of an encrypted file, as `LeafReader` does of another."""

    inner: LeafReader
    cipher: FileCipher
    size: int
    """Bytes of plaintext."""
    _plain: bytes = b""
    _number: int = -1

    @property
    def file(self) -> SignedFile:
        """The file of ciphertext."""
        return self.inner.file

    def split(self, offset: int, length: int) -> tuple[int, int, int, int]:
        """Nothing is read straight into the target: it has to be decrypted first."""
        return offset, 0, length, 0

    def read_edge(self, offset: int, view: memoryview) -> None:
        """Read a range: each chunk is verified, then decrypted, then copied.

        Raises:
            IntegrityError: ST-CKPT-130 and 131 not what was signed, ST-CKPT-133 it does not
                decrypt.
        """
        done = 0
        while done < len(view):
            number, inside = divmod(offset + done, self.cipher.room)
            plain = self._chunk(number)
            piece = plain[inside : inside + len(view) - done]
            if not piece:
                raise undecryptable(self.file.name, "it ends too early").error(self.file.root.name)
            view[done : done + len(piece)] = piece
            done += len(piece)

    def read_leaves(self, first: int, count: int, view: memoryview) -> None:
        """Never called: `split` names no whole leaves."""
        raise NotImplementedError((first, count, len(view)))

    def _chunk(self, number: int) -> bytes:
        if number != self._number:
            begin = number * self.cipher.chunk
            sealed = bytearray(min(self.cipher.chunk, self.file.size - begin))
            self.inner.read_edge(begin, memoryview(sealed))
            last = number == self.cipher.num_chunks(self.size) - 1
            try:
                self._plain = self.cipher.open(number, sealed, last=last)
            except ValueError as error:
                raise undecryptable(self.file.name, str(error)).error(
                    self.file.root.name
                ) from error
            self._number = number
        return self._plain
