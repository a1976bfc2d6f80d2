# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A script that renames what a launcher works in, before each of its system calls; and kills.

One case is one run's files: begun, written, closed and reported as launcher, coordinator and report
do. Before drawn system calls of the modules that open, write and rename, a script puts something
else in the place of a folder above the run directory, of the directory or of a file in it. Rules:

1. no folder that the script put above, and nothing outside, is ever written to; what it moves into
   the run directory itself lies in it from then on;
2. a ledger that a report calls verified has every entry whose writing had returned;
3. the same moves by plain paths, without a handle, are the control: each case says what they did;
4. a launcher that is killed at any call, and its successor a little later, lose no entry either:
   the next one goes on, or refuses by code.
"""

import errno
import os
import random
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from securetrain.core import files, held, nodestate
from securetrain.core.errors import SecureTrainError, UsageError
from securetrain.core.held import hold, release
from securetrain.core.rundir import RunDir
from securetrain.identity.keys import PrivateKey
from securetrain.identity.trust import TrustRole, TrustRoot, sign_root
from securetrain.ledger import Ledger, events, log
from securetrain.report.run.model import ProofState
from securetrain.report.run.record import read_run
from tools.campaigns import Campaign, Missed

_AGENT, _COORDINATOR, _ROOT = (PrivateKey.generate() for _ in range(3))
_NOW: Final = datetime.now(UTC)
_RUN: Final = "run-1"
_ABOVE: Final = ("home", "home/jobs", "home/jobs/runs", "home/jobs/runs/r1")
_BELOW: Final = (
    *("ledger.jsonl", "run.json", "trust.json", "coordinator.lock", "report.html"),
    *("workers", "evidence", "signer"),
)
_HOW: Final = (
    *("renamed", "exchanged", "a link", "a link to nothing", "removed"),
    *("a folder", "a FIFO", "a socket", "a hard link", "empty", "an older one"),
)
_CALLS: Final = frozenset(
    {
        *("open", "close", "write", "fsync", "ftruncate", "fstat", "lstat", "stat", "pread"),
        *("link", "rename", "unlink", "rmdir", "mkdir", "listdir", "chmod", "dup"),
    }
)
_CALLS_BENEATH, _CALLS_BY_COMPONENT = 150, 275
"""How many calls a case makes, with openat2 and without."""


class Hooked:
    """The module `os` with something that happens before each system call."""

    def __init__(self, before: Callable[[str], None]) -> None:
        self.before = before

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name not in _CALLS:
            return real

        def call(*given: Any, **named: Any) -> Any:
            self.before(name)
            return real(*given, **named)

        return call


@contextmanager
def hooked(before: Callable[[str], None], answer: int) -> Iterator[None]:
    """Have `before` called before each system call of the modules that reach a run's files.

    Args:
        before: Told the call's name.
        answer: The error by which the kernel has no openat2; 0 where it has.
    """
    modules, inside = (held, files, log), vars(held)
    real = inside["_openat2"]

    def openat2(handle: int, below: bytes, flags: int, mode: int) -> tuple[int, int]:
        before("openat2")
        return (-1, answer) if answer else real(handle, below, flags, mode)

    inside["_openat2"] = openat2
    for module in modules:
        vars(module)["os"] = Hooked(before)
    try:
        yield
    finally:
        inside["_openat2"] = real
        for module in modules:
            vars(module)["os"] = os


class World:
    """A run directory below folders that a script may rename, and a tree that is not the run's."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.given = folder, folder / _ABOVE[-1]
        self.trust = sign_root(
            {
                TrustRole.LEDGER: [_AGENT.public, _COORDINATOR.public],
                TrustRole.LEDGER_LAUNCHER: [_AGENT.public],
                TrustRole.LEDGER_COORDINATOR: [_COORDINATOR.public],
            },
            *(_ROOT, _NOW, _NOW + timedelta(days=400)),
        )
        for top in (folder, folder / "victim"):
            run = top / _ABOVE[-1]
            for name in ("workers", "evidence", "signer"):
                (run / name).mkdir(parents=True)
            for name in _BELOW[:5]:
                if top != folder:
                    (run / name).write_bytes(b"only root may read this")
            run.chmod(0o700)
        (self.given / "trust.json").write_bytes(self.trust)
        self.state = nodestate.NodeState(folder / "state")
        self.told: list[str] = []
        self.run = os.open(self.given, os.O_RDONLY)
        self.outside = {
            path: os.open(path, os.O_RDONLY) for path in sorted((folder / "victim").rglob("*"))
        }
        self.before = self._of_outside()

    def close(self) -> None:
        """Close the handles."""
        for handle in (self.run, *self.outside.values()):
            os.close(handle)

    def _of_outside(self) -> dict[Path, Any]:
        """What lies in the victim's folders and files, by their handles."""
        found: dict[Path, Any] = {}
        for path, handle in self.outside.items():
            is_file = os.fstat(handle).st_mode & 0o170000 == 0o100000
            found[path] = os.pread(handle, 1 << 16, 0) if is_file else set(os.listdir(handle))  # noqa: PTH208 - the handle's
        return found

    def written_outside(self) -> list[str]:
        """What of it was written, made or removed, but by the script, which moves whole entries."""
        now, names = self._of_outside(), set(_BELOW) | {"home", "jobs", "runs", "r1"}
        wrong = []
        for path, was in self.before.items():
            more = now[path] - was if isinstance(was, set) else now[path] != was
            if more and (not isinstance(was, set) or more - {f"{one}.away" for one in names}):
                wrong.append(f"{path}: {more}")
        return wrong

    def move(self, target: str, how: str) -> None:
        """Put something else in a place, as a script does that may change the folder above it."""
        is_above = target in _ABOVE
        path = self.folder / target if is_above else Path(f"/proc/self/fd/{self.run}", target)
        counterpart = self.folder / "victim" / (target if is_above else f"{_ABOVE[-1]}/{target}")
        away = path.with_name(f"{path.name}.away")
        with suppress(OSError):
            match how:
                case "an older one" if not is_above and self._is_own(path):
                    data = path.read_bytes()
                    path.write_bytes(data[: data.rfind(b"\n", 0, max(len(data) - 1, 0)) + 1])
                case "empty" if not is_above and self._is_own(path):
                    path.write_bytes(b"")
                case _:
                    path.rename(away)
                    self._put(path, counterpart, how)

    def _is_own(self, path: Path) -> bool:
        """Tell whether it is a file that the launcher made: the script writes to no other."""
        theirs = {os.fstat(handle).st_ino for handle in self.outside.values()}
        return path.is_file() and path.stat().st_ino not in theirs

    def _put(self, path: Path, counterpart: Path, how: str) -> None:
        match how:
            case "exchanged":
                self._exchange(path, counterpart)
            case "a link":
                path.symlink_to(counterpart.absolute())
            case "a link to nothing":
                path.symlink_to(counterpart.parent.absolute() / "nothing")
            case "a folder" | "an older one" | "empty":
                path.mkdir()
                if _ABOVE[-1] not in str(counterpart.parent):
                    self.outside[path / how] = os.open(path, os.O_RDONLY)
                    self.before[path / how] = set()
            case "a FIFO":
                os.mkfifo(path)
            case "a socket":
                with socket.socket(socket.AF_UNIX) as made:
                    made.bind(str(path))
            case "a hard link":
                os.link(counterpart, path)

    def _exchange(self, path: Path, counterpart: Path) -> None:
        counterpart.rename(path)
        if path.is_relative_to("/proc"):  # it lies in the run directory from now on
            for one in [one for one in self.before if one.is_relative_to(counterpart)]:
                del self.before[one]

    def work(self, root: Path) -> None:
        """Do what launcher, coordinator and report do with the files of a run."""
        run, trust = RunDir(root), TrustRoot.parse(self.trust, _NOW)
        kept = self.state.ledger(_RUN)
        agent = Ledger(run.ledger, _AGENT, "agent", lambda: _NOW, kept).begin(_RUN, trust)
        self._write(agent, events.RunStarted(policy_id="dev"))
        files.make_private_dir(run.workers)
        with files.locked(run.coordinator_lock):
            coordinator = agent.by(_COORDINATOR, "coordinator")
            self._write(coordinator, events.NodeLeft(subject="node-1"))
            files.write_atomic(run.evidence / "one.json", b"{}")
            files.write_atomic(run.summary, b'{"outcome":"running"}')
        for old in run.workers.iterdir() if run.workers.is_dir() else ():
            old.unlink()
        (run.signer / "sockets").mkdir(parents=True, exist_ok=True)
        (run.signer / "sockets").rmdir()
        self._write(agent, events.RestartPoint(step=1, digest="ab"))
        agent.close()
        self.told.append("close")
        files.write_atomic(run.summary, b'{"outcome":"succeeded","exit_code":0}')
        with (run.report).open("w", encoding="ascii") as file:
            file.write("<html></html>")
        self.judge_report(root)

    def _write(self, ledger: Ledger, said: events.LedgerEvent) -> None:
        ledger.write(said)
        self.told.append(said.NAME)

    def judge(self) -> None:
        """Rules 1 and 2, of the directory that was held and of what lies there by its name."""
        if wrong := self.written_outside():
            raise Missed(f"written outside: {wrong[:3]}")
        for root in (Path(f"/proc/self/fd/{self.run}"), self.given):
            with suppress(UsageError):
                self.judge_report(root)

    def judge_report(self, root: Path) -> None:
        """Rule 2, of a directory."""
        record = read_run(root, _NOW)
        last = [line.event for line in record.ledger.last]
        is_verified = record.ledger.proof.state is ProofState.VERIFIED
        if is_verified and last[: len(self.told)] != self.told:
            raise Missed(f"a ledger verifies with {last}, and {self.told} were written")


