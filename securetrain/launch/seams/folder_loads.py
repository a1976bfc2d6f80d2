# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Directories that a framework reads: verified as a whole before anything of them is parsed.

Rules:

1. before the framework's own call (`frameworks.LOADS`) reads any file, every file of the directory
   is hashed and must be what was signed, none may be missing, and none be there besides;
2. a file that says which directory is meant (DeepSpeed's ``latest``) is verified, and what was
   verified is what the framework is told;
3. what Python opens for reading below such a directory afterwards is a copy in memory that was
   hashed again. Tensors are copied by `verified_loads`. What a library opens by itself, such as a
   tokenizer's ``tokenizer.json``, was hashed a moment before, and is not copied;
4. a path that is no directory is left to `verified_loads`.
"""

import builtins
import functools
import io
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from securetrain.core.errors import IntegrityError
from securetrain.launch.seams import patches
from securetrain.launch.seams.frameworks import LOADS, FolderLoad, Given
from securetrain.launch.seams.import_hooks import Patch

if TYPE_CHECKING:
    from securetrain.artifacts import folder as saves
    from securetrain.launch.seams.verified_loads import VerifiedLoads

_POINTER_LIMIT: Final = 4096
_READING: Final = frozenset({"r", "rb", "rt", "br", "tr"})


@dataclass(slots=True)
class FolderLoads:
    """The directories that one worker reads."""

    files: "VerifiedLoads"
    """Opens verified copies of single files."""
    _judged: "saves.JudgedFolders | None" = None
    _opens: Callable[..., Any] | None = field(default=None, repr=False)

    def patches(self) -> dict[str, Patch]:
        """The seams, by module."""
        found: dict[str, Patch] = {}
        for row in LOADS:
            for module in row.modules:
                patch = functools.partial(
                    patches.wrap_method_if_there,
                    functools.partial(self._verifying, row),
                    row.owner,
                    row.call,
                )
                earlier = (found[module],) if module in found else ()
                found[module] = functools.partial(patches.apply_all, (*earlier, patch))
        return found

    def judge(self, folder: str) -> None:
        """Verify a directory (rule 1).

        Raises:
            IntegrityError: ST-CKPT-100 to 200; the ledger says so first.
            UsageError: ST-USAG-002, it cannot be read.
        """
        if self._judged is None:
            from securetrain.artifacts import folder as saves  # noqa: PLC0415 - needs cryptography

            self._judged = saves.JudgedFolders(trust=self.files.trust, clock=self.files.clock)
        try:
            self._judged.judge(Path(folder))
        except IntegrityError as error:
            self.files.refused(error, folder[:300])
            raise
        self._copy_what_is_opened()

    def _verifying(self, row: FolderLoad, load: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(load)
        def verified(*args: Any, **kwargs: Any) -> Any:
            given: Given = (args[0], args[1:], kwargs) if row.owner else (None, args, kwargs)
            pointer = row.pointer(given)
            if pointer and Path(pointer).is_file():
                given = row.point(given, self._pointed(pointer))
            folder = row.place(given)
            if folder and Path(folder).is_dir():
                self.judge(folder)
            this, rest, options = given
            return load(this, *rest, **options) if row.owner else load(*rest, **options)

        return verified

    def _pointed(self, pointer: str) -> str:
        """Read a file that names a directory (rule 2)."""
        with self.files.opened(pointer) as copy:
            return copy.read(_POINTER_LIMIT).decode(errors="strict").strip()

    def _copy_what_is_opened(self) -> None:
        """Have Python's ``open`` read copies that were verified (rule 3)."""
        if self._opens is None:
            self._opens = io.open
            for module in (builtins, io):
                patches.wrap(self._copying, "open", module)

    def _copying(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(plain)
        def opened(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            if mode not in _READING or not isinstance(file, str | os.PathLike):
                return plain(file, mode, *args, **kwargs)
            path = Path(os.path.realpath(file))
            if self._judged is None or not self._judged.holds(path) or not path.is_file():
                return plain(file, mode, *args, **kwargs)
            with self.files.opened(path) as copy:
                again = os.open(f"/proc/self/fd/{copy.fileno()}", os.O_RDONLY | os.O_CLOEXEC)
            return plain(again, mode, *args, **kwargs)

        return opened
