# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The inside of a rank's file, and the names of the files.

One rank's data file: tensors written and hashed in one pass.

Small pieces gather in a buffer; large ones go to the file straight from the tensor's memory, while
a helper thread hashes the same memory (both release the interpreter's lock). Tensors start at
multiples of 64 bytes; the gaps are zeros and belong to the tree like everything else.

Encryption on the way into a rank's file and out of it; offsets are those of the plaintext.
"""

import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Final, Protocol

import msgspec
from torch.distributed.checkpoint.planner import WriteItem

from securetrain.artifacts.checkpoint.values import dtype_name
from securetrain.artifacts.statement.reading import LeafReader, SignedFile
from securetrain.artifacts.tree.encryption import FileCipher, Sealed, undecryptable
from securetrain.artifacts.tree.index import ALIGNMENT, Index
from securetrain.artifacts.tree.layout import rank_file
from securetrain.artifacts.tree.safetensors_header import (
    INDEX_JSON,
    METADATA,
    SUFFIX,
    dtype_code,
    encode_header,
    weight_map,
)
from securetrain.artifacts.tree.storage import Sink, Staging
from securetrain.core.errors import UsageError
from securetrain.core.hashtree import Tree, TreeParams, TreeWriter


class Container(Protocol):
    """A kind of data file."""

    alignment: int
    """Tensors start at multiples of this."""

    def names(self, has_file: Sequence[bool]) -> list[str]:
        """The name of every rank's file, by rank; empty for a rank that writes none."""

    def is_name(self, name: str) -> bool:
        """Tell whether a rank may write a file of this name."""

    def header(self, items: Sequence[WriteItem]) -> bytes:
        """The bytes before the tensors."""

    def documents(self, index: Index) -> dict[str, bytes]:
        """Further small files of the checkpoint, by name."""


class Native:
    """Raw bytes; the index says what they are."""

    alignment: int = ALIGNMENT

    def names(self, has_file: Sequence[bool]) -> list[str]:
        """See `Container`."""
        return [rank_file(rank) if there else "" for rank, there in enumerate(has_file)]

    def is_name(self, name: str) -> bool:
        """See `Container`."""
        return _NATIVE.fullmatch(name) is not None

    def header(self, items: Sequence[WriteItem]) -> bytes:
        """See `Container`."""
        del items
        return b""

    def documents(self, index: Index) -> dict[str, bytes]:
        """See `Container`."""
        del index
        return {}


_NATIVE: Final = re.compile(r"rank-\d{5,8}\.bin")
_SAFETENSORS: Final = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors")


class Safetensors:
    """Files that everybody's safetensors readers take; each tensor is whole in one of them."""

    alignment: int = 1

    def names(self, has_file: Sequence[bool]) -> list[str]:
        """See `Container`."""
        total = sum(has_file)
        names = []
        for rank, there in enumerate(has_file):
            number = sum(has_file[: rank + 1])
            name = "model" if total == 1 else f"model-{number:05d}-of-{total:05d}"
            names.append(f"{name}{SUFFIX}" if there else "")
        return names

    def is_name(self, name: str) -> bool:
        """See `Container`."""
        return _SAFETENSORS.fullmatch(name) is not None

    def header(self, items: Sequence[WriteItem]) -> bytes:
        """See `Container`."""
        tensors = {}
        for item in items:
            data, name = item.tensor_data, item.index.fqn
            assert data is not None
            if data.chunk.sizes != data.size:
                raise UsageError("ST-USAG-013", "only a part of a tensor", name, "gather it first")
            dtype = dtype_name(data.properties.dtype, name)
            if dtype_code(dtype) is None or name == METADATA:
                raise UsageError(
                    "ST-USAG-013", f"safetensors has no place for it ({dtype})", name, "use `save`"
                )
            tensors[name] = dtype, tuple(data.size)
        return encode_header(tensors)

    def documents(self, index: Index) -> dict[str, bytes]:
        """See `Container`."""
        files = {chunk.file for tensor in index.tensors for chunk in tensor.chunks}
        return {INDEX_JSON: weight_map(index)} if len(files) > 1 else {}


BUFFER: Final = 1 << 20
LARGE: Final = 256 << 10


@dataclass(slots=True)
class RankWriter:
    """Writes a file from front to back."""

    sink: Sink
    tree: TreeWriter
    pool: ThreadPoolExecutor
    alignment: int = ALIGNMENT
    size: int = 0
    _buffer: bytearray = field(default_factory=lambda: bytearray(BUFFER))
    _filled: int = 0

    @classmethod
    @contextmanager
    def create(
        cls, staging: Staging, name: str, params: TreeParams, *, alignment: int = ALIGNMENT
    ) -> Iterator["RankWriter"]:
        """Create the file, which must not exist; it is durable when the block ends well."""
        with (
            ThreadPoolExecutor(1, thread_name_prefix="hash") as pool,
            staging.create(name) as sink,
        ):
            writer = cls(sink, TreeWriter(params), pool, alignment)
            yield writer
            writer._flush()

    def write(self, data: memoryview) -> int:
        """Append one tensor's bytes; returns the offset at which they start."""
        self._small(memoryview(bytes(-self.size % self.alignment)))
        start = self.size
        if len(data) < LARGE:
            self._small(data)
        else:
            self._flush()
            self._out(data)
            self.size += len(data)
        return start

    def finish(self) -> Tree:
        """The tree of everything written, after `create`'s block has ended."""
        return self.tree.finish()

    def _small(self, data: memoryview) -> None:
        if self._filled + len(data) > BUFFER:
            self._flush()
        self._buffer[self._filled : self._filled + len(data)] = data
        self._filled += len(data)
        self.size += len(data)

    def _flush(self) -> None:
        if self._filled:
            with memoryview(self._buffer) as view:
                self._out(view[: self._filled])
            self._filled = 0

    def _out(self, data: memoryview) -> None:
        hashing = self.pool.submit(self.tree.update, data)
        try:
            self.sink.write(data)
        finally:
            hashing.result()


class Output(Protocol):
    """Makes the writers of rank files: in this process, or in a helper's."""

    def open(
        self, staging: Staging, name: str, params: TreeParams, alignment: int
    ) -> AbstractContextManager["FileWriter"]:
        """A writer of a new file; the file is durable when the block ends well."""


class FileWriter(Protocol):
    """Takes one file from front to back."""

    def write(self, data: memoryview) -> int:
        """Append bytes at the next aligned offset, which is returned."""

    def finish(self) -> Tree:
        """The tree of everything written, after the block has ended."""


class InThisProcess:
    """Writes and hashes in threads of this process."""

    def open(
        self, staging: Staging, name: str, params: TreeParams, alignment: int
    ) -> AbstractContextManager[FileWriter]:
        """See `Output`."""
        return RankWriter.create(staging, name, params, alignment=alignment)


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
