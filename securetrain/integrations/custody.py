# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The signer of what a framework saves, and those whose word counts when it loads.

Rules:

1. under ``securetrain run`` the launcher signs and the run's trust root counts: a key and a trust
   root that the script gives are left aside, so that one script serves both ways. A run that signs
   no saves is refused at the start, not at the first save;
2. elsewhere key, run and trust root have to be given;
3. a framework never reads what was verified somewhere else: it gets a private copy, and the copy is
   verified. Whatever changes the original afterwards changes nothing. A copy has the name and the
   statements of its original, so that verified loads of the launcher take it, too;
4. rank 0 signs a directory when all ranks have returned from their save, and no rank goes on before
   it knows how that ended.
"""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TypeAlias

from securetrain.artifacts import Expectation, folder
from securetrain.artifacts import saved_files as saved
from securetrain.artifacts import signer as save_signer
from securetrain.artifacts.statement.statements import PolicyRef
from securetrain.core.errors import IntegrityError, UsageError
from securetrain.core.files import open_regular, survey
from securetrain.identity.keys import PrivateKey, Signer
from securetrain.identity.trust import TrustRoot
from securetrain.integrations.ranks import on_rank_zero

KeyLike: TypeAlias = Signer | Path | str | None
"""A key, or the file that it is in. Only rank 0 opens it."""
Place: TypeAlias = Path | str
_HOW: Final = (
    "give key=, run= and trust=, or start the script with securetrain run --sign-checkpoints"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Custody:
    """The signer and the trust of one process."""

    way: str
    """The framework, as statements name it."""
    run: str
    """The run that is signed for and expected; empty under ``securetrain run``."""
    key: KeyLike
    trust: Path | None
    """Outside of a run; read again at every load."""

    @property
    def in_run(self) -> bool:
        """Tell whether a launcher signs."""
        return not self.run

    def sign(self, place: Place, step: int | None) -> None:
        """Sign a file or directory that all ranks have written. Collective (rule 4).

        Raises:
            UsageError: ST-USAG-002; on the other ranks when rank 0 could not sign.
            RuntimeRefusal: ST-RUNT-030 to 035, the launcher does not sign.
        """
        on_rank_zero(lambda: self.sign_here(Path(place), step), str(place))

    def sign_here(self, place: Path, step: int | None) -> None:
        """Sign a file or directory that this process alone has written.

        Raises:
            UsageError: ST-USAG-002.
            RuntimeRefusal: ST-RUNT-030 to 035, the launcher does not sign.
        """
        key = PrivateKey.load(Path(self.key)) if isinstance(self.key, str | Path) else self.key
        if place.is_dir():
            folder.sign_folder(place, step=step, way=self.way, key=key, run=self.run)
            return
        signer = save_signer.worker_signer() if key is None else _signer(key, self.run)
        if signer is None:
            raise UsageError("ST-USAG-001", "nobody signs here", str(place), _HOW)
        begun = signer.begin(self.way, saved.Form.FILE, str(place), {"step": step})
        signer.finish(begun)

    def forget(self, place: Path) -> None:
        """Remove the statement on a file that is gone.

        Raises:
            UsageError: ST-USAG-002, it cannot be removed.
        """
        if place.exists():
            return
        try:
            saved.sidecar(place, saved.Form.FILE).unlink(missing_ok=True)
        except OSError as error:
            raise UsageError("ST-USAG-002", f"it cannot be removed: {error}", str(place)) from error

    @contextlib.contextmanager
    def verified(self, place: Place) -> Iterator[Path]:
        """Give a private copy of a file or directory, every byte of it verified (rule 3).

        The copy lies below TMPDIR, is for this user alone, and is removed afterwards.

        Raises:
            IntegrityError: ST-CKPT-100 to 200.
            UsageError: ST-USAG-002 when it cannot be read or copied.
        """
        with tempfile.TemporaryDirectory(prefix="securetrain-load-") as private:
            source = Path(os.path.realpath(place))
            copy = Path(private, source.parent.name or "root", source.name)
            try:
                (_copy_directory if source.is_dir() else _copy_file)(source, copy)
            except OSError as error:
                what = f"it cannot be copied: {error}"
                raise UsageError("ST-USAG-002", what, str(place)) from error
            self.verify(copy, shown=source)
            yield copy

    def verify(self, place: Path, shown: Path | None = None) -> None:
        """Verify a file or directory.

        Args:
            place: What is verified.
            shown: How refusals call it.

        Raises:
            IntegrityError: ST-CKPT-100 to 200.
        """
        now = datetime.now(UTC)
        roots = None if self.trust is None else [TrustRoot.load(self.trust, now)]
        expect = None if self.in_run else Expectation(run=self.run)
        try:
            folder.verify_folder(place, trust=roots, expect=expect, now=now)
        except IntegrityError as error:
            inside = error.where.removeprefix(str(place)) if place.is_dir() else ""
            where = f"{shown or place}{inside}"
            raise IntegrityError(error.code, error.what, where, error.fix) from error


def custody(way: str, *, key: KeyLike, trust: Place | None, run: str) -> Custody:
    """Find who signs here (rules 1 and 2).

    Raises:
        UsageError: ST-USAG-001, nobody does.
    """
    if save_signer.worker_signer() is not None:
        if not folder.signs_folders():
            raise UsageError(
                "ST-USAG-001",
                "this run signs no saves of scripts",
                way,
                "start it with --sign-checkpoints, or set checkpoint.sign_saves in its policy",
            )
        return Custody(way=way, run="", key=None, trust=None)
    missing = [name for name, given in (("key", key), ("run", run), ("trust", trust)) if not given]
    if missing:
        what = f"no launcher signs here, and {', '.join(missing)} was not given"
        raise UsageError("ST-USAG-001", what, way, _HOW)
    assert trust is not None
    return Custody(way=way, run=run, key=key, trust=Path(trust))


def _signer(key: Signer, run: str) -> save_signer.SaveSigner:
    author = save_signer.Author(key=key, run_id=run)
    return save_signer.SaveSigner(author=lambda: author, policy=PolicyRef())


def _copy_directory(source: Path, target: Path) -> None:
    """Copy the regular files below a directory.

    Raises:
        IntegrityError: ST-CKPT-142 for anything else.
        OSError: it cannot be read or written.
    """
    files, unsafe = survey(source)
    if unsafe:
        entry = unsafe[0]
        raise IntegrityError("ST-CKPT-142", f"{entry.name}: {entry.reason}", str(source))
    target.mkdir(mode=0o700, parents=True)
    for file in files:
        _copy(source / file.name, target / file.name)


def _copy_file(source: Path, target: Path) -> None:
    """Copy a file with the statements that may cover it."""
    _copy(source, target)
    at = ((source, target, saved.Form.FILE), (source.parent, target.parent, saved.Form.DIRECTORY))
    for one, copy, form in at:
        if saved.sidecar(one, form).exists():
            _copy(saved.sidecar(one, form), saved.sidecar(copy, form))


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (
        open(open_regular(source), "rb") as given,  # noqa: PTH123 - a descriptor
        target.open("xb") as copy,
    ):
        shutil.copyfileobj(given, copy, 1 << 20)
