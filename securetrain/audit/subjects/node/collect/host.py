# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Reading for collectors: bounded, without privileges, with an outcome for every failure.

Rules:

1. files are read up to a limit; a longer one is an error, never a part of the truth;
2. "permission denied" is ``denied``, "no such file" is ``absent``, everything else is ``error``;
3. sandboxes hide a file by a device over it, and a directory by an empty mount: what is hidden so
   in the machine's own tree is an error, not absent;
4. each collector has a time limit: a hung network filesystem costs one section, not the audit;
5. of what a job names, options come first, then the job file (``securetrain train``), then the
   environment; each name keeps its origin. A path of a job file is relative to the directory that
   the job starts in, as the job takes it. What nothing names is not looked at;
6. in a user namespace that maps one user only, what belongs to root and what belongs to a stranger
   look the same: the overflow uid of user_namespaces(7). So the process that goes in says before
   which files are root's, by device, inode and time of the last change of status, which a change of
   owner moves. It is believed inside a user namespace only, and about files of that uid only.
"""

import errno
import os
import re
import stat
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from securetrain.audit.facts import Observed, Outcome, Reading, Section
from securetrain.core.errors import PolicyError, UsageError
from securetrain.core.files import read_file

FILE_LIMIT: Final = 1 << 20
MAX_ENTRIES: Final = 4096
"""How many entries of one directory or table are looked at before giving up on it."""

_HIDEABLE: Final = ("/proc/", "/sys/", "/etc/", "/usr/", "/var/")
"""Where nobody mounts something empty but to hide what is there."""
_MOUNTINFO: Final = "/proc/self/mountinfo"
_MAX_MOUNTS: Final = 4096

_JOB_LIMIT: Final = 64 << 10
_TRUST: Final = "SECURETRAIN_TRUST"
VARIABLE: Final = "SECURETRAIN_ROOT_OWNED"
LIMIT: Final = 64 << 10
"""Characters; about two thousand files."""
_FILE: Final = re.compile(r"[0-9a-f]{1,16}:[0-9a-f]{1,16}:[0-9a-f]{1,16}\Z")
_MAX_PROCESSES: Final = 65536

T = TypeVar("T")
_S = TypeVar("_S", bound=Observed)
_C = TypeVar("_C", bound=Collection[Any])


class TooMuchError(Exception):
    """There is more than a collector looks at: what it has is not the whole truth."""


class HiddenError(Exception):
    """Something lies over what was asked for."""


FAILURES: Final = (OSError, ValueError, LookupError, TooMuchError, HiddenError)
"""The ends of a reading that are an outcome."""


@dataclass(frozen=True, slots=True)
class MountPoint:
    """One line of /proc/self/mountinfo (proc(5))."""

    device: str
    root: str
    """The part of the filesystem that is mounted."""
    target: str
    fstype: str
    options: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedPath:
    """A path and what names it."""

    path: str
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """Everything that the job names."""

    checkpoints: tuple[NamedPath, ...] = ()
    datasets: tuple[NamedPath, ...] = ()
    requirements: tuple[NamedPath, ...] = ()
    trust: NamedPath | None = None


NOTHING: Final = Named()


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """The questions that the kernel is asked."""

    links: Callable[[], bytes] | None = None
    """The list of interfaces; None: those that are there."""
    nft: Callable[..., bytes] | None = None
    """The packet filters; None: those that are in force."""
    programs: Callable[[], Iterable[str]] | None = None
    """The kinds of eBPF programs that see packets; None: those that are loaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The inputs of a collector: for whom, from which environment, below which root."""

    environ: Mapping[str, str]
    search_path: tuple[str, ...]
    """Where Python looks for modules (`sys.path`)."""
    uid: int
    gid: int
    user: str
    home: Path
    """Where HOME points."""
    account_home: Path | None = None
    """What the user database says, which NCCL asks; None for a uid without a name."""
    root: Path = Path("/")
    """Where the tree of the machine begins; tests give one of their own."""
    kernel: Kernel = Kernel()
    """The answers of the kernel that are no files."""
    named: Named = NOTHING
    """The checkpoints, datasets and lists of packages that the job names."""
    seen_mounts: list[MountPoint] = field(default_factory=list, compare=False)
    """What `mounts` read; the table is long on some machines."""
    seen_packages: dict[str, str] = field(default_factory=dict, compare=False)
    """What `software.packages` found; reading so many files costs time."""
    root_owned: frozenset[str] = frozenset()
    """Files of the machine's root that look like a stranger's from here (rule 6)."""

    def owner(self, info: os.stat_result) -> int:
        """The uid that a file belongs to."""
        is_roots = self.root_owned and _name(info) in self.root_owned
        return 0 if is_roots and info.st_uid == overflow_uid() else info.st_uid

    def at(self, path: str | Path) -> Path:
        """An absolute path of the machine, below `root`."""
        return self.root / str(path).lstrip("/")

    def text(self, path: str | Path, limit: int = FILE_LIMIT) -> str:
        """A text file of at most `limit` bytes; undecodable bytes are kept as surrogates.

        Raises:
            OSError: when it cannot be read.
            TooMuchError: when it is longer.
            HiddenError: when it is no file, or a mount hides where it would be.
        """
        try:
            return self._content(path, limit)
        except FileNotFoundError:
            self.refuse_hidden(path)
            raise

    def _content(self, path: str | Path, limit: int) -> str:
        # Without O_NONBLOCK a pipe in the file's place would hold the collector.
        descriptor = os.open(self.at(path), os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
        with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise HiddenError(f"not a regular file: {path}")
            data = file.read(limit + 1)
        if len(data) > limit:
            raise TooMuchError(f"{path} is larger than {limit} bytes")
        return data.decode("utf-8", "backslashreplace")

    def names(self, path: str | Path) -> list[str]:
        """The sorted names in a directory.

        Raises:
            OSError: when it cannot be listed.
            TooMuchError: when it has more than `MAX_ENTRIES`.
            HiddenError: when an empty mount hides what is there.
        """
        names: list[str] = []
        try:
            with os.scandir(self.at(path)) as entries:
                for entry in entries:
                    if len(names) == MAX_ENTRIES:
                        raise TooMuchError(f"{path} has more than {MAX_ENTRIES} entries")
                    names.append(entry.name)
        except FileNotFoundError:
            self.refuse_hidden(path)
            raise
        if not names:
            self.refuse_hidden(f"{path}/x")
        return sorted(names)

    def rows(self, path: str) -> list[list[str]]:
        """The fields of each line of a table like passwd(5)."""
        return [line.split(":") for line in self.text(path).splitlines()]

    def is_there(self, path: str) -> bool:
        """Return whether there is something, be it a link to nothing.

        Raises:
            OSError: when that cannot be seen.
        """
        try:
            self.at(path).lstat()
        except FileNotFoundError:
            return False
        return True

    def processes(self) -> list[str]:
        """The numbers of the processes that show, in order.

        Raises:
            OSError: when they cannot be listed.
            TooMuchError: when there are too many.
        """
        pids = [name for name in os.listdir(self.at("/proc")) if name.isdigit()]  # noqa: PTH208
        return sorted(at_most(_MAX_PROCESSES, pids, "processes"), key=int)

    def mounted(self) -> dict[str, MountPoint]:
        """The topmost mount of each place; see `mounts`."""
        return {mount.target: mount for mount in self.mounts()}

    def filesystem_at(self, target: str) -> str:
        """The type of the topmost mount of a place; empty where nothing is mounted."""
        mounted = self.mounted()
        return mounted[target].fstype if target in mounted else ""

    def mounts(self) -> tuple[MountPoint, ...]:
        """Every mount of this process's namespace, the topmost of a place last.

        Raises:
            OSError: when the table cannot be read.
            TooMuchError: when it has more than `_MAX_MOUNTS` lines.
            HiddenError: when it is not there, empty or malformed. Never absent: every Linux has it.
        """
        if not self.seen_mounts:
            try:
                lines = self._content(_MOUNTINFO, 4 << 20).splitlines()
            except FileNotFoundError as error:
                raise HiddenError(f"there is no {_MOUNTINFO}") from error
            if not lines:
                raise HiddenError(f"{_MOUNTINFO} is empty")
            at_most(_MAX_MOUNTS, lines, "mounts")
            self.seen_mounts.extend(_mount_point(line) for line in lines)
        return tuple(self.seen_mounts)

    def refuse_hidden(self, path: str | Path) -> None:
        """Do nothing, unless an empty mount is why there is nothing at `path`.

        Raises:
            HiddenError: when it is, or when that cannot be told.
        """
        wanted = str(path)
        if not wanted.startswith(_HIDEABLE):
            return
        there = Path(wanted).parent
        while not self.at(there).is_dir() and there != there.parent:
            there = there.parent
        try:
            with os.scandir(self.at(there)) as entries:
                if any(entries) or there == there.parent:
                    return
            mounted = {mount.target for mount in self.mounts()}
        except (OSError, TooMuchError) as error:
            raise HiddenError(f"cannot tell whether {there} is hidden") from error
        if str(there) in mounted:
            raise HiddenError(f"an empty mount hides what is in {there}")


def _mount_point(line: str) -> MountPoint:
    left, dash, right = line.partition(" - ")
    fields, kinds = left.split(" "), right.split(" ")
    if not dash or len(fields) < 6 or len(kinds) < 3:
        raise HiddenError(f"not a line of {_MOUNTINFO}: {line[:80]}")
    return MountPoint(
        device=fields[2],
        root=unescape(fields[3]),
        target=unescape(fields[4]),
        fstype=kinds[0],
        options=f"{fields[5]},{kinds[2]}",
    )


def unescape(field: str) -> str:
    """A field of the kernel's tables of mounts (proc(5))."""
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        field = field.replace(code, char)
    return field


