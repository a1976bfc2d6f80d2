# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""HDF5: the Keras configuration in it, found by a bounded search and not by a reader of the format.

The file is searched from front to back. Rules, in order:

1. the superblock must be one that Keras's files have, and end where the file ends;
2. what a global heap holds and begins as a JSON object is judged as a configuration: h5py writes
   attributes of text there, never compressed;
3. a file that names the attribute ``model_config`` and in which no configuration was found, and one
   whose heaps have filters, cannot be judged. Without that name Keras reads only numbers from it.

Source: HDF5 File Format Specification 3.0, II.A (superblock), III.E (global heap), III.G (fractal
heap).
"""

import json
from collections.abc import Iterator
from typing import Final

from securetrain.artifacts.scan import called, documents
from securetrain.artifacts.scan.remarks import CHUNK, Remark, UnjudgedError
from securetrain.artifacts.scan.window import Window

CONFIG: Final = b"model_config\0"
MAX_HEAPS: Final = 100_000
CONFIG_LIMIT: Final = 32 << 20

_HEAP: Final = b"GCOL\x01\0\0\0"
_FRACTAL: Final = b"FRHP\0"
_OVERLAP: Final = 64


def judge(window: Window) -> Iterator[Remark]:
    """The remarks about an HDF5 file.

    Raises:
        UnjudgedError: rules 1 and 3.
    """
    head = window.peek(0, 64)
    old = head[8:9] in (b"\0", b"\1")
    sizes = head[13:15] if old else head[9:11]
    begin, end = (24, 40) if old else (12, 28)
    end += 4 if head[8:9] == b"\1" else 0
    begin += 4 if head[8:9] == b"\1" else 0
    base, last = (int.from_bytes(head[at : at + 8], "little") for at in (begin, end))
    if head[8:9] > b"\3" or sizes != b"\x08\x08" or base != 0 or last != window.size:
        raise UnjudgedError("HDF5 of a layout that is not known here, or cut short")
    named, found = False, False
    for marker, at in _markers(window):
        if marker == CONFIG:
            named = True
        elif marker == _FRACTAL:
            if window.peek(at + 7, 2) != b"\0\0":
                raise UnjudgedError("HDF5 whose heaps are filtered")
        else:
            for place, data in _objects(window, at):
                if (config := _config(data)) is not None:
                    found = True
                    for one in called.judge(config, data, "config.json"):
                        yield one._replace(offset=place + (one.offset or 0))
    if named and not found:
        raise UnjudgedError("HDF5 with a Keras configuration that was not found")


def _markers(window: Window) -> Iterator[tuple[bytes, int]]:
    """The places where a heap begins or the attribute is named."""
    count = 0
    for start in range(0, window.size, CHUNK):
        piece = window.peek(start, CHUNK + _OVERLAP)
        for marker in (CONFIG, _HEAP, _FRACTAL):
            at = piece.find(marker)
            while 0 <= at < CHUNK:
                count += 1
                if count > MAX_HEAPS:
                    raise UnjudgedError(f"HDF5 of more than {MAX_HEAPS} heaps")
                yield marker, start + at
                at = piece.find(marker, at + 1)


def _objects(window: Window, at: int) -> Iterator[tuple[int, bytes]]:
    """The objects of a global heap that begin like JSON, with their places."""
    end = min(at + int.from_bytes(window.peek(at + 8, 8), "little"), window.size)
    at += 16
    while at + 16 <= end:
        head = window.peek(at, 16)
        size = int.from_bytes(head[8:], "little")
        if head[:2] == b"\0\0" or size > end - at - 16:
            return
        if size and window.peek(at + 16, 1) == b"{":
            if size > CONFIG_LIMIT:
                raise UnjudgedError(f"a configuration of {size} bytes")
            pieces = range(at + 16, at + 16 + size, CHUNK)
            data = b"".join(window.peek(one, CHUNK) for one in pieces)
            yield at + 16, data[:size]
        at += 16 + -(-size // 8) * 8


def _config(data: bytes) -> object | None:
    try:
        return documents.of_json(data.rstrip(b"\0"))
    except (json.JSONDecodeError, UnicodeDecodeError):
        return None
