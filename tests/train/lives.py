# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Runs that die: whole lives of a small job in processes of their own, with a fault at one call.

Every function of `os` that changes files is counted, in the order in which one rank calls them, and
at the chosen one the process is killed (SIGKILL: nothing is flushed, no ``finally`` runs) before or
after it, in the middle of a write, or the call fails, or a signal comes. Lines of the metrics and
sketches, and the content of small temporaries, are written by Python's own files, between two of
these calls.

A loss of power is a kill after which all is gone that was not made durable (`Undurable`): what
files had grown by since their last ``fsync``, and names that were made, moved or removed since
their folder's. That is the harshest that a file system may do with this order of calls.
"""

import errno
import io
import multiprocessing
import os
import signal
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any

from securetrain.core.errors import SecureTrainError
from securetrain.testing.processes import PRELOAD
from tests.waiting import in_time

CALLS = (
    *("open", "write", "fsync", "ftruncate", "rename", "replace", "link"),
    *("mkdir", "unlink", "remove", "rmdir"),
)
REAL = {name: getattr(os, name) for name in CALLS}
"""The functions that nobody stands in front of."""
OUT_OF_PATIENCE = 120.0


class How(StrEnum):
    """The fault at a call."""

    BEFORE = "before"
    AFTER = "after"
    TORN = "torn"
    """After half of a write; of any other call, before it."""
    FULL = "full"
    """The disk is full from here on."""
    BROKEN = "broken"
    """The disk takes nothing from here on (EIO)."""
    STOP = "stop"
    """SIGTERM, once."""
    POWER = "power"
    """After it all processes die, and what was not durable is gone."""


@dataclass(frozen=True, slots=True)
class Fault:
    """The fault of one life."""

    rank: int
    call: int
    how: How = How.BEFORE
    on: str = ""
    """Only calls that have this in their name and target are counted, if it is given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The job of all lives of a run."""

    text: str
    world: int = 1


@dataclass(frozen=True, slots=True)
class End:
    """The end of one rank's life."""

    code: int
    """Negative: the signal."""
    calls: int = 0
    refusal: str = ""
    """The code and fix of what was refused."""


class Undurable:
    """What one process has changed below a folder, and would be gone if the power went now."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._sizes = {one.stat().st_ino: one.stat().st_size for one in self._files()}
        """Of files that were there; of others, what was synced."""
        self._names: list[tuple[frozenset[str], Callable[[], Any]]] = []
        """The folders whose fsync makes a change of names durable, and how it is undone."""
        self._kept = tempfile.mkdtemp(prefix="undurable-", dir=Path(root).parent)
        self._count = iter(range(10**9))

    def _files(self) -> list[Path]:
        found = Path(self.root).rglob("*")
        return [one for one in found if one.is_file() and not one.is_symlink()]

    def before(
        self, name: str, args: tuple[Any, ...], options: dict[str, Any]
    ) -> tuple[frozenset[str], Callable[[], Any]] | None:
        """How a call is undone, if it changes names: for `after`, if it succeeds."""
        match name:
            case "rename" | "replace":
                source = _at(args[0], options.get("src_dir_fd"))
                target = _at(args[1], options.get("dst_dir_fd"))
                kept, gone = self._keep(target), _later("rename", target, source)
                folders = {str(Path(source).parent), str(Path(target).parent)}
                return frozenset(folders), lambda: (gone(), kept())
            case "mkdir":
                return self._made(args[0], "rmdir")
            case "link":
                return self._made(_at(args[1], options.get("dst_dir_fd")), "unlink")
            case "open" if args[1] & os.O_CREAT:
                path = _at(args[0], options.get("dir_fd"))
                return None if Path(path).exists() else self._made(path, "unlink")
            case "unlink" | "remove" | "rmdir":
                path = _at(args[0], options.get("dir_fd"))
                undo = _later("mkdir", path) if name == "rmdir" else self._keep(path)
                return frozenset({str(Path(path).parent)}), undo
            case _:
                return None

    def after(self, change: tuple[frozenset[str], Callable[[], Any]]) -> None:
        """The call was made."""
        self._names.append(change)

    def synced(self, fd: int) -> None:
        """An fsync has returned."""
        found = os.fstat(fd)
        path = str(Path(f"/proc/self/fd/{fd}").readlink())
        if Path(path).is_dir():
            self._names = [(where, undo) for where, undo in self._names if path not in where]
        else:
            self._sizes[found.st_ino] = found.st_size

    def lose(self) -> None:
        """The power goes."""
        for _, undo in reversed(self._names):
            with suppress(OSError):
                undo()
        for path in self._files():
            found = path.stat()
            if found.st_size > self._sizes.get(found.st_ino, 0):
                os.truncate(path, self._sizes.get(found.st_ino, 0))

    def _made(self, path: Any, undo: str) -> tuple[frozenset[str], Callable[[], Any]] | None:
        made = Path(path)
        if not made.parent.is_dir():
            return None
        folder = made.parent.stat().st_ino

        def remove() -> None:
            for place in (Path(self.root), *Path(self.root).rglob("*")):
                if place.is_dir() and place.stat().st_ino == folder:  # it may have been moved
                    REAL[undo](str(place / made.name))

        return frozenset({str(made.parent)}), remove

    def _keep(self, path: str) -> Callable[[], Any]:
        if not Path(path).is_file():
            return lambda: None
        kept = f"{self._kept}/{next(self._count)}"
        REAL["link"](path, kept)
        return _later("link", kept, path)


def _at(name: Any, folder: int | None) -> str:
    """The path of a name below an open folder."""
    below = "" if folder is None else Path(f"/proc/self/fd/{folder}").readlink()
    return str(Path(below) / name)


def _later(name: str, *args: str) -> Callable[[], Any]:
    return lambda: REAL[name](*args)


class Injector:
    """Stands in front of `os` in one process."""

    def __init__(self, root: str, fault: Fault | None) -> None:
        self.root, self.fault = root, fault
        power = fault is not None and fault.how is How.POWER
        self.undurable = Undurable(root) if power else None
        self.count, self.full, self.dead = 0, False, False
        self._lock = threading.Lock()
        self._fds: set[int] = set()

    def install(self) -> None:
        for name in CALLS:
            setattr(os, name, self._around(name, getattr(os, name)))

    def _ours(self, name: str, args: tuple[Any, ...], options: dict[str, Any]) -> bool:
        if name in {"write", "fsync", "ftruncate"}:
            with suppress(OSError):
                return str(Path(f"/proc/self/fd/{args[0]}").readlink()).startswith(self.root)
            return False
        if name == "open" and not args[1] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            return False
        folder = options.get("dir_fd", options.get("src_dir_fd"))
        return isinstance(args[0], str | os.PathLike) and _at(args[0], folder).startswith(self.root)

    def _around(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **options: Any) -> Any:
            if not self._ours(name, args, options):
                return call(*args, **options)
            while self.dead:  # in another thread
                time.sleep(1)
            with self._lock:
                self.count += self.fault is None or self.fault.on in f"{name} {args[0]}"
                now = self.fault is not None and self.count == self.fault.call
            if now or self.full:
                return self._strike(name, call, args, options)
            return self._let(name, call, args, options)

        return called

    def _let(
        self, name: str, call: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]
    ) -> Any:
        if self.undurable is None:
            return call(*args, **options)
        change = self.undurable.before(name, args, options)
        found = call(*args, **options)
        if change is not None:
            self.undurable.after(change)
        if name == "fsync":
            self.undurable.synced(args[0])
        return found

    def _strike(
        self, name: str, call: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]
    ) -> Any:
        assert self.fault is not None
        match self.fault.how:
            case How.FULL | How.BROKEN as how:
                self.full = True
                if name in {"write", "open", "mkdir", "fsync"} or how is How.BROKEN:
                    number = errno.ENOSPC if how is How.FULL else errno.EIO
                    raise OSError(number, os.strerror(number))
                return call(*args, **options)
            case How.STOP:
                os.kill(os.getpid(), signal.SIGTERM)
                return call(*args, **options)
            case How.POWER:
                assert self.undurable is not None
                with suppress(OSError):
                    self._let(name, call, args, options)
                self.dead = True
                self.undurable.lose()
            case How.AFTER:
                with suppress(OSError):  # a call that fails ends, too
                    call(*args, **options)
            case How.TORN if name == "write":
                call(args[0], bytes(args[1])[: len(args[1]) // 2])
            case _:
                pass
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("killed")


def live(root: Path, job: Job, fault: Fault | None = None) -> list[End]:
    """One life of a run: all ranks, until each has ended; one that dies takes the others along.

    Returns:
        How each rank ended.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*PRELOAD, "tests.train.lives"])
    with tempfile.TemporaryDirectory(prefix="lives-") as folder:
        store = str(Path(folder) / "store")
        ranks = []
        for rank in range(job.world):
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(
                target=_live, args=(str(root), job, rank, fault, store, sender), daemon=True
            )
            process.start()
            sender.close()
            ranks.append((process, receiver))
        try:
            return _ends(ranks)
        finally:
            for process, receiver in ranks:
                process.kill()
                process.join()
                process.close()
                receiver.close()


