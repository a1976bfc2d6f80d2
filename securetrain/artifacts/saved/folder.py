# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A directory as one save, whichever framework has written it: sign it, and verify it before use.

::

    accelerator.save_state("out/step-7")            # every rank
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        sign_folder("out/step-7", step=7)

    verify_folder("out/step-7")                     # every rank, before anything of it is read
    accelerator.load_state("out/step-7")

In a worker of ``securetrain run`` the launcher signs and the run's trust root is the one that
counts; elsewhere a key, a run and a trust root have to be given. One process signs, when all that
write into the directory have returned. What changes the directory after it was verified is seen
only by loads that are verified themselves (``--verify-checkpoints``).

`JudgedFolders` are those that this process has verified, so that one is hashed once and not for
each reader. A directory is verified again when any file is not as it was (`look`): its inode,
size or times, which are the kernel's. What is read after a judgement may have been changed in
between; who reads takes a copy of what is hashed (`covering`), where that counts.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final

from securetrain.artifacts.given import (
    Folder,
    Key,
    Moment,
    PolicyName,
    Trust,
    checked,
    demands,
    moment,
    open_key,
    open_trust,
)
from securetrain.artifacts.kinds import check_whole
from securetrain.artifacts.report import Report
from securetrain.artifacts.saved.judging import check_saved
from securetrain.artifacts.saved.signer import Author, Print, SaveSigner, look, worker_signer
from securetrain.artifacts.statement.checkpoint_predicate import PolicyRef
from securetrain.artifacts.statement.expectation import Expectation
from securetrain.artifacts.statement.saved_files import SUFFIX, SavedFiles
from securetrain.artifacts.tree.layout import Problem, most_telling
from securetrain.core import RUN_DIR_VARIABLE, RunDir
from securetrain.core.errors import UsageError
from securetrain.identity.trust import TrustRoot
from securetrain.policy.load import load_resolved

_WAY: Final = "sign_folder"


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


def signs_folders() -> bool:
    """Tell whether this process is a worker of a run whose policy has saves signed
    (``--sign-checkpoints``).
    """
    run = os.environ.get(RUN_DIR_VARIABLE, "")
    if not run or worker_signer() is None:
        return False
    return load_resolved(RunDir(Path(run)).resolved_policy).policy.checkpoint.sign_saves


@checked
def sign_folder(
    path: Folder,
    *,
    step: int | None = None,
    way: str = _WAY,
    key: Key | None = None,
    run: str = "",
    name: str = "",
    policy: PolicyRef | None = None,
    now: Moment | None = None,
) -> SavedFiles:
    """Sign a directory as one save, as it is now.

    Args:
        path: The directory. Every file below it is read and hashed.
        step: The script's own.
        way: What has saved it, for people.
        key: Signs, or its name as ``--key`` takes it; outside of a run only.
        run: The id of the run that saved it; with `key`.
        name: The name that is signed; the run's by default. With `key`.
        policy: The policy that is named. With `key`.
        now: The time that is signed. With `key`.

    Raises:
        IntegrityError: ST-CKPT-142 for a link, a special file, an unsafe name.
        UsageError: ST-USAG-001 without a key outside of a run, or with one inside; 002 when it is
            no directory, has no file, or cannot be read or written.
        RuntimeRefusal: ST-RUNT-030 to 035, the launcher does not sign.
    """
    folder = Path(path)
    signer = _signer(key, run, name, policy, now)
    if not folder.is_dir():
        raise UsageError("ST-USAG-002", "it is no directory", str(path), "name the directory")
    for entry in check_whole(folder)[1]:
        what = f"{entry.reason}, which would be refused when it is verified"
        raise Problem(code="ST-CKPT-142", what=what, file=entry.name).error(str(path))
    try:
        said = signer.sign_folder(way, folder, step)
    except OSError as error:
        raise UsageError("ST-USAG-002", f"it cannot be read: {error}", str(path)) from error
    if said is None:
        raise UsageError("ST-USAG-002", "there is no file in it", str(path), "sign it when saved")
    return said


@checked
def verify_folder(
    path: Folder,
    *,
    trust: Trust | Sequence[TrustRoot] | None = None,
    policy: PolicyName | None = None,
    expect: Expectation | None = None,
    now: Moment | None = None,
) -> Report:
    """Verify a directory as a whole, before anything of it is read.

    Every file must be covered, everything that was signed must be there, and the directory must
    have a statement of its own, or each of its files.

    Args:
        path: The directory.
        trust: A trust root, or the path of its file or folder; or several roots, of which one must
            know the signer. In a worker by default those of its run.
        policy: Its demands are asked, too: a policy, a shipped one's name, or a path.
        expect: More that is expected of each statement.
        now: The time, with its zone; by default that of this machine's clock.

    Raises:
        IntegrityError: the most telling of the problems, ST-CKPT-100 to 200.
        UsageError: ST-USAG-001 without a trust root outside of a run; 002 when it cannot be read.
    """
    at = moment(now)
    roots = _run_roots(at) if trust is None else trust
    if isinstance(roots, Path | str):
        roots = open_trust(roots, at)
    found = Report.of(Path(path))
    check_saved(found, Path(path), trust=roots, policy=demands(policy), now=at, expect=expect)
    if found.problems:
        raise most_telling(found.problems).error(str(path))
    if not found.ok:
        what = "there is no statement on it: nothing says who made this"
        raise Problem("ST-CKPT-100", what).error(str(Path(path) / SUFFIX))
    return found


def _signer(
    key: Key | None, run: str, name: str, policy: PolicyRef | None, now: datetime | None
) -> SaveSigner:
    worker = worker_signer()
    if key is None:
        if worker is None:
            raise UsageError(
                "ST-USAG-001",
                "nobody signs here, and no key is given",
                "sign_folder",
                "give key= and run=, or start the script with securetrain run --sign-checkpoints",
            )
        return worker
    if not run:
        raise UsageError("ST-USAG-001", "a key signs for a run", "sign_folder", "give run=")
    author = Author(key=open_key(key), run_id=run)
    return SaveSigner(
        author=lambda: author,
        policy=policy or PolicyRef(),
        name=name,
        clock=lambda: moment(now),
    )


def _run_roots(at: datetime) -> list[TrustRoot]:
    """The trust roots that count in this worker."""
    found = os.environ.get(RUN_DIR_VARIABLE, "")
    if not found:
        raise UsageError(
            "ST-USAG-001",
            "nothing says whose directories may be loaded",
            "verify_folder",
            "give trust=, or start the script with securetrain run",
        )
    run = RunDir(Path(found))
    others = load_resolved(run.resolved_policy).policy.checkpoint.load_trust
    return [TrustRoot.load(place, at) for place in (run.trust, *map(Path, others))]
