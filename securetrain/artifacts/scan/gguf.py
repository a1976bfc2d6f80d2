# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""GGUF: the metadata is read, its chat templates are judged, and tensors must lie in the file.

Source: ggml/docs/gguf.md (versions 2 and 3, little-endian).
"""

from collections.abc import Iterator
from typing import Final

from securetrain.artifacts.scan import templates
from securetrain.artifacts.scan.remarks import BrokenError, Cursor, Remark, UnjudgedError
from securetrain.artifacts.scan.window import Window

MAX_ENTRIES: Final = 100_000
MAX_ELEMENTS: Final = 8_000_000
STRING_LIMIT: Final = 16 << 20

_WIDTHS: Final = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_STRING: Final = 8
_ARRAY: Final = 9


def judge(window: Window) -> Iterator[Remark]:
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
    yield from _tensors(cursor, num_tensors)


def _tensors(cursor: Cursor, count: int) -> Iterator[Remark]:
    for _ in range(count):
        name = _string(cursor)
        dimensions = cursor.number(4)
        if dimensions > 8:
            raise BrokenError(f"a tensor of {dimensions} dimensions at byte {cursor.at}")
        cursor.skip(8 * dimensions + 4)
        offset = cursor.number(8)
        if offset > cursor.window.size:
            raise BrokenError(f"tensor {name[:80]!r} lies at {offset}, behind the file's end")
    yield from ()


def _string(cursor: Cursor) -> bytes:
    return cursor.take(cursor.number(8), STRING_LIMIT)


def _value(cursor: Cursor, kind: int) -> None:
    """Step over a value; arrays of arrays without recursion."""
    if kind != _ARRAY:
        return _element(cursor, kind)
    waiting = [(cursor.number(4), cursor.number(8))]
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
        elif kind == _ARRAY and count:
            waiting.append((_ARRAY, count - 1))
            waiting.append((cursor.number(4), cursor.number(8)))
        elif kind != _ARRAY:
            raise BrokenError(f"a value of kind {kind} at byte {cursor.at}")
    return None


def _element(cursor: Cursor, kind: int) -> None:
    if kind == _STRING:
        cursor.skip(cursor.number(8))
    elif kind in _WIDTHS:
        cursor.skip(_WIDTHS[kind])
    else:
        raise BrokenError(f"a value of kind {kind} at byte {cursor.at}")