def moved(rng: random.Random, folder: Path, *, by_handle: bool = True) -> str:
    """Move things before up to three drawn calls; how the work ended.

    Raises:
        Missed: by rule 1 or 2.
    """
    world = World(folder)
    answer = rng.choice([0, 0, errno.ENOSYS, errno.EPERM])
    moves = {
        rng.randrange(_CALLS_BY_COMPONENT if answer else _CALLS_BENEATH): (
            rng.choice(rng.choice([_ABOVE, _BELOW])),
            rng.choice(_HOW),
        )
        for _ in range(rng.randrange(1, 4))
    }
    calls = 0

    def before(_: str) -> None:
        nonlocal calls
        calls += 1
        if calls - 1 in moves:
            world.move(*moves[calls - 1])

    root: Path = hold(world.given) if by_handle else world.given
    try:
        with hooked(before, answer):
            word = _ended(lambda: world.work(root))
        world.judge()
    finally:
        release(world.given)
        world.close()
    return word


def _ended(work: Callable[[], None]) -> str:
    try:
        work()
    except SecureTrainError as error:
        return error.code
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "went on"


def killed(rng: random.Random, folder: Path) -> str:
    """Kill the writer at a drawn call, its successor at another, and look at the third.

    Raises:
        Missed: by rule 4.
    """
    world, told = World(folder), 0
    try:
        for _ in range(2):
            told += _killed_once(world, rng.randrange(90), rng.randrange(1 << 16))
        path, trust = world.given / "ledger.jsonl", TrustRoot.parse(world.trust, _NOW)
        cut = rng.random() < 0.3
        if cut:
            world.move("ledger.jsonl", rng.choice(["an older one", "empty", "removed"]))
        kept = world.state.ledger(_RUN)
        with suppress(UsageError):
            world.judge_report(world.given)
        try:
            ledger = Ledger(path, _AGENT, "agent", lambda: _NOW, kept).begin(_RUN, trust)
        except SecureTrainError as error:
            if not cut:
                raise Missed(f"nothing was cut, and the next writer ends: {error}") from error
            return f"cut, {error.code}"
        found = log.verify_ledger(path.read_bytes(), trust.keys_for(TrustRole.LEDGER))
        written = sum(entry.body.event.event == "checkpoint-seen" for entry in found.entries)
        if written < told:
            raise Missed(f"{told} entries had returned, {written} are there, and it goes on")
        ledger.close()
    finally:
        world.close()
    return "goes on"


