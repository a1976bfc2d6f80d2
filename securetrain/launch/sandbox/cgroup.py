# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Limits of memory and tasks for the workers of a job: a group of cgroup v2 (cgroups(7)).

Rules:

1. the group is made below the launcher's own, so that whatever limits the launcher limits its
   workers. The kernel gives limits to groups only that share their parent with no process: where
   the launcher and its children are alone, they move into a group of their own beside it;
2. in a login's session (``session-N.scope``), where they are not alone and nothing limits the
   session, the group is made beside the session. Anywhere else somebody's limits could be left that
   way, so there are none, and the reason says how to start a launcher in a group of its own;
3. workers are in it before they run: `holder` enters it before it gives up its rights. A worker
   cannot leave it, nor change it: its files are read-only to all workers;
4. its name says who made it. It is removed at the end, with every process that is left in it, and
   for an owner that is dead by the next launcher there and by ``securetrain network gc``.

Nothing else of the hierarchy is changed, but that its controllers are given to children.
"""

import errno
import os
import re
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from securetrain.core import all_stats
from securetrain.launch.sandbox.kernel import write
from securetrain.network import Collected, Machine, Owner

PROC: Final = Path("/proc")
_OWNER: Final = re.compile(
    r"securetrain-(launcher-)?(\d{1,10})-(\d{1,20})-(\d{1,20})(-[0-9a-f]{8})?"
)
_SESSION: Final = re.compile(r"session-[a-z]?\d+\.scope")
_OF_ITS_OWN: Final = "start it in a group of its own: systemd-run --scope -p Delegate=yes ..."
_UNLIMITED: Final[Mapping[str, frozenset[str]]] = {
    "memory.max": frozenset({"", "max"}),
    "memory.high": frozenset({"", "max"}),
    "memory.swap.max": frozenset({"", "max"}),
    "pids.max": frozenset({"", "max"}),
    "cpu.max": frozenset({"", "max 100000"}),
    "cpu.weight": frozenset({"", "100"}),
    "cpuset.cpus": frozenset({""}),
    "cpuset.mems": frozenset({""}),
    "io.max": frozenset({""}),
}
"""Files of a group, and what is in them when it limits nothing; it may lack them as well."""
_MOVES: Final = 16
_PATIENCE_SECONDS: Final = 5.0


class NoLimitsError(Exception):
    """Limits cannot be had here, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The most that the workers of a job use on one node, together. 0 is no limit."""

    memory_mib: int = 0
    tasks: int = 0
    """Processes and their threads."""

    def __bool__(self) -> bool:
        return bool(self.memory_mib or self.tasks)

    def __str__(self) -> str:
        parts = [f"{self.memory_mib} MiB"] if self.memory_mib else []
        parts += [f"{self.tasks} tasks"] if self.tasks else []
        return f"at most {' and '.join(parts)}" if parts else "no limit of memory or tasks"

    def narrowed(self, other: "Limits") -> "Limits":
        """The lower of each."""
        return Limits(
            memory_mib=_lower(self.memory_mib, other.memory_mib),
            tasks=_lower(self.tasks, other.tasks),
        )

    @property
    def controllers(self) -> frozenset[str]:
        """The kernel's names of what is limited."""
        asked = {"memory": self.memory_mib, "pids": self.tasks}
        return frozenset(name for name, value in asked.items() if value)

    @property
    def settings(self) -> dict[str, str]:
        """The files of a group, and what is written to them."""
        found: dict[str, str] = {}
        if self.memory_mib:
            # Without swap: a job that is too large ends, and does not slow the machine instead.
            found |= {"memory.max": str(self.memory_mib << 20), "memory.swap.max": "0"}
        if self.tasks:
            found |= {"pids.max": str(self.tasks)}
        return found


