# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Reading for collectors: bounded, without privileges, with an outcome for every failure.

Rules:

1. files are read up to a limit; a longer one is an error, never a part of the truth;
2. "permission denied" is ``denied``, "no such file" is ``absent``, everything else is ``error``;
3. sandboxes hide a file by a device over it, and a directory by an empty mount: what is hidden so
   in the machine's own tree is an error, not absent;
4. each collector has a time limit: a hung network filesystem costs one section, not the audit.
"""

import errno
import os
import stat
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

from securetrain.audit.facts import Outcome, Reading, Section
from securetrain.audit.subjects.node.collect import nftables, owners, rtnetlink
from securetrain.audit.subjects.node.collect.named import NOTHING, Named

FILE_LIMIT: Final = 1 << 20
MAX_ENTRIES: Final = 4096
"""How many entries of one directory or table are looked at before giving up on it."""

_HIDEABLE: Final = ("/proc/", "/sys/", "/etc/", "/usr/", "/var/")
"""Where nobody mounts something empty but to hide what is there."""
_MOUNTINFO: Final = "/proc/self/mountinfo"
_MAX_MOUNTS: Final = 4096

T = TypeVar("T")


class TooMuchError(Exception):
    """There is more than a collector looks at: what it has is not the whole truth."""


class HiddenError(Exception):
    """Something lies over what was asked for."""


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
class Kernel:
    """The questions that the kernel is asked."""

    links: Callable[[], bytes] = rtnetlink.dump_links
    """The list of interfaces."""
    nft: Callable[..., bytes] = nftables.dump
    """The packet filters."""
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
    """Files of the machine's root that look like a stranger's from here (`owners`)."""

    def owner(self, info: os.stat_result) -> int:
        """The uid that a file belongs to."""
        is_roots = self.root_owned and owners.name(info) in self.root_owned
        return 0 if is_roots and info.st_uid == owners.overflow_uid() else info.st_uid

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
            if len(lines) > _MAX_MOUNTS:
                raise TooMuchError(f"more than {_MAX_MOUNTS} mounts")
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


def reading(read: Callable[[], T]) -> Reading[T]:
    """Read one value; a failure becomes its outcome."""
    try:
        return Reading(outcome=Outcome.OK, value=read())
    except (OSError, ValueError, LookupError, TooMuchError, HiddenError) as error:
        outcome, reason = outcome_of(error)
        return Reading(outcome=outcome, reason=reason)


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