def outcome_of(error: Exception) -> tuple[Outcome, str]:
    """The outcome and the reason that an exception stands for."""
    match error:
        case OSError(errno=errno.EACCES | errno.EPERM):
            return Outcome.DENIED, f"permission denied: {error.filename or error.strerror}"
        case OSError(errno=errno.ENOENT | errno.ENOTDIR):
            return Outcome.ABSENT, f"does not exist: {error.filename}"
        case OSError():
            return Outcome.ERROR, f"{error.strerror}: {error.filename}"
        case HiddenError() | TooMuchError():
            return Outcome.ERROR, str(error)
        case _:
            return Outcome.ERROR, f"{type(error).__name__}: {error}"


def at_most(limit: int, found: _C, what: str) -> _C:
    """Return what was found.

    Raises:
        TooMuchError: when it is more than so much.
    """
    if len(found) > limit:
        raise TooMuchError(f"more than {limit} {what}")
    return found


def reading(read: Callable[[], T]) -> Reading[T]:
    """Read one value; a failure becomes its outcome."""
    try:
        return Reading(outcome=Outcome.OK, value=read())
    except FAILURES as error:
        outcome, reason = outcome_of(error)
        return Reading(outcome=outcome, reason=reason)


def known(read: Callable[[], T], otherwise: T | None = None) -> T | None:
    """Read one value; a failure says nothing about it."""
    found = reading(read)
    return found.value if found.outcome is Outcome.OK else otherwise


