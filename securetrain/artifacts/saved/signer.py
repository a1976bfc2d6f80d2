# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Have what a script has saved signed, as it is saved.

Rules:

1. before the first byte an empty statement marks the save as begun, of a directory only where it is
   there already. A kill, an error and a refusal leave the mark, or nothing: what lies there then is
   signed by nobody, and the next save of the same name begins anew;
2. when the call has returned, the files are read back and hashed, and the launcher signs that. A
   save that cannot be signed fails;
3. of a distributed save the files are those that torch's own metadata names, and its first rank
   signs when all ranks have written; what else lies in the directory is not signed;
4. of a directory that a framework has written, the files are those that belong to the save
   (rules 7 to 10), each in the one statement of the directory. A file that another rank has had
   signed stands in both, where the caller says that all ranks have returned;
5. a file that the script itself opens for writing in a directory that this process has signed, such
   as a ``config.json``, is taken into the directory's statement at the next save, or at the end;
6. a file or directory that this process has signed and moves is signed under its new name, if its
   bytes are the same; of one that it has removed the statement goes, too. Where a file is saved
   again, the statement of its directory is signed again with it.

The launcher signs in a worker of a run, which has no key; elsewhere a key has to be given. This
says which bytes an honest script has saved. What a script of bad intent has signed are the bytes
that it chose.

Of a directory, the files that a save has written are told from those that lay there before:

7. a file belongs to a save when it is new, or its size, times or inode are not what they were when
   the save began; and, where several processes write into one directory, when it was changed after
   this one had started. What lay there before belongs to nobody: it is not signed;
8. a file with a statement of its own that was made in the meantime, or is as it was, is left to
   that statement; a statement from before the file was written again is out of date, and goes;
9. a directory below that has a statement of its own is a save of its own;
10. links and special files are not signed, and `judging` refuses them.

