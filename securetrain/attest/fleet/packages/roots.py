# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Files below the root of an installed system, with links followed as inside of it."""

import os
import stat
from pathlib import Path
from typing import Final

from securetrain.attest.fleet.packages.listing import digest_of

_MAX_DEPTH: Final = 200
"""Of folders: each is looked for inside of the one before."""
_MAX_LINKS: Final = 40


class Root:
    """A mounted or unpacked system; ``/`` is the one that runs."""

    def __init__(self, folder: Path) -> None:
        """Remember the folder; nothing is read yet."""
        self.folder = folder.resolve()
        self._folders: dict[str, str | None] = {"/": "/"}

    def real(self, path: str) -> str | None:
        """Find where a packaged path lies, links in its folders followed; None when nowhere.

        Args:
            path: absolute, as `clean` gives it.
        """
        if path.count("/") > _MAX_DEPTH:
            return None
        parent, _, name = path.rpartition("/")
        folder = self._folder(parent or "/", _MAX_LINKS)
        return None if folder is None else f"{folder.rstrip('/')}/{name}"

    def digests(self, path: str) -> tuple[str, str] | None:
        """SHA-256 and MD5 of a regular file; None when there is none.

        Args:
            path: as `real` gives it.
        """
        try:
            fd = os.open(self._outside(path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return None
        with os.fdopen(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return None
            return digest_of(file)

    def is_file(self, path: str) -> bool:
        """Tell whether there is a regular file."""
        try:
            return stat.S_ISREG(self._outside(path).lstat().st_mode)
        except OSError:
            return False

    def _outside(self, path: str) -> Path:
        return self.folder / path.lstrip("/")

    def _folder(self, path: str, links: int) -> str | None:
        if path in self._folders:
            return self._folders[path]
        found = self._walk(path, links)
        self._folders[path] = found
        return found

    def _walk(self, path: str, links: int) -> str | None:
        above, _, name = path.rpartition("/")
        parent = self._folder(above or "/", links)
        if parent is None or links == 0:
            return None
        here = f"{parent.rstrip('/')}/{name}"
        try:
            info = self._outside(here).lstat()
            if stat.S_ISDIR(info.st_mode):
                return here
            if not stat.S_ISLNK(info.st_mode):
                return None
            target = self._outside(here).readlink().as_posix()
        except OSError:
            return None
        whole = target if target.startswith("/") else f"{parent}/{target}"
        parts: list[str] = []
        for part in whole.split("/"):
            if part == "..":
                parts = parts[:-1]
            elif part not in {"", "."}:
                parts.append(part)
        # Not remembered on the way: a loop would find itself.
        return self._folder("/" + "/".join(parts), links - 1) if parts else "/"
