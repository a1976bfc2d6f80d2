# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The record of a job network on disk, so that others can remove it when its owner cannot.

One folder for each job network, in a state folder that only root enters, with ``record.json`` in
it. Rules:

1. the folder appears whole, with the record in it, before anything else is made, and goes last:
   whatever a dead owner left is found;
2. the folder is a claim: it exists once, so that two processes cannot own one job network;
3. a record holds no secret, and no name of a kernel object: those are computed again from job and
   node, so that a record cannot point at somebody else's device;
4. a record that is malformed, or not where its own names say, is reported and never acted upon;
5. claiming and cleaning up happen under one lock, so that nobody removes what was made anew.
"""

import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from securetrain.core import canonical, files
from securetrain.core.errors import NetworkError, UsageError
from securetrain.core.files import make_private_dir, read_file, staged_dir, write_atomic
from securetrain.network.addresses import Names
from securetrain.network.process_identity import Owner

STATE: Final = Path("/run/securetrain/network")
"""In memory: after a reboot nothing is left, and nothing is to be remembered."""

RECORD: Final = "record.json"
ENGINE_LOG: Final = "engine.log"
LOCK: Final = "lock"
STAGED: Final = ".tmp-"
"""Stands in the name of a folder that was never finished (`core.files.staged_dir`)."""
_LIMIT: Final = 16 << 10

_Text = Annotated[str, Meta(min_length=1, max_length=64)]


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The record."""

    schema: Literal["securetrain.jobnetwork/v1"] = "securetrain.jobnetwork/v1"
    job: _Text
    node: _Text
    host: Annotated[str, Meta(max_length=64, pattern=r"^[A-Za-z0-9._-]*\Z")] = ""
    """The namespace that the tunnel's UDP socket is in; empty for the owner's own."""
    owner: Owner

    @property
    def names(self) -> Names:
        """The names of the kernel objects."""
        return Names.of(self.job, self.node)


@dataclass(frozen=True, slots=True)
class Entry:
    """A folder below the state folder, and what is known about it."""

    folder: Path
    record: Record | None
    problem: str = ""
    """Why there is no record."""

    @property
    def is_unfinished(self) -> bool:
        """True when its owner died before it wrote the record, and so before it made anything."""
        is_folder = stat.S_ISDIR(self.folder.lstat().st_mode)
        return is_folder and STAGED in self.folder.name and not (self.folder / RECORD).exists()


@contextmanager
def locked(state: Path) -> Iterator[None]:
    """Keep everybody else from claiming or cleaning up (rule 5); the kernel ends it with us.

    Raises:
        UsageError: ST-USAG-002 when the state folder cannot be made.
    """
    with files.locked(make_private_dir(state) / LOCK):
        yield


def claim(state: Path, record: Record) -> Path:
    """Make the folder of a job network; it is this process's from now on. Call it locked.

    Raises:
        NetworkError: ST-NETW-020 when it exists.
        UsageError: ST-USAG-002 when it cannot be made.
    """
    folder = make_private_dir(state) / record.names.namespace
    try:
        with staged_dir(folder, mode=0o700) as staging:
            write_atomic(staging / RECORD, canonical.encode(record), mode=0o600)
    except UsageError as error:
        if error.code == "ST-USAG-005":
            raise NetworkError(
                "ST-NETW-020",
                f"node {record.node} is in the network of job {record.job} already",
                str(folder),
            ) from error
        raise
    return folder


def release(folder: Path) -> None:
    """Forget a job network of which nothing is left."""
    shutil.rmtree(folder)


def entries(state: Path) -> Iterator[Entry]:
    """Every folder below the state folder.

    Raises:
        NetworkError: ST-NETW-022 when somebody else may write to the state folder.
    """
    if not state.exists():
        return
    info = state.lstat()
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid() or info.st_mode & 0o077:
        raise NetworkError(
            "ST-NETW-022", "not a directory that only this user may enter", str(state)
        )
    for folder in sorted(state.iterdir()):
        if folder.name != LOCK:
            yield read_entry(folder)


def read_entry(folder: Path) -> Entry:
    """One folder. A staged one that never got its name counts as what it was to be."""
    try:
        data = read_file(folder / RECORD, _LIMIT)
        record = canonical.decode(data, Record, limit=_LIMIT, where=str(folder), canonical=True)
    except UsageError as error:
        return Entry(folder, None, error.what)
    if folder.name.partition(STAGED)[0] != record.names.namespace:
        return Entry(folder, None, f"the record is of {record.names.namespace}")
    return Entry(folder, record)