def _killed_once(world: World, at: int, part: int) -> int:
    """Write in a child that dies before its call `at`, or in it; how many entries had returned."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            _write_and_die(world, at, part, writer)
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        told = len(file.read())
    os.waitpid(pid, 0)
    return told


def _write_and_die(world: World, at: int, part: int, told: int) -> None:
    calls, real = 0, os.write

    def before(name: str) -> None:
        nonlocal calls
        calls += 1
        if calls > at and name != "write":
            os.kill(os.getpid(), signal.SIGKILL)

    def write(fd: int, data: bytes) -> int:
        if calls <= at:
            return real(fd, data)
        real(fd, data[: part % (len(data) + 1)])
        os.kill(os.getpid(), signal.SIGKILL)
        return 0

    trust, kept = TrustRoot.parse(world.trust, _NOW), world.state.ledger(_RUN)
    with hooked(before, 0):
        vars(log)["os"].write = write
        path = world.given / "ledger.jsonl"
        ledger = Ledger(path, _AGENT, "agent", lambda: _NOW, kept).begin(_RUN, trust)
        for step in range(4):
            ledger.write(events.CheckpointSeen(subject="s", step=step, digest="ab"))
            real(told, b".")


def case(rng: random.Random, folder: Path) -> str:
    """One case of either kind; of moves, the control by plain paths, too."""
    if rng.random() < 0.3:
        return f"killed: {killed(rng, folder)}"
    state = rng.getstate()
    for name in ("plain", "held"):
        (folder / name).mkdir()
    word = moved(rng, folder / "held")
    rng.setstate(state)
    try:
        moved(rng, folder / "plain", by_handle=False)
    except Missed:
        return f"{word}; by plain paths led elsewhere"
    return word


CAMPAIGN: Final = Campaign(
    title="folders and files exchanged under a launcher, and kills", count=2000, case=case
)