NO_LIMITS: Final = Limits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The group below which the workers' is made."""

    path: Path
    moves: bool = False
    """Whether the launcher and its children have to leave it first (rule 1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The workers' group. Made by `make_group`."""

    path: Path
    limits: Limits

    @property
    def entry(self) -> Path:
        """The file by which a process enters it."""
        return self.path / "cgroup.procs"

    def reached(self) -> tuple[str, ...]:
        """The limits that the workers have run into, for people."""
        found = []
        if count := _events(self.path / "memory.events").get("oom_kill", 0):
            found.append(
                f"the kernel ended {count} process{'es' if count != 1 else ''}: all workers of"
                f" the node may use {self.limits.memory_mib} MiB together (--max-memory-mib,"
                " host.max_memory_mib)"
            )
        if count := _events(self.path / "pids.events").get("max", 0):
            found.append(
                f"{count} process{'es were' if count != 1 else ' or thread was'} refused: all"
                f" workers of the node may have {self.limits.tasks} processes and threads together"
                " (--max-tasks, host.max_tasks)"
            )
        return tuple(found)

    def remove(self) -> bool:
        """Remove it, with every process in it; returns whether nothing is left."""
        return _remove(self.path)


def make_group(limits: Limits, proc: Path = PROC) -> Group:
    """Make the workers' group.

    Raises:
        NoLimitsError: There is no cgroup v2 that gives these limits, or none that is ours.
    """
    place = find_place(limits, proc)
    owner, machine = Owner.current(proc), Machine.current(proc)
    name = f"{owner.pid}-{owner.started}-{_digits(owner.pid_namespace)}"
    for child in _groups(place.path):
        if _is_dead(child, machine):
            _remove(child)
    path = place.path / f"securetrain-{name}-{secrets.token_hex(4)}"
    try:
        if place.moves:
            _move_all(place.path, place.path / f"securetrain-launcher-{name}")
        lacking = limits.controllers - _words(place.path / "cgroup.subtree_control")
        if lacking:
            text = " ".join(f"+{one}" for one in sorted(lacking))
            write(str(place.path / "cgroup.subtree_control"), text)
        path.mkdir(mode=0o755)
        for file, value in limits.settings.items():
            if file != "memory.swap.max" or (path / file).exists():  # some kernels count no swap
                write(str(path / file), value)
    except OSError as error:
        _remove(path)
        raise NoLimitsError(f"{error.filename or place.path}: {error.strerror}") from error
    return Group(path=path, limits=limits)


def find_place(limits: Limits, proc: Path = PROC) -> Place:
    """Find where the workers' group can be made (rules 1 and 2); changes nothing.

    Raises:
        NoLimitsError: Nowhere.
    """
    own = own_group(proc)
    if (found := _OWNER.fullmatch(own.name)) and found[1]:
        own = own.parent  # moved there for an earlier sandbox
        return _writable(Place(path=own))
    lacking = limits.controllers - _words(own / "cgroup.controllers")
    if lacking:
        raise NoLimitsError(f"{own} has no controller {', '.join(sorted(lacking))}")
    if not (own / "cgroup.type").exists():
        return _writable(Place(path=own))  # the root: the one group that may have both
    if _pids(own) <= _family(os.getpid(), proc):
        return _writable(Place(path=own, moves=True))
    if _SESSION.fullmatch(own.name) is None:
        raise NoLimitsError(
            f"processes that are not this launcher's are in its group {own}: {_OF_ITS_OWN}"
        )
    found_there = {name: _text(own / name) for name in _UNLIMITED}
    limited = [name for name, text in found_there.items() if text not in _UNLIMITED[name]]
    if limited:
        raise NoLimitsError(f"{own} has a limit of its own ({limited[0]}): {_OF_ITS_OWN}")
    lacking = limits.controllers - _words(own.parent / "cgroup.subtree_control")
    if lacking:
        raise NoLimitsError(
            f"{own.parent} gives its groups no controller {', '.join(sorted(lacking))}:"
            f" {_OF_ITS_OWN}"
        )
    return _writable(Place(path=own.parent))


def own_group(proc: Path = PROC) -> Path:
    """This process's group in the hierarchy of cgroup v2.

    Raises:
        NoLimitsError: There is no such hierarchy, or the group cannot be seen.
    """
    try:
        lines = (proc / "self" / "cgroup").read_text("utf-8", "surrogateescape").splitlines()
    except OSError as error:
        raise NoLimitsError(f"{error.filename}: {error.strerror}") from error
    paths = [line.removeprefix("0::") for line in lines if line.startswith("0::")]
    mounts = list(_mounts(proc))
    if not paths or not mounts:
        raise NoLimitsError("no cgroup v2 is mounted")
    for root, mount in mounts:
        if "/.." not in paths[0] and (paths[0] + "/").startswith(root.rstrip("/") + "/"):
            path = mount / paths[0][len(root.rstrip("/")) :].lstrip("/")
            if path.is_dir():
                return path
    raise NoLimitsError(f"the launcher's own group {paths[0]} cannot be seen here")