The time of a change (ctime) is the kernel's: who copies a file here cannot choose it.
"""

import functools
import os
import re
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any, Final, TypeAlias

import msgspec

from securetrain.artifacts.kinds import check_same
from securetrain.artifacts.statement.checkpoint_predicate import PolicyRef
from securetrain.artifacts.statement.saved_files import (
    SUFFIX,
    Form,
    SavedFile,
    SavedFiles,
    digest_file,
    is_sidecar,
    open_saved,
    read_sidecar,
    sidecar,
    sign_saved,
)
from securetrain.core import RUN_DIR_VARIABLE, SIGNER_VARIABLE, RunDir
from securetrain.core.errors import IntegrityError, RuntimeRefusal
from securetrain.core.files import FileEntry, open_regular, write_atomic
from securetrain.identity.keys import Signer
from securetrain.identity.signing import Ask, LauncherKey, shared_socket
from securetrain.identity.trust import TrustRoot
from securetrain.policy.load import digest_of, load_resolved
from securetrain.policy.schema import Policy

_REMEMBERED: Final = 4096
_READING: Final = frozenset("rbtU")
"""The letters of a mode that writes nothing."""
_STEPS: Final = ("step", "global_step", "steps", "iteration")


Print: TypeAlias = tuple[int, int, int, int]
"""Inode, size, and the nanoseconds of its last writing and its last change."""
_COARSE: Final = 5
"""CLOCK_REALTIME_COARSE of Linux, which Python has no name for."""
_LEFT_OVER: Final = re.compile(r"\..*\.securetrain\.json\.tmp-[0-9a-f]{12}")
"""A statement that was being written when its process died."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """The files that belong to a save, by their names below the directory."""

    written: tuple[str, ...]
    """Without a statement of their own."""
    apart: tuple[str, ...]
    """With one, or below a directory that has one: the places of these statements."""
    kept: tuple[str, ...]
    """As they were before, and without a statement of their own."""
    outdated: tuple[str, ...]
    """Statements of files that were written again."""


def now() -> int:
    """The time of changes, in nanoseconds, as file systems of this machine write it down."""
    return time.clock_gettime_ns(_COARSE)


def look(folder: Path) -> dict[str, Print]:
    """Take down how each regular file below a directory is now; nothing of one that is not there.

    Raises:
        OSError: it cannot be read.
    """
    return dict(_files(folder)) if folder.is_dir() else {}


def contents(folder: Path, before: Mapping[str, Print], *, since: int | None = None) -> Contents:
    """Tell what belongs to a save of a directory (rules 7 to 10).

    Args:
        folder: The directory.
        before: What `look` gave when the save began; nothing for all that is there.
        since: Where several processes write there: from when on changes are theirs (`now`).

    Raises:
        OSError: it cannot be read.
    """
    found = look(folder)
    apart = {name for name in found if _is_folders(name) and name != SUFFIX}
    roots = tuple(name.removesuffix(SUFFIX) for name in apart)
    written: list[str] = []
    kept: list[str] = []
    outdated: list[str] = []

    def is_ours(name: str) -> bool:
        changed = found[name][3]
        return before.get(name) != found[name] or (since is not None and changed >= since)

    for name in sorted(found):
        if is_sidecar(name) or _is_left_over(name) or name.startswith(roots):
            continue
        own = sidecar(Path(name), Form.FILE).as_posix()
        if own not in found and not (folder / own).exists():
            (written if is_ours(name) else kept).append(name)
        elif own in found and before.get(own) == found[own] and before.get(name) != found[name]:
            outdated.append(own)
            written.append(name)
        else:
            apart.add(own)
    return Contents(
        written=tuple(written),
        apart=tuple(sorted(apart)),
        kept=tuple(kept),
        outdated=tuple(outdated),
    )


def remove_left_overs(folder: Path, before: int) -> None:
    """Remove statements that were being written when their process died, before a time (`now`)."""
    with suppress(OSError):
        for name, found in _files(folder):
            if _is_left_over(name) and found[3] < before:
                (folder / name).unlink()


def _is_folders(name: str) -> bool:
    return name.rpartition("/")[2] == SUFFIX


def _is_left_over(name: str) -> bool:
    return _LEFT_OVER.fullmatch(name.rpartition("/")[2]) is not None


def print_of(path: Path) -> Print | None:
    """Take down how a file is now; None for what is no regular file, or not there."""
    try:
        info = path.lstat()
    except OSError:
        return None
    if not stat.S_ISREG(info.st_mode):
        return None
    return (info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns)


def _files(root: Path) -> Iterator[tuple[str, Print]]:
    for here, _, names in os.walk(root, followlinks=False, onerror=_raise):
        for name in names:
            path = Path(here, name)
            if (taken := print_of(path)) is not None:  # another process may have removed it
                yield path.relative_to(root).as_posix(), taken


def _raise(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


@dataclass(frozen=True, slots=True)
class Begun:
    """A save that has begun."""

    way: str
    form: Form
    path: Path
    step: int | None
    before: Mapping[str, Print] = field(default_factory=dict)
    """Of a directory that is signed as a whole: what lay there."""
    earlier: SavedFiles | None = None
    """The directory's statement of this process until now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Author:
    """The one in whose name saves are signed."""

    key: Signer
    run_id: str
    rank: int = 0
    world_size: int = 1


