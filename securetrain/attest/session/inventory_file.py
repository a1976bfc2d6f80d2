# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The pages of a large inventory, in a file beside the reference values that name them.

Rules:

1. a file of pages is named after the table that it ends with, and never changes: an edition's pages
   are whole before the edition takes the last one's place, and a kill at any instant leaves the
   last edition with its own;
2. the file stays open for as long as somebody reads it: an edition that replaces it takes nothing
   away from a coordinator that still judges by the last one;
3. the pages of the edition in force and of the one before are kept, all older ones are removed.
"""

import os
import re
import secrets
import weakref
from collections.abc import Collection, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from securetrain.core.errors import SecureTrainError, os_error, reason
from securetrain.core.files import PUBLIC_FILE, open_regular, remove_temporaries, sync_dir
from securetrain.evidence import EnrolledNode, PagesRoot, PageWriter, ReadAt, unusable

_NAMED: Final = 32
"""Hex digits of the table's SHA-256 in the file's name; all of it is checked."""


def pages_path(path: Path, root: PagesRoot) -> Path:
    """The file with the pages of the reference values at `path`."""
    return path.with_name(f"{path.name}.nodes-{root.table[:_NAMED]}")


def open_pages(path: Path, root: PagesRoot) -> tuple[ReadAt, str]:
    """A reader of the pages of the reference values at `path`, and the file's name.

    Raises:
        AttestationError: ST-ATTS-009 when they are not there.
    """
    file = pages_path(path, root)
    try:
        fd = open_regular(file)
    except (OSError, SecureTrainError) as error:
        raise unusable(
            f"the pages of its nodes cannot be read: {reason(error)}",
            str(file),
            f"copy the file of this name to the folder of {path.name}: both are one edition",
        ) from error
    return _Opened(fd, str(file)), str(file)


def write_pages(path: Path, nodes: Mapping[str, EnrolledNode]) -> PagesRoot:
    """Write the pages of an edition that is to be at `path`, durable and whole.

    Raises:
        AttestationError: ST-ATTS-018; ST-ATTS-009 about pages that are taken over.
        UsageError: ST-USAG-002 or ST-USAG-006 when they cannot be written; nothing is left behind.
    """
    temporary = path.with_name(f".{path.name}.tmp-{secrets.token_hex(6)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        fd = os.open(temporary, flags, PUBLIC_FILE)
        try:
            with os.fdopen(fd, "wb", buffering=1 << 20) as file:
                root = PageWriter(file.write).write(nodes, str(path))
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(pages_path(path, root))
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise
        sync_dir(path.parent)
    except OSError as error:
        raise os_error(error, str(path)) from error
    return root


def remove_pages(path: Path, kept: Collection[PagesRoot]) -> None:
    """Remove the pages of editions that are over, and what deaths have left of unfinished ones.

    Raises:
        UsageError: ST-USAG-002 when one cannot be removed.
    """
    names = {pages_path(path, root).name for root in kept}
    ours = re.compile(re.escape(f"{path.name}.nodes-") + rf"[0-9a-f]{{{_NAMED}}}")
    try:
        for found in path.parent.iterdir():
            if ours.fullmatch(found.name) and found.name not in names:
                found.unlink()
        remove_temporaries(path)
    except OSError as error:
        raise os_error(error, str(path)) from error


class _Opened:
    """A file that is read at offsets, and closed when nobody reads it any more."""

    def __init__(self, fd: int, where: str) -> None:
        self._fd, self._where = fd, where
        weakref.finalize(self, partial(os.close, fd))

    def __call__(self, offset: int, size: int) -> bytes:
        parts = []
        try:
            while size:
                part = os.pread(self._fd, size, offset)
                if not part:
                    break
                parts.append(part)
                offset, size = offset + len(part), size - len(part)
        except OSError as error:
            raise unusable(
                f"the pages of its nodes cannot be read: {error.strerror}",
                self._where,
                "find out what is wrong with the disk",
            ) from error
        return b"".join(parts)
