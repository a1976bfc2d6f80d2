# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A machine's memory of a trust root: the newest one that it has seen.

TUF's defences against rollback stand and fall with this memory. Rules, in order:

1. the first root is pinned by a person; nothing is fetched to find one;
2. a newer one is trusted only along the chain (`identity.rotation`), and is durable before it is
   used. The version never goes back, and another root of the same version is a refusal;
3. memory that is there and cannot be read is a refusal (ST-IDEN-018), never a first time.

Numbers of other things that never go back (`artifacts.lineage.judging`) are kept by the key that
signed them, so that they die when a newer root revokes it.

A user who can write the folder can make this machine forget; others are kept out (0700).
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Final

from securetrain.core.errors import IdentityError, SecureTrainError, UsageError
from securetrain.core.files import (
    PRIVATE_FILE,
    locked,
    make_private_dir,
    read_file,
    write_atomic,
)
from securetrain.identity.rotation import MAX_STEPS, next_root
from securetrain.identity.trust import LIMIT, TrustRoot

ROOT_FILE: Final = "trusted.json"
NEWEST: Final = "root.json"
"""In a published folder: the newest version once more."""
_NAME: Final = re.compile(r"([1-9][0-9]{0,9})\.root\.json\Z")


class TrustStore:
    """The folder. Every method reads it anew: several processes may share it."""

    def __init__(self, folder: Path) -> None:
        """Name the folder; `pin` begins it."""
        self.folder = folder

    def pin(self, data: bytes, now: datetime, where: str = "") -> TrustRoot:
        """Trust a root because a person says so. The same one may be pinned again.

        Raises:
            IdentityError: ST-IDEN-008.
            UsageError: ST-USAG-005 when another root is trusted here already.
        """
        root = TrustRoot.parse(data, now, where)
        with self._locked():
            path = self.folder / ROOT_FILE
            if not path.exists():
                self._remember(data)
            elif read_file(path, LIMIT) != data:
                raise UsageError(
                    "ST-USAG-005",
                    "another trust root is pinned here",
                    str(path),
                    "update along the chain instead, or choose another folder",
                )
        return root

    def current(self, now: datetime) -> TrustRoot:
        """The trusted root.

        Raises:
            IdentityError: ST-IDEN-007 when none was pinned, ST-IDEN-018, ST-IDEN-008 expired.
        """
        root = self._read()
        root.check_time(now, str(self.folder / ROOT_FILE))
        return root

    def update(self, newer: Iterable[bytes], now: datetime) -> TrustRoot:
        """Follow newer roots, each of which is remembered; the last must not have expired.

        Raises:
            IdentityError: Those of `rotation.next_root` and `current`; what was good stays.
        """
        with self._locked():
            for data in newer:
                next_root(self._read(), data, str(self.folder))
                self._remember(data)
        return self.current(now)

    def update_from(self, folder: Path, now: datetime) -> TrustRoot:
        """Follow ``<version>.root.json`` in a folder, as far as they go.

        Raises:
            IdentityError: Those of `update`; ST-IDEN-016 where one is missing before a newer one.
            UsageError: ST-USAG-002 for a file that cannot be read.
        """
        return self.update(_published(folder, self._read().version + 1), now)

    def _read(self) -> TrustRoot:
        path = self.folder / ROOT_FILE
        if not path.exists() and not path.is_symlink():
            raise IdentityError(
                "ST-IDEN-007",
                "no trust root was pinned here",
                str(self.folder),
                "pin one: securetrain trust update DIR --pin FILE; or name a root.json, not its"
                " folder",
            )
        try:
            return TrustRoot.parse_of_any_time(read_file(path, LIMIT), str(path))
        except SecureTrainError as error:
            raise IdentityError("ST-IDEN-018", error.what, str(path)) from error

    def _remember(self, data: bytes) -> None:
        write_atomic(self.folder / ROOT_FILE, data, mode=PRIVATE_FILE)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        make_private_dir(self.folder)
        with locked(self.folder / ".lock"):
            yield


def load_trust(path: Path, now: datetime) -> TrustRoot:
    """The trust root that a person names: a file, which is the pin, or a folder that remembers.

    Raises:
        IdentityError: ST-IDEN-007, ST-IDEN-008, ST-IDEN-018.
        UsageError: ST-USAG-002.
    """
    return TrustStore(path).current(now) if path.is_dir() else TrustRoot.load(path, now)


def published_name(version: int) -> str:
    """The file of a version in a published folder."""
    return f"{version}.root.json"


def _published(folder: Path, first: int) -> Iterator[bytes]:
    """The versions from one on; none newer than the last of them may lie there."""
    for version in range(first, first + MAX_STEPS):
        path = folder / published_name(version)
        if not path.exists():
            if newer := _newer(folder, version):
                raise IdentityError(
                    "ST-IDEN-016",
                    f"version {newer} was published, and version {version} is not there",
                    str(path),
                    f"get {path.name} as well: each version is trusted by the one before it",
                )
            return
        yield read_file(path, LIMIT)


def _newer(folder: Path, version: int) -> int:
    """The newest version in a folder that is above another one; 0 without one."""
    found = [int(match[1]) for one in folder.glob("*.json") if (match := _NAME.match(one.name))]
    newest = folder / NEWEST
    if newest.exists():
        found.append(TrustRoot.parse_of_any_time(read_file(newest, LIMIT), str(newest)).version)
    return max((one for one in found if one >= version), default=0)
