# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Directories that this process has verified, so that one is hashed once and not for each reader.

A directory is verified again when any file in it is not as it was (`contents.look`): its inode,
size or times, which are the kernel's. What is read after a judgement may have been changed in
between; who reads takes a copy of what is hashed (`covering`), where that counts.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from securetrain.artifacts.saved.contents import Print, look
from securetrain.artifacts.saved.folder import verify_folder
from securetrain.identity.trust import TrustRoot


@dataclass(slots=True, kw_only=True)
class JudgedFolders:
    """The directories of one process."""

    trust: Sequence[Path]
    """Files of trust roots, which are read each time."""
    clock: Callable[[], datetime]
    _found: dict[Path, dict[str, Print]] = field(default_factory=dict)

    def judge(self, folder: Path) -> Path:
        """Verify a directory, unless it is as it was; give its path with every link followed.

        Raises:
            IntegrityError: ST-CKPT-100 to 200.
            UsageError: ST-USAG-002, it cannot be read.
        """
        path = Path(os.path.realpath(folder))
        now = look(path)
        if not now or self._found.get(path) != now:
            self._found.pop(path, None)
            at = self.clock()
            verify_folder(path, trust=[TrustRoot.load(one, at) for one in self.trust], now=at)
            self._found[path] = now
        return path

    def holds(self, path: Path) -> bool:
        """Tell whether a file was there when a directory around it was verified."""
        return any(
            path.relative_to(folder).as_posix() in self._found[folder]
            for folder in path.parents
            if folder in self._found
        )
