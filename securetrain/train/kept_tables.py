# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Keep the tables of steps in a folder of the run, by their SHA-256.

They are not forced to the disk: a power-off may cost the last ones, which shows by their names, and
the records, which name them, are kept by the launcher.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from securetrain.chain.store import PIECE_LIMIT
from securetrain.core.errors import UsageError, os_error

WHERE: Final = "checkpoint.tables"


def keeper_of_tables(folder: Path) -> Callable[[str, bytes], None]:
    """A function that keeps a piece under its digest, whole or not at all.

    It raises ST-USAG-001 for one that is too large to be a piece of evidence, and what
    `core.errors.os_error` says where it cannot be written.
    """

    def keep(digest: str, data: bytes) -> None:
        if len(data) > PIECE_LIMIT:
            raise UsageError(
                "ST-USAG-001",
                f"what the ranks say in a step has {len(data)} bytes, the limit is {PIECE_LIMIT}",
                WHERE,
                "set checkpoint.tables: false; the tables' digests are recorded all the same",
            )
        path, temporary = f"{where}/{digest}", f"{where}/.{digest}.tmp"
        try:
            _write(temporary, data)
            os.replace(temporary, path)  # noqa: PTH105 - see `_write`
        except OSError as error:
            with suppress(OSError):
                Path(temporary).unlink()
            raise os_error(error, path) from error

    where = str(folder)
    return keep


def _write(name: str, data: bytes) -> None:
    """Write a file. It is made twice in every step that is trained, and what pathlib and a buffered
    writer do besides took a third of the time that keeping took.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    try:
        fd = os.open(name, flags, 0o666)
    except FileNotFoundError:
        Path(name).parent.mkdir(exist_ok=True)
        fd = os.open(name, flags, 0o666)
    try:
        left = memoryview(data)
        while left:
            left = left[os.write(fd, left) :]
    finally:
        os.close(fd)
