# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Reading for collectors: bounded, without privileges, with an outcome for every failure.

Rules:

1. files are read up to a limit; a longer one is an error, never a part of the truth;
2. "permission denied" is ``denied``, "no such file" is ``absent``, everything else is ``error``;
3. each collector has a time limit: a hung network filesystem costs one section, not the audit.
"""

import errno
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from securetrain.audit.collect import owners
from securetrain.audit.facts import Outcome, Reading, Section

FILE_LIMIT: Final = 1 << 20
MAX_ENTRIES: Final = 4096
"""How many entries of one directory or table are looked at before giving up on it."""

T = TypeVar("T")


class TooMuchError(Exception):
    """There is more than a collector looks at: what it has is not the whole truth."""


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
    root: Path = Path("/")
    """Where the tree of the machine begins; tests give one of their own."""
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
        """
        with self.at(path).open("rb") as file:
            data = file.read(limit + 1)
        if len(data) > limit:
            raise TooMuchError(f"{path} is larger than {limit} bytes")
        return data.decode("utf-8", "backslashreplace")

    def names(self, path: str | Path) -> list[str]:
        """The sorted names in a directory.

        Raises:
            OSError: when it cannot be listed.
            TooMuchError: when it has more than `MAX_ENTRIES`.
        """
        names: list[str] = []
        with os.scandir(self.at(path)) as entries:
            for entry in entries:
                if len(names) == MAX_ENTRIES:
                    raise TooMuchError(f"{path} has more than {MAX_ENTRIES} entries")
                names.append(entry.name)
        return sorted(names)


def outcome_of(error: Exception) -> tuple[Outcome, str]:
    """The outcome and the reason that an exception stands for."""
    match error:
        case OSError(errno=errno.EACCES | errno.EPERM):
            return Outcome.DENIED, f"permission denied: {error.filename}"
        case OSError(errno=errno.ENOENT | errno.ENOTDIR):
            return Outcome.ABSENT, f"does not exist: {error.filename}"
        case OSError():
            return Outcome.ERROR, f"{error.strerror}: {error.filename}"
        case _:
            return Outcome.ERROR, f"{type(error).__name__}: {error}"


def reading(read: Callable[[], T]) -> Reading[T]:
    """Read one value; a failure becomes its outcome."""
    try:
        return Reading(outcome=Outcome.OK, value=read())
    except (OSError, ValueError, LookupError, TooMuchError) as error:
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
