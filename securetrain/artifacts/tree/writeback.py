# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Let the disk begin while the file is still being written and hashed.

Without it the disk idles until the final fsync, which then waits for everything. What is begun
early counts for nothing: durable is a file when its fsync has returned without an error, which also
tells of errors of what was begun early.
"""

import ctypes
from functools import cache
from typing import Any, Final

PIECE: Final = 8 << 20
"""Bytes that are written before the disk is told."""
_WRITE: Final = 2  # SYNC_FILE_RANGE_WRITE: begin, and wait for nothing


@cache
def _function() -> Any:
    """sync_file_range of the C library; None where there is none."""
    try:
        found = ctypes.CDLL(None).sync_file_range
    except (OSError, AttributeError):
        return None
    found.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    found.restype = ctypes.c_int
    return found


def begin(fd: int, offset: int, length: int) -> None:
    """Begin to write a stretch of a file to the disk. A hint: a refusal changes nothing."""
    function = _function()
    if function is not None:
        function(fd, offset, length, _WRITE)
