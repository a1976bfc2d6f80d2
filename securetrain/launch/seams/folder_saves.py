# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The directories that frameworks write: each one save, signed as a whole when it is written.

Rules:

1. what such a call saves within its directory is part of it. The process that leads (the row in
   `frameworks`) signs its files in the one statement of the directory; every other process has its
   own files signed as it saves them, each beside the file, as without this;
2. where all processes make the call, the leader waits until all have returned, and puts the files
   of the others into the statement of the directory, too. The others wait until it has signed;
3. where a script may make the call on one process alone, the leader waits for nobody, and the files
   of others stand in their own statements alone;
4. files beside the directory (DeepSpeed's ``latest``) are signed each;
5. what is still written when the call has returned is not signed, and said.
"""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from securetrain.core.errors import RuntimeRefusal
from securetrain.launch.seams import patches
from securetrain.launch.seams.frameworks import FolderSave, Given

if TYPE_CHECKING:
    from securetrain.artifacts import signer

PATIENCE: Final = timedelta(minutes=30)
"""As torch's own groups wait by default."""
_KEY: Final = "securetrain-save"
_STORE: Final = "_get_default_store"


@dataclass(frozen=True, slots=True)
class Within:
    """The directory that is being written by a call of this thread."""

    folder: Path
    signs: bool
    """Whether this process signs it as a whole."""
    is_signed: bool
    """Whether anybody does."""

    def holds(self, place: str, *, itself: bool) -> bool:
        """Tell whether a place is below the directory, or is `itself`."""
        if "://" in place:
            return False
        path = Path(os.path.realpath(place))
        return self.folder in path.parents or (itself and path == self.folder)


WITHIN: Final[ContextVar[Within | None]] = ContextVar("folder-save", default=None)


def is_part(place: str, *, is_folder: bool) -> bool:
    """Tell whether a save of a file, or of torch's own directories, is signed, or noticed, with the
    directory that is being written (rule 1).
    """
    within = WITHIN.get()
    if within is None:
        return False
    if not within.is_signed:
        return within.holds(place, itself=True)
    if is_folder:  # all ranks write it, and sign it by way of the first, if it is below
        return Path(os.path.realpath(place)) == within.folder
    return within.signs and within.holds(place, itself=False)


def is_inner(place: str) -> bool:
    """Tell whether a framework's call is made by another one that writes the same directory."""
    within = WITHIN.get()
    return within is not None and within.holds(place, itself=True)


class Barrier:
    """One process's waits for every rank to come to a place where all come to, through torch's
    own store: no collective is made, and no GPU waits. Those of all ranks have the same numbers.
    """

    def __init__(self, patience: timedelta = PATIENCE) -> None:
        self._patience = patience
        self._number = 0

    def wait(self, what: str) -> None:
        """Wait for all ranks.

        Raises:
            RuntimeRefusal: ST-RUNT-038, some rank did not come.
        """
        if (store := self._arrive()) is None:
            return
        key = self._key
        try:
            store.wait([f"{key}/all"], self._patience)
        except RuntimeError as error:
            raise RuntimeRefusal(
                "ST-RUNT-038",
                f"{store.add(key, 0)} of {_world()} ranks have returned from {what} after"
                f" {self._patience.total_seconds():.0f} s",
                what,
            ) from error

    def pass_by(self, times: int) -> None:
        """Let nobody wait for this rank, which has failed."""
        for _ in range(times):
            self._arrive()

    @property
    def _key(self) -> str:
        return f"{_KEY}/{self._number}"

    def _arrive(self) -> Any:
        """Say that this rank is there; None where there are no others."""
        if (world := _world()) == 1:
            return None
        self._number += 1
        store = patches.find(sys.modules["torch.distributed"].distributed_c10d, _STORE)()
        if store.add(self._key, 1) == world:
            store.set(f"{self._key}/all", "1")
        return store


def _world() -> int:
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return 1
    return int(dist.get_world_size())


@dataclass(slots=True)
class FolderCalls:
    """The calls of one worker."""

    barrier: Barrier = field(default_factory=Barrier)

    def sign(
        self, signing: "signer.SaveSigner", row: FolderSave, save: Callable[[], Any], given: Given
    ) -> Any:
        """Save, and have the directory signed.

        Raises:
            RuntimeRefusal: ST-RUNT-030 to 035, the launcher does not sign; 038, a rank is missing.
            IntegrityError: ST-CKPT-100 to 200, what another rank had signed does not hold.
            UsageError: ST-USAG-002, it cannot be read back.
        """
        is_collective = row.is_collective(given)
        waits = 2 if is_collective else 0
        try:
            signed = self._begin(signing, row, given)
            with writing(row.place(given), signs=signed is not None, is_signed=True):
                result = save()
            if is_collective:
                waits -= 1
                self.barrier.wait(row.way)
            if signed is not None:
                signed()
        except BaseException:
            self.barrier.pass_by(waits)
            raise
        if is_collective:
            self.barrier.wait(row.way)
        return result

    def _begin(
        self, signing: "signer.SaveSigner", row: FolderSave, given: Given
    ) -> Callable[[], None] | None:
        """Begin on the process that leads; what is returned ends it."""
        if not row.leads(given):
            return None
        step, around, is_shared = row.step(given), row.around(given), row.is_collective(given)
        begun = signing.begin_folder(row.way, row.place(given), step)
        before = _beside(around)

        def finish() -> None:
            signing.finish_folder(begun, with_all=is_shared, is_shared=is_shared)
            for name, now in _beside(around).items():
                if before.get(name) != now:
                    _sign_file(signing, row.way, Path(around, name), step)

        return finish


@contextlib.contextmanager
def writing(folder: str, *, signs: bool, is_signed: bool) -> Iterator[None]:
    """Remember that a directory is being written."""
    token = WITHIN.set(Within(Path(os.path.realpath(folder)), signs, is_signed))
    try:
        yield
    finally:
        WITHIN.reset(token)


def _beside(folder: str) -> dict[str, tuple[int, int, int]]:
    """The regular files of a directory, and how they are."""
    from securetrain.artifacts import saved_files  # noqa: PLC0415 - needs cryptography

    found: dict[str, tuple[int, int, int]] = {}
    if folder and Path(folder).is_dir():
        for entry in os.scandir(folder):
            if entry.is_file(follow_symlinks=False) and not saved_files.is_sidecar(entry.name):
                info = entry.stat(follow_symlinks=False)
                found[entry.name] = (info.st_ino, info.st_size, info.st_ctime_ns)
    return found


def _sign_file(signing: "signer.SaveSigner", way: str, path: Path, step: int | None) -> None:
    from securetrain.artifacts import saved_files  # noqa: PLC0415 - needs cryptography

    saved = {} if step is None else {"step": step}
    signing.finish(signing.begin(way, saved_files.Form.FILE, str(path), saved))
