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
5. values decode (`codec`), and none has a tensor's name.
"""

import bisect
import math
import operator
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta

from securetrain.artifacts.tree import codec
from securetrain.artifacts.tree.foreign import DTYPES, Parts, part_name
from securetrain.artifacts.tree.layout import INDEX, Problem
from securetrain.core.errors import IntegrityError

LIMIT: Final = 1 << 30
ALIGNMENT: Final = 64
PACKED: Final = ".safetensors"
"""Files of this kind hold tensors without gaps, at any offset."""
MAX_DIMS: Final = 64
MAX_BYTES: Final = (1 << 53) - 1
VERSION: Final = 2
"""Of an index whose values have types of the second version; others are still written as 1."""
_ZEROS: Final = (0,) * MAX_DIMS

Size: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_BYTES)]


class Chunk(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, gc=False):
    """A box of a tensor and where its bytes lie."""

    offsets: tuple[Size, ...]
    sizes: tuple[Size, ...]
    file: str
    offset: Size
    length: Size


class TensorEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, gc=False):
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

    @classmethod
    def of(cls, tensors: Sequence[TensorEntry], values: Sequence[ValueEntry] = ()) -> "Index":
        """An index, of the first version that can say it."""
        return cls(version=_version(values), tensors=tuple(tensors), values=tuple(values))


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
    if not 1 <= index.version <= VERSION:
        raise _lie(f"version {index.version}, this reader knows 1 to {VERSION}")
    for names in ([t.fqn for t in index.tensors], [v.fqn for v in index.values]):
        if not all(map(operator.lt, names, names[1:])):
            raise _lie("names are repeated or not sorted")
    for tensor in index.tensors:
        if not _is_plain(tensor, files):
            check_boxes(tensor)
            for chunk in tensor.chunks:
                _check_bytes(tensor, chunk, files)
    _check_disjoint(index)
    _check_values(index)


def _check_values(index: Index) -> None:
    """Rule 5: values decode, their parts are there, and the version is the one that says them."""
    # Without values there is nothing to look up, and the names of a model take a while to gather.
    tensors = {tensor.fqn for tensor in index.tensors} if index.values else set()
    if twice := tensors & {value.fqn for value in index.values}:
        raise _lie("both a tensor and a value", min(twice))
    for value in index.values:
        found = codec.decode(value.value, value.fqn)
        names = found.names if isinstance(found, Parts) else ()
        if not all(part_name(value.fqn, name) in tensors for name in names):
            raise _lie("a part of the value is missing", value.fqn)
    if index.version != _version(index.values):
        raise _lie(f"version {index.version} with values of another one")


def _version(values: Sequence[ValueEntry]) -> int:
    return 1 if all(codec.is_plain(value.value) for value in values) else VERSION


def _is_plain(tensor: TensorEntry, files: Mapping[str, int]) -> bool:
    """Tell whether a tensor is one whole chunk that keeps rules 2 to 4; else look closer.

    Most are, and a model has a hundred thousand of them: this decides how long opening one takes.
    """
    size, shape = DTYPES.get(tensor.dtype), tensor.shape
    if size is None or len(tensor.chunks) != 1 or len(shape) > MAX_DIMS:
        return False
    chunk = tensor.chunks[0]
    end = files.get(chunk.file, 0)
    return (
        chunk.sizes == shape
        and chunk.offsets == _ZEROS[: len(shape)]
        and 0 < chunk.length == math.prod(shape) * size <= MAX_BYTES
        and chunk.offset + chunk.length <= end
        and (not chunk.offset % ALIGNMENT or chunk.file.endswith(PACKED))
    )


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
    """No byte belongs to two chunks: none begins before the one in front of it has ended."""
    begins: dict[str, list[int]] = {}
    ends: dict[str, list[int]] = {}
    for tensor in index.tensors:
        for chunk in tensor.chunks:
            if chunk.file not in begins:
                begins[chunk.file], ends[chunk.file] = [], []
            begins[chunk.file].append(chunk.offset)
            ends[chunk.file].append(chunk.offset + chunk.length)
    for file, starts in begins.items():
        # Of stretches that are not empty, so that starts and ends may be sorted on their own.
        starts.sort()
        if not all(map(operator.le, sorted(ends[file]), starts[1:])):
            raise _shared(index, file)


def _shared(index: Index, file: str) -> IntegrityError:
    ranges = _ranges(index)[file]
    fqn = next(here[2] for before, here in pairwise(ranges) if before[1] > here[0])
    return _lie(f"bytes of {file} that belong to another tensor too", fqn)


def _ranges(index: Index) -> dict[str, list[tuple[int, int, str]]]:
    """File to the stretches of it that tensors have, in order: start, end, tensor."""
    found: dict[str, list[tuple[int, int, str]]] = {}
    for tensor in index.tensors:
        for chunk in tensor.chunks:
            place = (chunk.offset, chunk.offset + chunk.length, tensor.fqn)
            if chunk.file in found:
                found[chunk.file].append(place)
            else:
                found[chunk.file] = [place]
    for ranges in found.values():
        ranges.sort()
    return found


def _lie(what: str, tensor: str = "") -> IntegrityError:
    return Problem("ST-CKPT-191", f"the index is false: {what}", INDEX, tensor=tensor).error()


def by_file(index: Index) -> dict[str, dict[str, TensorEntry]]:
    """File to the tensors that have bytes in it, by name."""
    found: dict[str, dict[str, TensorEntry]] = {}
    for tensor in index.tensors:
        for chunk in tensor.chunks:
            if chunk.file not in found:
                found[chunk.file] = {}
            found[chunk.file][tensor.fqn] = tensor
    return found


@dataclass(slots=True)
class TensorMap:
    """The tensors that have bytes in a stretch of a file; worked out when it is first asked."""

    _index: Index | None = None
    _ranges: dict[str, list[tuple[int, int, str]]] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def of(cls, index: Index) -> "TensorMap":
        """The map of a checked index."""
        return cls(index)

    def names(self, file: str, offset: int, length: int) -> list[str]:
        """The tensors with bytes in `offset`..`offset + length` of `file`, in file order."""
        with self._lock:  # threads that read meet damage at the same moment
            if self._ranges is None:
                self._ranges = {} if self._index is None else _ranges(self._index)
            ranges = self._ranges.get(file, [])
        return list(dict.fromkeys(_within(ranges, offset, offset + length)))


def _within(ranges: list[tuple[int, int, str]], start: int, end: int) -> Iterator[str]:
    first = max(0, bisect.bisect_right(ranges, start, key=operator.itemgetter(0)) - 1)
    for low, high, fqn in ranges[first:]:
        if low >= end:
            return
        if high > start:
            yield fqn