def observed(kind: type[_S], read: Callable[[], Mapping[str, Any]], **own: Any) -> _S:
    """Read the fields of a record that says itself how that ended."""
    found = reading(read)
    return kind(outcome=found.outcome, reason=found.reason, **own, **(found.value or {}))


def section(collect: Callable[[Host], T], host: Host, seconds: float) -> Section[T]:
    """Run one collector in a thread of its own, for at most `seconds`.

    The thread is a daemon: one that hangs in the kernel cannot be stopped, only left behind.
    """
    box: list[Section[T]] = []

    def work() -> None:
        try:
            box.append(Section(outcome=Outcome.OK, value=collect(host)))
        except Exception as error:  # noqa: BLE001 - whatever went wrong, nothing is known
            outcome, reason = outcome_of(error)
            box.append(Section(outcome=outcome, reason=reason))

    thread = threading.Thread(target=work, name=f"collect-{collect.__name__}", daemon=True)
    thread.start()
    thread.join(seconds)
    if not box:
        return Section(outcome=Outcome.TIMEOUT, reason=f"no answer within {seconds:g} s")
    return box[0]


def named(
    environ: Mapping[str, str],
    *,
    checkpoints: tuple[Path, ...] = (),
    datasets: tuple[Path, ...] = (),
    requirements: tuple[Path, ...] = (),
    trust: Path | None = None,
    job: Path | None = None,
) -> Named:
    """Put together what options, a job file and the environment name.

    Raises:
        UsageError: ST-USAG-002 when the job file cannot be read.
        PolicyError: ST-PLCY-001 when it is no YAML, or a path in it is no text.
    """
    more = _of_job(job) if job is not None else NOTHING
    given = NamedPath(path=str(trust.absolute()), origin="--trust") if trust else more.trust
    if given is None and environ.get(_TRUST):
        given = NamedPath(path=environ[_TRUST], origin=_TRUST)
    return Named(
        checkpoints=(*_options(checkpoints, "--checkpoint"), *more.checkpoints),
        datasets=(*_options(datasets, "--dataset"), *more.datasets),
        requirements=_options(requirements, "--requirements"),
        trust=given,
    )


