# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Files of numbers, and what their loaders find between the numbers.

Rules:

1. safetensors is what `tree.safetensors_header` reads, which signing and loading read by, too;
2. numpy's header is a dictionary of three plain values, and the array is as long as it says; an
   array of objects is a pickle;
3. GGUF: the metadata is read, its chat templates are judged, and tensors lie in the file;
4. HDF5 is searched from front to back, by no reader of the format: the superblock must be one that
   Keras's files have, and end where the file ends. Wherever the attribute ``model_config`` or
   ``training_config`` is named, its text must be where h5py writes it, uncompressed: in a global
   heap, at the place that the attribute gives. That text is judged as a configuration; a name
   whose text is elsewhere, or is not found, and a file whose heaps have filters, cannot be judged.
   Without those names Keras reads only numbers from it;
5. ``.metadata``, the index of a checkpoint of torch.distributed.checkpoint, is a pickle, which is
   read without torch. It is analysed first, and refused when it names anything but the 13 globals
   that torch writes there, and dtypes;
6. then it is read with inert stand-ins for those names, made anew for each file: nothing of torch,
   and nothing that does anything, can be reached from it;
7. what comes out is checked before it is used: file names stay inside the directory, ranges are
   integers within their files.

Sources: NEP 1, the NPY format; ggml/docs/gguf.md (versions 2 and 3, little-endian); HDF5 File
Format Specification 3.0, II.A (superblock), III.E (global heap), III.G (fractal heap), IV.A.2.m
(attribute message); H5HG.c for what is read of a heap.
"""

import ast
import io
import math
import pickle
import re
import struct
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Self

from securetrain.artifacts.scan import configurations, templates
from securetrain.artifacts.scan.findings import BrokenError, Remark, UnjudgedError
from securetrain.artifacts.scan.formats import CHUNK, Cursor, Window
from securetrain.artifacts.scan.pickles import Analysis
from securetrain.artifacts.scan.safe_globals import DCP_METADATA, DTYPE_NAMES
from securetrain.artifacts.tree import safetensors_header
from securetrain.core.errors import IntegrityError
from securetrain.core.files import unsafe_name

NUMPY_HEADER_LIMIT: Final = 64 << 10
_NUMPY_CODE: Final = re.compile(r"[<>=|]?([?bBhHiIlLqQefdgFDGSaUVmMOuc])(\d{0,9})(?:\[\w+\])?")
MAX_ENTRIES: Final = 100_000
MAX_ELEMENTS: Final = 8_000_000
STRING_LIMIT: Final = 16 << 20

_WIDTHS: Final = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_STRING: Final = 8
_ARRAY: Final = 9

MAX_MARKERS: Final = 100_000
MAX_HEAPS: Final = 16
CONFIG_LIMIT: Final = 32 << 20

_HEAP: Final = b"GCOL\x01\0\0\0"
_FRACTAL: Final = b"FRHP\0"
_MARKERS: Final = re.compile(rb"(?:model|training)_config\0|FRHP\0")
"""The attributes that Keras makes objects of, and fractal heaps."""
_OVERLAP: Final = 64
_VARIABLE: Final = 9
"""The class of a type whose values lie in a global heap."""


def safetensors_remarks(window: Window, name: str) -> Iterator[Remark]:
    """No remarks: a safetensors file is one, or it is not.

    Raises:
        BrokenError: rule 1.
    """
    try:
        prefix = window.peek(0, safetensors_header.PREFIX)
        size = safetensors_header.header_size(prefix, window.size, name)
        data = b"".join(window.peek(at, min(CHUNK, size - at)) for at in range(0, size, CHUNK))
        safetensors_header.parse(data, window.size, name)
    except IntegrityError as error:
        raise BrokenError(error.what) from error
    yield from ()


def numpy_pickle(window: Window) -> int | None:
    """The offset of the pickle of an array of objects; None for an array of numbers.

    Raises:
        BrokenError: the array is longer than its file.
        UnjudgedError: the header is malformed.
    """
    head = window.peek(0, 12)
    wide = head[6:7] != b"\x01"
    start = 12 if wide else 10
    length = int.from_bytes(head[8:start], "little")
    if len(head) < 12 or length > NUMPY_HEADER_LIMIT or start + length > window.size:
        raise UnjudgedError("a numpy array whose header is malformed")
    try:
        header = ast.literal_eval(window.peek(start, length).decode("latin-1").strip())
        shape = header["shape"]
        width = _width(header["descr"])
    except (ValueError, SyntaxError, TypeError, KeyError, RecursionError, MemoryError) as error:
        raise UnjudgedError("a numpy array whose header is malformed") from error
    if not isinstance(shape, tuple) or not all(type(one) is int and one >= 0 for one in shape):
        raise UnjudgedError("a numpy array whose shape is malformed")
    if width is None:
        return start + length
    if (end := start + length + math.prod(shape) * width) > window.size:
        raise BrokenError(f"a numpy array that ends at {end} of {window.size}")
    return None


def _width(descr: object, depth: int = 0) -> int | None:
    """Bytes of an item of an array; None when it holds objects.

    Raises:
        ValueError: it is not a type.
    """
    if isinstance(descr, str) and (found := _NUMPY_CODE.fullmatch(descr)):
        # A code without a number has 16 bytes at most, and at least one.
        width = int(found[2] or 1) * (4 if found[1] == "U" else 1)
        return None if found[1] == "O" else width
    if not isinstance(descr, list) or depth > 8:
        raise ValueError(f"a type {descr!r:.40}")
    width = 0
    for _, inner, *shape in descr:
        one = _width(inner, depth + 1)
        if one is None:
            return None
        width += one * math.prod(shape[0] if shape and isinstance(shape[0], tuple) else (1,))
    return width


def gguf_remarks(window: Window) -> Iterator[Remark]:
    """The remarks about a GGUF file.

    Raises:
        BrokenError: it is malformed.
        UnjudgedError: its version is not known, or something is too large.
    """
    cursor = Cursor(window)
    cursor.skip(4)
    version = cursor.number(4)
    if version not in (2, 3):
        raise UnjudgedError(f"GGUF of version {version}, or of another byte order")
    num_tensors, num_entries = cursor.number(8), cursor.number(8)
    if max(num_tensors, num_entries) > MAX_ENTRIES:
        raise UnjudgedError(f"more than {MAX_ENTRIES} tensors or entries")
    for _ in range(num_entries):
        key = _string(cursor)
        kind = cursor.number(4)
        at = cursor.at
        if kind == _STRING and b"template" in key:
            text = _string(cursor).decode("utf-8", "replace")
            for one in templates.judge(text):
                place = at + 8 + len(text[: one.offset].encode())
                yield one._replace(
                    what=f"{key.decode('utf-8', 'replace')}: {one.what}", offset=place
                )
        else:
            _value(cursor, kind)
    _tensors(cursor, num_tensors)


def _tensors(cursor: Cursor, count: int) -> None:
    for _ in range(count):
        name = _string(cursor)
        dimensions = cursor.number(4)
        if dimensions > 8:
            raise BrokenError(f"a tensor of {dimensions} dimensions at byte {cursor.at}")
        cursor.skip(8 * dimensions + 4)
        offset = cursor.number(8)
        if offset > cursor.window.size:
            raise BrokenError(f"tensor {name[:80]!r} lies at {offset}, behind the file's end")


def _string(cursor: Cursor) -> bytes:
    return cursor.take(cursor.number(8), STRING_LIMIT)


def _value(cursor: Cursor, kind: int) -> None:
    """Step over a value; arrays of arrays without recursion."""
    waiting = [(kind, 1)]
    seen = 0
    while waiting:
        kind, count = waiting.pop()
        seen += count if kind in (_STRING, _ARRAY) else 1
        if seen > MAX_ELEMENTS or len(waiting) > 64:
            raise UnjudgedError(f"arrays of more than {MAX_ELEMENTS} elements")
        if kind in _WIDTHS:
            cursor.skip(_WIDTHS[kind] * count)
        elif kind == _STRING:
            for _ in range(count):
                cursor.skip(cursor.number(8))
        elif kind != _ARRAY:
            raise BrokenError(f"a value of kind {kind} at byte {cursor.at}")
        elif count:
            waiting += [(_ARRAY, count - 1), (cursor.number(4), cursor.number(8))]


def hdf5_remarks(window: Window) -> Iterator[Remark]:
    """The remarks about an HDF5 file.

    Raises:
        UnjudgedError: rule 4.
    """
    head = window.peek(0, 64)
    old = head[8:9] in (b"\0", b"\1")
    sizes = head[13:15] if old else head[9:11]
    begin, end = (24, 40) if old else (12, 28)
    later = 4 if head[8:9] == b"\1" else 0
    base, last = (int.from_bytes(head[at + later :][:8], "little") for at in (begin, end))
    if head[8:9] > b"\3" or sizes != b"\x08\x08" or base != 0 or last != window.size:
        raise UnjudgedError("HDF5 of a layout that is not known here, or cut short")
    for heap, numbers in _wanted(window).items():
        found = set()
        for number, place, size in _objects(window, heap):
            if number in numbers:
                found.add(number)
                yield from _judged(window, place, size)
        if found != numbers:
            raise UnjudgedError("HDF5 with a Keras configuration that was not found")


def _wanted(window: Window) -> dict[int, set[int]]:
    """The texts of the configurations that are named: their numbers, by their global heap."""
    wanted: defaultdict[int, set[int]] = defaultdict(set)
    for marker, at in _markers(window):
        if marker == _FRACTAL:
            if window.peek(at + 7, 2) != b"\0\0":
                raise UnjudgedError("HDF5 whose heaps are filtered")
        elif (text := _reference(window, at, marker)) is None:
            raise UnjudgedError("HDF5 with a Keras configuration that is in no global heap")
        else:
            wanted[text[0]].add(text[1])
    if len(wanted) > MAX_HEAPS:
        raise UnjudgedError(f"HDF5 with configurations in more than {MAX_HEAPS} heaps")
    return wanted


def _markers(window: Window) -> Iterator[tuple[bytes, int]]:
    """The places where a fractal heap begins or an attribute is named; some of them twice."""
    count = 0
    for start in range(0, window.size, CHUNK):
        piece = window.peek(start, CHUNK + _OVERLAP)
        for found in _MARKERS.finditer(piece):
            count += 1
            if count > MAX_MARKERS:
                raise UnjudgedError(f"HDF5 of more than {MAX_MARKERS} heaps")
            yield found[0], start + found.start()


def _reference(window: Window, at: int, name: bytes) -> tuple[int, ...] | None:
    """The global heap, and the number in it, of the text of an attribute whose name is at `at`."""
    for version, length, unit in ((1, 8, 8), (3, 9, 1)):
        head = window.peek(at - length, 8)
        sizes = struct.unpack("<HHH", head[2:])
        if head[:2] == bytes((version, 0)) and sizes[0] == len(name):
            whole = [-(-size // unit) * unit for size in sizes]
            kind, value = window.peek(at + whole[0], 1), window.peek(at + sum(whole), 16)
            if len(value) < 16 or kind[0] & 15 != _VARIABLE:
                return None
            return struct.unpack("<4xQI", value)
    return None


def _objects(window: Window, at: int) -> Iterator[tuple[int, int, int]]:
    """The objects of a global heap: number, place and bytes. Of free space only the bytes count."""
    if window.peek(at, 8) != _HEAP:
        return
    end = min(at + int.from_bytes(window.peek(at + 8, 8), "little"), window.size)
    at += 16
    while at + 16 <= end:
        number, size = struct.unpack("<H6xQ", window.peek(at, 16))
        step = 16 + -(-size // 8) * 8 if number else size
        if step < 16 or step > end - at:
            return
        if number:
            yield number, at + 16, size
        at += step


def _judged(window: Window, at: int, size: int) -> Iterator[Remark]:
    if size > CONFIG_LIMIT:
        raise UnjudgedError(f"a configuration of {size} bytes")
    data = b"".join(window.peek(one, CHUNK) for one in range(at, at + size, CHUNK))[:size]
    try:
        config = configurations.of_json(data.rstrip(b"\0"))
    except ValueError as error:
        raise UnjudgedError("HDF5 with a Keras configuration that is no JSON") from error
    for one in configurations.judge(config, data, "config.json"):
        yield one._replace(offset=at + (one.offset or 0))


METADATA_LIMIT: Final = 256 << 20
ALLOWED: Final = DCP_METADATA | DTYPE_NAMES


@dataclass(frozen=True, slots=True, order=True)
class Item:
    """The place of one value of the state dict."""

    file: str
    offset: int
    length: int
    name: str


class UnreadableMetadataError(ValueError):
    """``.metadata`` is not what torch writes."""


def read_items(window: Window, found: Analysis) -> list[Item]:
    """The items that ``.metadata`` names, sorted by place; `found` is what its analysis says.

    Raises:
        UnreadableMetadataError: it names other globals, is malformed, too large, or names places
            that cannot be.
    """
    if window.size > METADATA_LIMIT:
        raise UnreadableMetadataError(f"{window.size} bytes, the limit is {METADATA_LIMIT}")
    check(found)
    data = bytearray(window.size)
    window.seek(0)
    view = memoryview(data)
    while view and (count := window.readinto(view)):
        view = view[count:]
    return items_of(data)


def check(found: Analysis) -> None:
    """Rule 5.

    Raises:
        UnreadableMetadataError: it is anything but an index.
    """
    others = [name for name in found.globals if name not in ALLOWED]
    if others or found.unfollowed or found.problem:
        raise UnreadableMetadataError(
            found.problem or (f"it names {others[0]}" if others else "globals without a name")
        )


def items_of(data: bytes | bytearray) -> list[Item]:
    """Rules 6 and 7, for bytes that passed `check`."""
    try:
        metadata = _Reader.of(data).load()
        places = metadata.storage_data
        items = [_item(index, place) for index, place in places.items()]
    except UnreadableMetadataError:
        raise
    except Exception as error:
        raise UnreadableMetadataError(f"not an index: {error}") from error
    return sorted(items)


def _item(index: Any, place: Any) -> Item:
    name, file = index.fqn, place.relative_path
    offset, length = place.offset, place.length
    if not isinstance(name, str) or not isinstance(file, str):
        raise UnreadableMetadataError("a name that is not text")
    if reason := unsafe_name(file):
        raise UnreadableMetadataError(f"{name} lies in {file!r}: {reason}")
    if type(offset) is not int or type(length) is not int or offset < 0 or length < 0:
        raise UnreadableMetadataError(f"{name} lies at {offset!r}, {length!r} bytes")
    return Item(file=file, offset=offset, length=length, name=name)


class _Reader(pickle.Unpickler):
    """Gives inert stand-ins for the names of rule 5, and refuses every other."""

    stand_ins: dict[str, Any]

    @classmethod
    def of(cls, data: bytes | bytearray) -> "_Reader":
        """A reader with stand-ins of its own."""
        reader = cls(io.BytesIO(data))
        reader.stand_ins = {name: type("Inert", (_Inert,), {}) for name in ALLOWED}
        return reader

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        """The stand-in.

        Raises:
            UnreadableMetadataError: there is none.
        """
        name = f"{module_name}.{global_name}"
        if name not in self.stand_ins:
            raise UnreadableMetadataError(f"it names {name}")
        return self.stand_ins[name]

    def persistent_load(self, pid: Any, /) -> Any:
        """Refused: an index has no persistent ids."""
        raise UnreadableMetadataError(f"a persistent id {str(pid)[:40]!r}")


class _Inert:
    """Takes any arguments and any state, and does nothing with them."""

    def __new__(cls, *_args: object, **_options: object) -> Self:
        return super().__new__(cls)

    def __init__(self, *_args: object, **_options: object) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        if isinstance(state, dict):
            self.__dict__.update(
                (key, value) for key, value in state.items() if isinstance(key, str)
            )
