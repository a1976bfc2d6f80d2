# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The constant data of a shared library, read without loading it (ELF-64, gABI 4.1).

Rules:

1. only the header, the section table, its names and the sections called ``.rodata*`` are read, each
   with a limit: a NCCL of 450 MiB, which is nearly all GPU code, costs less than one;
2. offsets and sizes must lie in the file; what is not ELF-64 in this machine's byte order, or has
   no section table, raises `ElfError`: it cannot be judged.
"""

import os
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_HEADER: Final = struct.Struct("=16s HHI QQQ I HHHHHH")
_SECTION: Final = struct.Struct("=II QQQQ II QQ")
_MAGIC: Final = b"\x7fELF\x02" + (b"\x01" if sys.byteorder == "little" else b"\x02")
_PROGBITS: Final = 1
_MAX_SECTIONS: Final = 4096
_NAMES_LIMIT: Final = 1 << 20
_DATA_LIMIT: Final = 64 << 20


class ElfError(ValueError):
    """The file is not one that can be judged."""


def constants(path: Path) -> bytes:
    """Read the ``.rodata`` sections of a shared library.

    Raises:
        ElfError: The file is malformed, too large in what is read, or not ELF-64.
        OSError: It cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        found = list(_constants(descriptor))
    finally:
        os.close(descriptor)
    if not found:
        raise ElfError("it has no constant data")
    return b"\0".join(found)


def _constants(descriptor: int) -> Iterator[bytes]:
    """The contents of each section of constants."""
    size = os.fstat(descriptor).st_size
    header = _HEADER.unpack(_read(descriptor, 0, _HEADER.size, size))
    start, width, count, names_at = header[6], header[11], header[12], header[13]
    if not header[0].startswith(_MAGIC):
        raise ElfError("it is no ELF-64 library of this machine")
    if width != _SECTION.size or not names_at < count <= _MAX_SECTIONS:
        raise ElfError("it has no section table")
    table = _read(descriptor, start, count * width, size)
    rows = [_SECTION.unpack_from(table, n * width) for n in range(count)]
    names = _read(descriptor, rows[names_at][4], min(rows[names_at][5], _NAMES_LIMIT), size)
    left = _DATA_LIMIT
    for row in rows:
        name = names[row[0] :].partition(b"\0")[0]
        if row[1] != _PROGBITS or not name.startswith(b".rodata"):
            continue
        left -= row[5]
        if left < 0:
            raise ElfError("it has more constant data than is read")
        yield _read(descriptor, row[4], row[5], size)


def _read(descriptor: int, start: int, length: int, size: int) -> bytes:
    if start + length > size:
        raise ElfError("it ends before it should")
    data = os.pread(descriptor, length, start)
    if len(data) != length:
        raise ElfError("it was changed while it was read")
    return data
