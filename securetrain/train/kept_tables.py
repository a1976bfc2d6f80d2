# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Keep the tables of steps in a folder of the run, by their SHA-256.

They are not forced to the disk: a power-off may cost the last ones, which shows by their names, and
the records, which name them, are kept by the launcher.
"""

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
        path, temporary = folder / digest, folder / f".{digest}.tmp"
        try:
            folder.mkdir(exist_ok=True)
            temporary.write_bytes(data)
            temporary.replace(path)
        except OSError as error:
            with suppress(OSError):
                temporary.unlink()
            raise os_error(error, str(path)) from error

    return keep
