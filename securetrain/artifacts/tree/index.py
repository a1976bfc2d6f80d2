# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A checkpoint's index: which bytes of which file are which part of which tensor.

A trusted key may sign a false index (by mistake or under attack), so that its content is checked
before anything is allocated or read. Rules, in order:

1. at most `LIMIT` bytes, the schema closed, one spelling only;
2. names are unique and sorted; dtypes come from a closed table; shapes and byte counts fit in 2^53;
3. chunks lie inside their tensor, do not overlap and together cover it;
4. a chunk's bytes are exactly its shape times its element size, aligned, inside a signed file, and
   no byte belongs to two chunks;
5. values decode (`codec`).
"""

import bisect
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta

from securetrain.artifacts.tree import codec
from securetrain.artifacts.tree.layout import INDEX
from securetrain.artifacts.tree.problems import Problem
from securetrain.core.errors import IntegrityError

LIMIT: Final = 1 << 30
ALIGNMENT: Final = 64
PACKED: Final = ".safetensors"
"""Files of this kind hold tensors without gaps, at any offset."""
MAX_DIMS: Final = 64
MAX_BYTES: Final = (1 << 53) - 1
VERSION: Final = 1

# Element sizes in bytes. Tensors are stored little-endian, row by row.
DTYPES: Final[Mapping[str, int]] = {
    "bfloat16": 2,
    "bool": 1,
    "complex128": 16,
    "complex32": 4,
    "complex64": 8,
    "float16": 2,
    "float32": 4,
    "float64": 8,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "int8": 1,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
    "uint8": 1,
}

Size: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_BYTES)]


class Chunk(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A box of a tensor and where its bytes lie."""

    offsets: tuple[Size, ...]
    sizes: tuple[Size, ...]
    file: str
    offset: Size
    length: Size


class TensorEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One tensor: its global shape and the chunks that make it up (none when it is empty)."""

    fqn: str
    dtype: str
    shape: tuple[Size, ...]
    chunks: tuple[Chunk, ...]


class ValueEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One value that is not a tensor, as `codec` writes it."""

    fqn: str
    value: codec.Coded


