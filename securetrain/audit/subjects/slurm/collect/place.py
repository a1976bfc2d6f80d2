# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The directory of a Slurm configuration: the machine's own, or a copy of one.

Rules:

1. below the directories where machines keep configurations it is the machine's own: then absolute
   paths are the machine's, links are followed, and owners and modes count;
2. anything else is a copy: nothing outside it is read, whatever links and paths say, and what a
   configuration names in Slurm's usual directory is looked for in the copy;
3. reads are bounded, and nothing but a regular file is opened.
"""

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from securetrain.audit.facts import Outcome
from securetrain.audit.subjects.node.collect.host import HiddenError, Host, TooMuchError
from securetrain.audit.subjects.node.collect.paths import chains
from securetrain.audit.subjects.node.facts.node import Link

FILE_LIMIT: Final = 4 << 20
"""The largest file that is read; sites with many nodes have some hundred kilobytes."""

_MACHINES_OWN: Final = ("/etc/", "/usr/", "/opt/", "/var/", "/run/", "/cm/")
_USUAL: Final = (
    "/etc/slurm/",
    "/etc/slurm-llnl/",
    "/usr/local/etc/slurm/",
    "/usr/local/slurm/etc/",
    "/opt/slurm/etc/",
    "/usr/local/etc/",
)
"""The places where a configuration usually stands (``--sysconfdir`` of packages)."""

COPY: Final = "this is a copy: owner and mode count on the machine itself"


class NotHereError(Exception):
    """A file outside a copy, or something that is not in these files."""

    def __init__(self, reason: str, outcome: Outcome = Outcome.ERROR) -> None:
        """Keep how the reading ends."""
        super().__init__(reason)
        self.outcome = outcome


@dataclass(frozen=True, slots=True)
class Place:
    """One directory with a configuration."""

    host: Host
    directory: str
    """Absolute on the machine itself; as it was given for a copy."""
    live: bool
    chain: Callable[[str], tuple[Outcome, str, tuple[Link, ...]]]
    """The way to a path of the machine (`paths.chains`)."""

    @classmethod
    def of(cls, directory: str, host: Host) -> "Place":
        """The place of a directory, which need not exist."""
        absolute = os.path.normpath(Path(directory).absolute())
        live = f"{absolute}/".startswith(_MACHINES_OWN)
        return cls(host, absolute if live else directory.rstrip("/") or "/", live, chains(host))

    def named(self, path: str) -> str:
        """The path of a file of the configuration, as findings name it.

        Raises:
            NotHereError: when it lies outside a copy.
        """
        if self.live or not path.startswith("/"):
            return os.path.normpath(f"{self.directory}/{path}" if path[:1] != "/" else path)
        for usual in _USUAL:
            if path.startswith(usual):
                return os.path.normpath(f"{self.directory}/{path.removeprefix(usual)}")
        raise NotHereError(f"{path} is not in {self.directory}")

    def real(self, path: str) -> Path:
        """The file behind a name that `named` gave.

        Raises:
            NotHereError: when a link or ``..`` leads out of a copy.
            OSError: when it does not exist.
        """
        if self.live:
            return self.host.at(path)
        found = Path(path).resolve(strict=True)
        if not found.is_relative_to(Path(self.directory).resolve()):
            raise NotHereError(f"{path} leads out of {self.directory}")
        return found

    def text(self, path: str) -> str:
        """A text file.

        Raises:
            NotHereError: when it lies outside a copy.
            OSError: when it cannot be read.
            TooMuchError: when it is larger than `FILE_LIMIT`.
            HiddenError: when it is no regular file, or hidden by a mount.
            ValueError: when it is not text.
        """
        real = self.real(path)
        try:
            if not stat.S_ISREG(real.stat().st_mode):
                raise HiddenError(f"not a regular file: {path}")
        except FileNotFoundError:
            if self.live:
                self.host.refuse_hidden(path)
            raise
        with real.open("rb") as file:
            data = file.read(FILE_LIMIT + 1)
        if len(data) > FILE_LIMIT:
            raise TooMuchError(f"{path} is larger than {FILE_LIMIT} bytes")
        if b"\0" in data:
            raise ValueError(f"{path} is not text")
        return data.decode("utf-8", "backslashreplace")

    def names(self, path: str) -> list[str]:
        """The sorted names in a directory; see `Host.names` for what it raises."""
        if self.live:
            return self.host.names(path)
        real = self.real(path)
        found = sorted(os.listdir(real))  # noqa: PTH208 - names, not paths
        if len(found) > 4096:
            raise TooMuchError(f"{path} has more than 4096 entries")
        return found