def _ends(ranks: list[tuple[Any, Any]]) -> list[End]:
    deadline = time.monotonic() + OUT_OF_PATIENCE
    while any(process.exitcode is None for process, _ in ranks):
        in_time(deadline, "the ranks do not end")
        multiprocessing.connection.wait(
            [process.sentinel for process, _ in ranks if process.exitcode is None], timeout=5.0
        )
        if any(process.exitcode not in {None, 0} for process, _ in ranks):
            for process, _ in ranks:  # as a launcher or a reboot would
                process.kill()
    ends = []
    for process, receiver in ranks:
        process.join()
        said = None
        if process.exitcode == 0:
            with suppress(EOFError):
                said = receiver.recv()
        ends.append(said or End(process.exitcode))
    return ends


def _live(  # noqa: PLR0917 - Process passes them by position
    root: str, job: Job, rank: int, fault: Fault | None, store: str, sender: Any
) -> None:
    import torch
    import torch.distributed as dist

    from securetrain.core.rundir import RunDir
    from securetrain.train.__main__ import StopFlag
    from securetrain.train.config import parse_job
    from securetrain.train.run import run_job
    from securetrain.train.setup import Worker

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=job.world,
        timeout=timedelta(seconds=60),
    )
    injector = Injector(root, fault if fault is not None and fault.rank == rank else None)
    stop = StopFlag()
    stop.install()
    worker = Worker(
        run=RunDir(Path(root)),
        device=torch.device("cpu"),
        clock=lambda: datetime.now(UTC),
        stop=stop,
        console=io.StringIO() if rank == 0 else None,
        is_node_leader=True,  # each rank is a node
    )
    injector.install()
    code, refusal = 0, ""
    try:
        code = int(run_job(parse_job(job.text, "job.yaml"), "job.yaml", worker))
    except SecureTrainError as error:
        code, refusal = int(error.exit_code), f"{error.code}: {error.what} fix: {error.fix}"
    except Exception:  # noqa: BLE001 - of a rank that lost another one
        code, refusal = 1, traceback.format_exc()
    sender.send(End(code, injector.count, refusal))
    sender.close()
    os._exit(0)