def _options(paths: tuple[Path, ...], option: str) -> tuple[NamedPath, ...]:
    return tuple(NamedPath(path=str(path.absolute()), origin=option) for path in paths)


def _of_job(path: Path) -> Named:
    """Names in a job file: data, a checkpoint or weights to begin from, and who may sign them."""
    from securetrain.policy.load import parse_yaml  # noqa: PLC0415 - most jobs have no file

    text = read_file(path, _JOB_LIMIT).decode("utf-8", "replace")
    job = parse_yaml(text, str(path))
    if not isinstance(job, dict):
        raise PolicyError("ST-PLCY-001", "not a job file: no mapping", str(path))
    resume = _text(job, ("checkpoint", "resume"), path)
    if resume is not None and resume.path in ("auto", "never"):
        resume = None
    weights = _text(job, ("model", "weights"), path)
    dataset = _text(job, ("data", "dataset"), path)
    return Named(
        checkpoints=tuple(_absolute(one) for one in (resume, weights) if one is not None),
        datasets=(_absolute(dataset),) if dataset else (),
        trust=_absolute(trust) if (trust := _text(job, ("trust",), path)) else None,
    )


def _text(job: dict[str, Any], keys: tuple[str, ...], path: Path) -> NamedPath | None:
    value: Any = job
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    if value is None:
        return None
    where = f"{path}: {'.'.join(keys)}"
    if not isinstance(value, str) or "\0" in value:
        raise PolicyError("ST-PLCY-001", "not a path", where, "write it in quotes")
    return NamedPath(path=value, origin=where)


def _absolute(one: NamedPath) -> NamedPath:
    if "://" in one.path:
        raise UsageError(
            "ST-USAG-002",
            "an object store is not looked at by an audit of a node",
            one.origin,
            "check it with 'securetrain verify'",
        )
    return NamedPath(path=str(Path(one.path).absolute()), origin=one.origin)


def _name(info: os.stat_result) -> str:
    """The name of a file (rule 6)."""
    return f"{info.st_dev:x}:{info.st_ino:x}:{info.st_ctime_ns:x}"


def encode_root_files(seen: Iterable[os.stat_result]) -> dict[str, str]:
    """The variable for the process that goes in; empty text when there is more than `LIMIT`."""
    text = ",".join(sorted({_name(info) for info in seen if info.st_uid == 0}))
    return {VARIABLE: text if len(text) <= LIMIT else ""}


def decode_root_files(environ: Mapping[str, str], *, inside: bool) -> frozenset[str]:
    """Read the list of root's files; empty when this process is not inside, or it is malformed."""
    text = environ.get(VARIABLE, "")
    names = text.split(",") if inside and 0 < len(text) <= LIMIT else []
    return frozenset(names) if all(_FILE.match(one) for one in names) else frozenset()


def overflow_uid(proc: Path = Path("/proc")) -> int:
    """The uid that stands for everybody who has none here."""
    return int((proc / "sys" / "fs" / "overflowuid").read_text())