def collect_groups(proc: Path = PROC) -> Collected:
    """Remove the groups of owners that died, wherever they are (``securetrain network gc``)."""
    machine = Machine.current(proc)
    removed: list[str] = []
    alive: list[str] = []
    problems: dict[str, str] = {}
    for _, mount in _mounts(proc):
        for folder, _, _ in os.walk(mount, topdown=False):
            path = Path(folder)
            if not _OWNER.fullmatch(path.name):
                continue
            if not _is_dead(path, machine):
                alive.append(path.name)
            elif _remove(path):
                removed.append(path.name)
            else:
                problems[path.name] = f"{path} cannot be removed: processes are in it, or not ours"
    return Collected(removed=tuple(removed), alive=tuple(alive), problems=problems)


def _mounts(proc: Path) -> Iterator[tuple[str, Path]]:
    """The mounts of cgroup v2: the group that each shows, and the folder."""
    try:
        text = (proc / "self" / "mountinfo").read_text("utf-8", "surrogateescape")
    except OSError:
        return
    seen = set()
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        if after.startswith("cgroup2 ") and len(fields) > 4 and fields[4] not in seen:
            seen.add(fields[4])
            yield _unescaped(fields[3]), Path(_unescaped(fields[4]))


def _unescaped(word: str) -> str:
    """A path as mountinfo writes it: blanks in octal (proc_pid_mountinfo(5))."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), word)


def _writable(place: Place) -> Place:
    for path in (place.path, place.path / "cgroup.procs", place.path / "cgroup.subtree_control"):
        if not os.access(path, os.W_OK):
            raise NoLimitsError(f"{path} is not writable for user {os.geteuid()}: {_OF_ITS_OWN}")
    return place


def _move_all(group: Path, inner: Path) -> None:
    """Move what is in a group into another below it: more may be started meanwhile."""
    inner.mkdir(mode=0o755, exist_ok=True)
    for _ in range(_MOVES):
        left = _pids(group)
        if not left:
            return
        for pid in left:
            with suppress(ProcessLookupError):
                write(str(inner / "cgroup.procs"), str(pid))
    raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(group))


def _family(pid: int, proc: Path) -> set[int]:
    """A process and everything below it."""
    children: dict[int, list[int]] = {}
    for child, found in all_stats(proc):
        children.setdefault(found.parent, []).append(child)
    family = [pid]
    for member in family:
        family += children.get(member, [])
    return set(family)


def _groups(place: Path) -> Iterable[Path]:
    return [path for path in place.iterdir() if _OWNER.fullmatch(path.name) and path.is_dir()]


def _is_dead(path: Path, machine: Machine) -> bool:
    """Tell whether the owner has ended. A boot has groups of its own: none is older."""
    found = _OWNER.fullmatch(path.name)
    if found is None or found[4] != _digits(machine.pid_namespace):
        return False
    return machine.start_time(int(found[2])) != int(found[3])


def _remove(path: Path) -> bool:
    found = _OWNER.fullmatch(path.name)
    if found is None or not found[1]:  # not what a launcher was in: its children may run
        with suppress(OSError):
            write(str(path / "cgroup.kill"), "1")
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            path.rmdir()
        except FileNotFoundError:
            return True
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                return False
            time.sleep(0.005)
        else:
            return True


def _events(file: Path) -> dict[str, int]:
    rows = (line.split() for line in _text(file).splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdecimal()}


def _pids(group: Path) -> set[int]:
    """Those in a group itself; 0 for one of a pid namespace that cannot be seen."""
    return {int(word) for word in _words(group / "cgroup.procs")}


def _words(file: Path) -> set[str]:
    return set(_text(file).split())


def _text(file: Path) -> str:
    """Read a file of the kernel's; nothing where the group has no such file."""
    try:
        return file.read_text("ascii", "replace").strip()
    except OSError:
        return ""


def _digits(name: str) -> str:
    return "".join(filter(str.isdecimal, name))


def _lower(one: int, other: int) -> int:
    return min(one, other) if one and other else one or other