class Index(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The whole index."""

    version: int
    tensors: tuple[TensorEntry, ...]
    values: tuple[ValueEntry, ...]


def encode(index: Index) -> bytes:
    """The index's bytes: canonical JSON (it holds no floats, so msgspec's spelling is RFC 8785)."""
    return msgspec.json.encode(index, order="sorted")


def parse(data: bytes, files: Mapping[str, int]) -> Index:
    """Read and check an index whose digest has been verified.

    Args:
        data: the index's bytes.
        files: name and size of every signed data file.

    Raises:
        IntegrityError: ST-CKPT-191, naming the tensor.
    """
    if len(data) > LIMIT:
        raise _lie(f"{len(data)} bytes, the limit is {LIMIT}")
    try:
        index = msgspec.json.decode(data, type=Index, strict=True)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise _lie(str(error)) from error
    if encode(index) != data:
        raise _lie("not in canonical form (RFC 8785)")
    check(index, files)
    return index


def check(index: Index, files: Mapping[str, int]) -> None:
    """Check an index against the sizes of the data files.

    Raises:
        IntegrityError: ST-CKPT-191, naming the tensor.
    """
    if index.version != VERSION:
        raise _lie(f"version {index.version}, this reader knows {VERSION}")
    for names in ([t.fqn for t in index.tensors], [v.fqn for v in index.values]):
        if names != sorted(set(names)):
            raise _lie("names are repeated or not sorted")
    if twice := {t.fqn for t in index.tensors} & {v.fqn for v in index.values}:
        raise _lie("both a tensor and a value", min(twice))
    for tensor in index.tensors:
        check_boxes(tensor)
        for chunk in tensor.chunks:
            _check_bytes(tensor, chunk, files)
    _check_disjoint(index)
    for value in index.values:
        codec.decode(value.value, value.fqn)


def check_boxes(tensor: TensorEntry) -> None:
    """Rules 2 and 3 for one tensor, without its bytes.

    Raises:
        IntegrityError: ST-CKPT-191.
    """
    if tensor.dtype not in DTYPES:
        raise _lie(f"dtype {tensor.dtype[:40]!r}", tensor.fqn)
    if len(tensor.shape) > MAX_DIMS or math.prod(tensor.shape) * DTYPES[tensor.dtype] > MAX_BYTES:
        raise _lie("a shape that no machine can hold", tensor.fqn)
    volume = 0
    for chunk in tensor.chunks:
        if not len(chunk.offsets) == len(chunk.sizes) == len(tensor.shape):
            raise _lie("a chunk with another number of dimensions", tensor.fqn)
        for offset, size, full in zip(chunk.offsets, chunk.sizes, tensor.shape, strict=True):
            if size == 0 or offset + size > full:
                raise _lie(f"a chunk outside the shape {list(tensor.shape)}", tensor.fqn)
        volume += math.prod(chunk.sizes)
    if volume != math.prod(tensor.shape):
        raise _lie(f"chunks of {volume} elements for shape {list(tensor.shape)}", tensor.fqn)
    _check_overlap(tensor)


def _check_overlap(tensor: TensorEntry) -> None:
    """No two boxes share an element: sweep along the dimension with the most distinct starts."""
    if len(tensor.chunks) < 2:
        return
    if not tensor.shape:
        raise _lie("two chunks of a scalar", tensor.fqn)
    dims = range(len(tensor.shape))
    sweep = max(dims, key=lambda d: len({chunk.offsets[d] for chunk in tensor.chunks}))
    active: list[Chunk] = []
    for chunk in sorted(tensor.chunks, key=lambda c: c.offsets[sweep]):
        start = chunk.offsets[sweep]
        active = [c for c in active if c.offsets[sweep] + c.sizes[sweep] > start]
        for other in active:
            if all(
                chunk.offsets[d] < other.offsets[d] + other.sizes[d]
                and other.offsets[d] < chunk.offsets[d] + chunk.sizes[d]
                for d in dims
            ):
                raise _lie("chunks that overlap", tensor.fqn)
        active.append(chunk)


def _check_bytes(tensor: TensorEntry, chunk: Chunk, files: Mapping[str, int]) -> None:
    if chunk.file not in files:
        raise _lie(f"a file that is not signed: {chunk.file[:80]!r}", tensor.fqn)
    if chunk.length != math.prod(chunk.sizes) * DTYPES[tensor.dtype]:
        raise _lie(f"{chunk.length} bytes for sizes {list(chunk.sizes)}", tensor.fqn)
    aligned = chunk.offset % ALIGNMENT == 0 or chunk.file.endswith(PACKED)
    if not aligned or chunk.offset + chunk.length > files[chunk.file]:
        raise _lie(f"bytes that are not aligned or outside {chunk.file}", tensor.fqn)


def _check_disjoint(index: Index) -> None:
    ranges = sorted((c.file, c.offset, c.length, t.fqn) for t in index.tensors for c in t.chunks)
    for (file, offset, length, _), (next_file, next_offset, _, fqn) in pairwise(ranges):
        if file == next_file and offset + length > next_offset:
            raise _lie(f"bytes of {file} that belong to another tensor too", fqn)


def _lie(what: str, tensor: str = "") -> IntegrityError:
    return Problem(
        code="ST-CKPT-191", what=f"the index is false: {what}", file=INDEX, tensor=tensor
    ).error()


@dataclass(slots=True)
class TensorMap:
    """The tensors that have bytes in a stretch of a file."""

    _starts: dict[str, list[int]] = field(default_factory=dict)
    _ranges: dict[str, list[tuple[int, int, str]]] = field(default_factory=dict)

    @classmethod
    def of(cls, index: Index) -> "TensorMap":
        """The map of a checked index."""
        result = cls()
        for tensor in index.tensors:
            for chunk in tensor.chunks:
                result._ranges.setdefault(chunk.file, []).append(
                    (chunk.offset, chunk.offset + chunk.length, tensor.fqn)
                )
        for file, ranges in result._ranges.items():
            ranges.sort()
            result._starts[file] = [start for start, _, _ in ranges]
        return result

    def names(self, file: str, offset: int, length: int) -> list[str]:
        """The tensors with bytes in `offset`..`offset + length` of `file`, in file order."""
        return list(dict.fromkeys(self._find(file, offset, offset + length)))

    def _find(self, file: str, start: int, end: int) -> Iterator[str]:
        ranges = self._ranges.get(file, [])
        first = max(0, bisect.bisect_right(self._starts.get(file, []), start) - 1)
        for low, high, fqn in ranges[first:]:
            if low >= end:
                return
            if high > start:
                yield fqn
