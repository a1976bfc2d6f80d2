# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Have the launcher sign what a script has saved, as it is saved.

Rules:

1. before the first byte an empty statement marks the save as begun. A kill, an error and a refusal
   leave the mark: what lies there then is signed by nobody;
2. when the call has returned, the files are read back and hashed, and the launcher signs that. A
   save that cannot be signed fails;
3. of a distributed save the files are those that torch's own metadata names, and its first rank
   signs when all ranks have written; what else lies in the directory is not signed;
4. a file or directory that this process has signed and moves is signed under its new name, if its
   bytes are the same; of one that it has removed the statement goes, too.

This says which bytes an honest script has saved. What a script of bad intent has signed are the
bytes that it chose.
"""

import functools
import os
import stat
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from securetrain.artifacts.statement import (
    Form,
    PolicyRef,
    SavedFile,
    SavedFiles,
    digest_file,
    sidecar,
    sign_saved,
)
from securetrain.core.errors import RuntimeRefusal
from securetrain.core.files import open_regular, write_atomic
from securetrain.identity.signing import Ask, LauncherKey, shared_socket

_METADATA: Final = ".metadata"
_REMEMBERED: Final = 4096
_STEPS: Final = ("step", "global_step", "steps", "iteration")


@dataclass(frozen=True, slots=True)
class Begun:
    """A save that has begun."""

    way: str
    form: Form
    path: Path
    step: int | None


@dataclass(slots=True, kw_only=True)
class SaveSigner:
    """The signed saves of one worker."""

    signer: str
    """The launcher's signing socket."""
    policy: PolicyRef
    name: str
    """Under which the policy says that the run signs; empty for the run's own."""
    ways: dict[str, int] = field(default_factory=dict)
    """How often each function's save was signed."""
    _number: int = 0
    _signed: dict[Path, SavedFiles] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def begin(self, way: str, form: Form, place: str, saved: Any) -> Begun:
        """Mark a save (rule 1).

        Raises:
            UsageError: ST-USAG-002 when the mark cannot be written.
        """
        path = Path(os.path.realpath(place))
        target = sidecar(path, form)
        if target.parent.is_dir():
            write_atomic(target, b"")
        return Begun(way, form, path, _step(saved))

    def finish(self, begun: Begun, names: Sequence[str] = ()) -> None:
        """Sign what was saved (rule 2).

        Args:
            begun: What `begin` gave.
            names: The files of a directory, below it.

        Raises:
            RuntimeRefusal: ST-RUNT-030 to 035.
            UsageError: ST-USAG-002 when it cannot be read back, or the statement not be written.
        """
        with self._lock:
            self._sign(begun, names)
            self.ways[begun.way] = self.ways.get(begun.way, 0) + 1
            self.sweep()

    def _sign(self, begun: Begun, names: Sequence[str]) -> None:
        path, form = begun.path, begun.form
        folder, found = (path, sorted(set(names))) if names else (path.parent, [path.name])
        socket = shared_socket(Path(self.signer))
        welcome = socket.welcome()
        if not welcome.saved_key:
            raise RuntimeRefusal("ST-RUNT-031", "this launcher signs no saves of scripts")
        key = LauncherKey.of(socket, Ask.SAVED, welcome.saved_key, welcome.saved_companion)
        self._number += 1
        said = SavedFiles(
            run_id=welcome.run_id,
            name=self.name or welcome.run_id,
            policy=self.policy,
            rank=welcome.rank,
            world_size=welcome.world_size,
            number=self._number,
            step=begun.step,
            created=datetime.now(UTC),
            way=begun.way,
            form=form,
            place=folder.name,
            files=[_read_back(folder, name) for name in found],
        )
        write_atomic(sidecar(path, form), sign_saved(said, key))
        self._signed.pop(path, None)
        self._signed[path] = said
        while len(self._signed) > _REMEMBERED:
            del self._signed[next(iter(self._signed))]

    def sweep(self) -> None:
        """Remove the statements on files that are gone (rule 4)."""
        with self._lock:
            for path, said in list(self._signed.items()):
                if not path.exists():
                    with suppress(OSError):
                        sidecar(path, said.form).unlink()
                    del self._signed[path]

    def follow_moves(self, module: ModuleType) -> None:
        """Have ``os.rename`` and ``os.replace`` keep statements true (rule 4)."""
        for name in ("rename", "replace"):
            setattr(module, name, self._following(getattr(module, name)))

    def _following(self, move: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(move)
        def moved(src: Any, dst: Any, **options: Any) -> None:
            carried = self._below(src) if not options and self._signed else []
            if not carried:
                move(src, dst, **options)
                return
            with self._lock:
                source = Path(os.path.realpath(os.fsdecode(src)))
                target = Path(os.path.realpath(os.fsdecode(dst)))
                alone = [said for path, said in carried if path == source]
                if alone and alone[0].form is Form.FILE:
                    write_atomic(sidecar(target, Form.FILE), b"")
                move(src, dst)
                for path, said in carried:
                    self._sign_again(path, target / path.relative_to(source), said)

        return moved

    def _below(self, src: Any) -> list[tuple[Path, SavedFiles]]:
        try:
            source = Path(os.path.realpath(os.fsdecode(src)))
        except (TypeError, ValueError):
            return []
        with self._lock:
            return [(p, s) for p, s in self._signed.items() if p.is_relative_to(source)]

    def _sign_again(self, old: Path, new: Path, said: SavedFiles) -> None:
        """Sign a thing under its new name; one that has changed stays with a mark."""
        folder = new if said.form is Form.DIRECTORY else new.parent
        names = [file.name for file in said.files] if said.form is Form.DIRECTORY else [new.name]
        del self._signed[old]
        before = [(file.size, file.sha256) for file in said.files]
        now = [_read_back(folder, name) for name in names]
        write_atomic(sidecar(new, said.form), b"")
        if [(file.size, file.sha256) for file in now] == before:
            of_directory = names if said.form is Form.DIRECTORY else ()
            self._sign(Begun(said.way, said.form, new, said.step), of_directory)
        if said.form is Form.FILE:  # it may have moved along, within a directory
            with suppress(OSError):
                sidecar(old, said.form).unlink()


def names_of(metadata: Any, folder: Path) -> list[str] | None:
    """The files that a distributed save has written (rule 3); None where nothing says it."""
    entries = getattr(metadata, "storage_data", None)
    if not isinstance(entries, dict) or not (folder / _METADATA).is_file():
        return None
    paths = {getattr(one, "relative_path", None) for one in entries.values()}
    if not all(isinstance(path, str) for path in paths):
        return None
    return sorted({_METADATA, *(str(path) for path in paths)})


def is_plain_file(place: str) -> bool:
    """Tell whether a place is a regular file, so that it can be signed."""
    try:
        return stat.S_ISREG(Path(place).stat().st_mode)
    except OSError:
        return False


def may_become_file(place: str) -> bool:
    """Tell whether a place is a regular file, or nothing yet, on a disk of this machine."""
    return Path(place).is_absolute() and (is_plain_file(place) or not Path(place).exists())


def _read_back(folder: Path, name: str) -> SavedFile:
    with open(open_regular(folder / name), "rb", buffering=0) as file:  # noqa: PTH123 - a descriptor
        size, sha256 = digest_file(file)
    return SavedFile(name=name, size=size, sha256=sha256)


def _step(saved: Any) -> int | None:
    """The step that the saved thing names itself; None where it names none."""
    if isinstance(saved, dict):
        for name in _STEPS:
            found = saved.get(name)
            if type(found) is int and 0 <= found < 1 << 53:
                return found
    return None