@dataclass(slots=True, kw_only=True)
class SaveSigner:
    """The signed saves of one process."""

    author: Callable[[], Author]
    policy: PolicyRef
    name: str = ""
    """Under which the policy says that the run signs; empty for the run's own."""
    trust: tuple[Path, ...] = ()
    """Files of trust roots, by which other ranks' statements in a directory count."""
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    ways: dict[str, int] = field(default_factory=dict)
    """How often each function's save was signed."""
    started: int = field(default_factory=now)
    """What changed before belongs to no save of this process."""
    _number: int = 0
    _signed: dict[Path, SavedFiles] = field(default_factory=dict)
    _opened: dict[Path, Print | None] = field(default_factory=dict)
    """The files that the script opened for writing, and how they were when last looked at."""
    _lock: threading.RLock = field(default_factory=threading.RLock)

    @classmethod
    def of_worker(cls, socket: str, run: RunDir, policy: Policy) -> "SaveSigner":
        """That of a worker, for which the launcher signs.

        Args:
            socket: The launcher's signing socket.
            run: The run.
            policy: Of the run.
        """
        expected = policy.checkpoint.expect
        return cls(
            author=functools.partial(_launcher, Path(socket)),
            policy=PolicyRef(id=policy.metadata.id, digest=digest_of(policy)),
            name="" if expected is None or expected.name is None else expected.name,
            trust=(run.trust, *map(Path, policy.checkpoint.load_trust)),
        )

    def begin(self, way: str, form: Form, place: str, saved: Any) -> Begun:
        """Mark a save (rule 1).

        Raises:
            UsageError: ST-USAG-002 when the mark cannot be written.
        """
        path = Path(os.path.realpath(place))
        if form is Form.DIRECTORY:
            self._signed.pop(path, None)
        target = sidecar(path, form)
        if target.parent.is_dir():
            write_atomic(target, b"")
        return Begun(way, form, path, _step(saved))

    def begin_folder(self, way: str, place: str | Path, step: int | None) -> Begun:
        """Mark the save of a whole directory, and take down what lies there (rules 1 and 4).

        Raises:
            UsageError: ST-USAG-002 when the mark cannot be written.
            OSError: the directory cannot be read.
        """
        path = Path(os.path.realpath(place))
        before, earlier = look(path), self._signed.pop(path, None)
        if before:
            write_atomic(sidecar(path, Form.DIRECTORY), b"")
        return Begun(way, Form.DIRECTORY, path, step, before, earlier)

    def finish(self, begun: Begun, names: Sequence[str] = ()) -> None:
        """Sign what was saved (rule 2).

        Args:
            begun: What `begin` gave.
            names: The files of a directory, below it.

        Raises:
            RuntimeRefusal: ST-RUNT-030 to 035.
            UsageError: ST-USAG-002 when it cannot be read back, or the statement not be written.
        """
        path, form = begun.path, begun.form
        folder, found = (path, sorted(set(names))) if names else (path.parent, [path.name])
        with self._lock:
            files = [_read_back(folder, name) for name in found]
            self._sign(begun, files)
            if form is Form.FILE:
                self._sign_folder_again(path)
            self.ways[begun.way] = self.ways.get(begun.way, 0) + 1
            self.sweep()
            self.take_in()

    def finish_folder(
        self, begun: Begun, *, with_all: bool, is_shared: bool = False
    ) -> SavedFiles | None:
        """Sign a directory as a whole (rule 4); None where there is nothing to sign.

        Args:
            begun: What `begin_folder` gave.
            with_all: Every process has returned from the save: what they have had signed in this
                directory stands in its statement, too.
            is_shared: Other processes write there, too, and may have begun earlier.

        Raises:
            RuntimeRefusal: ST-RUNT-030 to 035.
            IntegrityError: ST-CKPT-100 to 200, a statement in the directory does not hold.
            UsageError: ST-USAG-002 when it cannot be read back, or the statement not be written.
            OSError: the directory cannot be read.
        """
        folder = begun.path
        if not folder.is_dir():
            return None
        with self._lock:
            remove_left_overs(folder, self.started)
            found = contents(folder, begun.before, since=self.started if is_shared else None)
            files = {name: _read_back(folder, name) for name in found.written}
            for file in () if begun.earlier is None else begun.earlier.files:
                if file.name in found.kept:
                    files[file.name] = file
            for name in found.apart if with_all else ():
                below = (folder / name).parent.relative_to(folder)
                for file in self._said(folder / name):
                    files[(below / file.name).as_posix()] = file
            named = [
                msgspec.structs.replace(file, name=name) for name, file in sorted(files.items())
            ]
            if not named:
                with suppress(OSError):
                    sidecar(folder, Form.DIRECTORY).unlink()
                return None
            said = self._sign(begun, named)
            for name in found.outdated:
                with suppress(OSError):
                    (folder / name).unlink()
            self.ways[begun.way] = self.ways.get(begun.way, 0) + 1
            self.sweep()
            self.take_in()
            return said

    def sign_folder(self, way: str, place: Path, step: int | None) -> SavedFiles | None:
        """Sign all that is in a directory, as it is now; None where there is no file.

        Raises:
            RuntimeRefusal: ST-RUNT-030 to 035.
            UsageError: ST-USAG-002 when it cannot be read back, or the statement not be written.
            OSError: the directory cannot be read.
        """
        begun = self.begin_folder(way, place, step)
        with self._lock:
            remove_left_overs(begun.path, self.started)
            prints = {name: one for name, one in look(begun.path).items() if not is_sidecar(name)}
            if not prints:
                return None
            files = [_read_back(begun.path, name) for name in sorted(prints)]
            check_same(begun.path, (FileEntry(name, p[1], p[3]) for name, p in prints.items()))
            said = self._sign(begun, files)
            self.ways[way] = self.ways.get(way, 0) + 1
            return said

    def _said(self, place: Path) -> Sequence[SavedFile]:
        """The files of another statement, if it holds."""
        at = self.clock()
        data = read_sidecar(place)
        problem: IntegrityError | None = None
        for root in self.trust:
            try:
                return open_saved(data, TrustRoot.load(root, at), str(place)).said.files
            except IntegrityError as error:
                problem = problem or error
        raise problem or IntegrityError("ST-CKPT-100", "nobody's word counts here", str(place))

    def _sign(self, begun: Begun, files: list[SavedFile]) -> SavedFiles:
        path, form = begun.path, begun.form
        author = self.author()
        self._number += 1
        said = SavedFiles(
            run_id=author.run_id,
            name=self.name or author.run_id,
            policy=self.policy,
            rank=author.rank,
            world_size=author.world_size,
            number=self._number,
            step=begun.step,
            created=self.clock(),
            way=begun.way,
            form=form,
            place=(path if form is Form.DIRECTORY else path.parent).name,
            files=files,
        )
        write_atomic(sidecar(path, form), sign_saved(said, author.key))
        folder = path if form is Form.DIRECTORY else path.parent
        for file in files:
            if (place := folder / file.name) in self._opened:
                self._opened[place] = print_of(place)
        self._signed.pop(path, None)
        self._signed[path] = said
        while len(self._signed) > _REMEMBERED:
            del self._signed[next(iter(self._signed))]
        return said

    def _sign_folder_again(self, path: Path) -> None:
        """Sign the directory's statement with the new bytes of a file in it (rule 6)."""
        folder = self._folder_of(path)
        if folder is not None:
            name = path.relative_to(folder).as_posix()
            if any(one.name == name for one in self._signed[folder].files):
                self._sign_with(folder, [path])

    def wrote(self, path: Path) -> None:
        """Remember that the script opens a file for writing (rule 5)."""
        real = Path(os.path.realpath(path))
        if real not in self._opened and len(self._opened) < _REMEMBERED:
            self._opened[real] = None

    def take_in(self) -> None:
        """Sign directories again with what the script has written into them (rule 5).

        Raises:
            RuntimeRefusal: ST-RUNT-030 to 035.
            UsageError: ST-USAG-002 when it cannot be read back, or the statement not be written.
        """
        with self._lock:
            more: dict[Path, list[Path]] = {}
            for path, before in list(self._opened.items()):
                folder = self._folder_of(path)
                if folder is None or is_sidecar(path.name) or sidecar(path, Form.FILE).exists():
                    continue
                if (now_is := print_of(path)) is not None and now_is != before:
                    more.setdefault(folder, []).append(path)
            for folder, paths in more.items():
                self._sign_with(folder, paths)

    def _folder_of(self, path: Path) -> Path | None:
        """The nearest directory around a file that this process has signed."""
        return next(
            (
                folder
                for folder in path.parents
                if folder in self._signed and self._signed[folder].form is Form.DIRECTORY
            ),
            None,
        )

    def _sign_with(self, folder: Path, paths: Sequence[Path]) -> None:
        """Sign a directory's statement again, with files as they are now."""
        said = self._signed[folder]
        files = {file.name: file for file in said.files}
        for path in paths:
            name = path.relative_to(folder).as_posix()
            files[name] = _read_back(folder, name)
        named = [files[name] for name in sorted(files)]
        self._sign(Begun(said.way, said.form, folder, said.step), named)

    def sweep(self) -> None:
        """Remove the statements on files that are gone (rule 6)."""
        with self._lock:
            for path, said in list(self._signed.items()):
                if not path.exists():
                    with suppress(OSError):
                        sidecar(path, said.form).unlink()
                    del self._signed[path]

    def watch_writes(self, module: ModuleType) -> None:
        """Have ``open`` of ``builtins`` or ``io`` say what is opened for writing (rule 5)."""
        plain = module.open

        @functools.wraps(plain)
        def opened(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            if isinstance(file, str | os.PathLike) and not _READING.issuperset(mode):
                self.wrote(Path(os.fsdecode(file)))
            return plain(file, mode, *args, **kwargs)

        vars(module)["open"] = opened

    def follow_moves(self, module: ModuleType) -> None:
        """Have ``os.rename`` and ``os.replace`` keep statements true (rule 6)."""
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
                    self._sign_moved(path, target / path.relative_to(source), said)

        return moved

    def _below(self, src: Any) -> list[tuple[Path, SavedFiles]]:
        try:
            source = Path(os.path.realpath(os.fsdecode(src)))
        except (TypeError, ValueError):
            return []
        with self._lock:
            return [(p, s) for p, s in self._signed.items() if p.is_relative_to(source)]

    def _sign_moved(self, old: Path, new: Path, said: SavedFiles) -> None:
        """Sign a thing under its new name; one that has changed stays with a mark."""
        folder = new if said.form is Form.DIRECTORY else new.parent
        names = [file.name for file in said.files] if said.form is Form.DIRECTORY else [new.name]
        del self._signed[old]
        before = [(file.size, file.sha256) for file in said.files]
        files = [_read_back(folder, name) for name in names]
        write_atomic(sidecar(new, said.form), b"")
        if [(file.size, file.sha256) for file in files] == before:
            self._sign(Begun(said.way, said.form, new, said.step), files)
        if said.form is Form.FILE:  # it may have moved along, within a directory
            with suppress(OSError):
                sidecar(old, said.form).unlink()


def worker_signer(environ: Mapping[str, str] | None = None) -> SaveSigner | None:
    """The signer of the run that this process is a worker of; None outside of any.

    Raises:
        PolicyError: ST-PLCY-002 when the run's policy cannot be read.
    """
    found = os.environ if environ is None else environ
    socket, run = found.get(SIGNER_VARIABLE, ""), found.get(RUN_DIR_VARIABLE, "")
    return _of_process(socket, run, os.getpid()) if socket and run else None


@functools.cache
def _of_process(socket: str, run: str, pid: int) -> SaveSigner:
    """One for a process; a child that was forked has another (`pid`)."""
    del pid
    folder = RunDir(Path(run))
    return SaveSigner.of_worker(socket, folder, load_resolved(folder.resolved_policy).policy)


def _launcher(path: Path) -> Author:
    """This worker, with the launcher's key.

    Raises:
        RuntimeRefusal: ST-RUNT-030 to 035.
    """
    socket = shared_socket(path)
    welcome = socket.welcome()
    if not welcome.saved_key:
        raise RuntimeRefusal("ST-RUNT-031", "this launcher signs no saves of scripts")
    key = LauncherKey.of(socket, Ask.SAVED, welcome.saved_key, welcome.saved_companion)
    return Author(key=key, run_id=welcome.run_id, rank=welcome.rank, world_size=welcome.world_size)


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
