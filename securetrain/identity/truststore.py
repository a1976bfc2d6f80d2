# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What a machine remembers of a trust root: the newest it has seen, and how far things had come.

TUF's defences against rollback stand and fall with this memory. Rules, in order:

1. the first root is pinned by a person; nothing is fetched to find one;
2. a newer one is trusted only along the chain (`identity.rotation`), and is durable before it is
   used. The version never goes back, and two different roots of one version are a refusal;
3. a *floor* is the highest number of something that was seen (a checkpoint's sequence, a log's
   size), with the keys that signed it. Lower is refused, and so is another digest of the same
   number (ST-IDEN-017);
4. when the root revokes every key that signed a floor, that floor is forgotten: who leaked a key
   must not be able to raise it so high that nothing good ever passes again (fast-forward);
5. memory that is there and cannot be read is a refusal (ST-IDEN-018), never a first time.

Whoever can write the folder can make this machine forget; it is kept from other users (0700).
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from securetrain.core import canonical
from securetrain.core.errors import IdentityError, SecureTrainError, UsageError
from securetrain.core.files import (
    PRIVATE_FILE,
    locked,
    make_private_dir,
    read_file,
    write_atomic,
)
from securetrain.identity.rotation import MAX_STEPS, next_root
from securetrain.identity.trust import LIMIT, KeyId, TrustRoot

ROOT_FILE: Final = "root.json"
FLOORS_FILE: Final = "floors.json"
MAX_FLOORS: Final = 10_000


class Floor(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The highest number of something that was seen."""

    value: Annotated[int, Meta(ge=0, le=(1 << 53) - 1)]
    digest: Annotated[str, Meta(max_length=128)]
    key_ids: Annotated[list[KeyId], Meta(min_length=1, max_length=64)]
    """Who signed it."""


class _Memory(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    version: int
    """The root's, so that an older root beside it is noticed."""
    floors: Annotated[dict[str, Floor], Meta(max_length=MAX_FLOORS)] = {}


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
                self._remember(data, root, _Memory(version=root.version))
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
        root, _ = self._read()
        root.check_time(now, str(self.folder / ROOT_FILE))
        return root

    def update(self, newer: Iterable[bytes], now: datetime) -> TrustRoot:
        """Follow newer roots, each of which is remembered; the last must not have expired.

        Raises:
            IdentityError: Those of `rotation.next_root` and `current`; what was good stays.
        """
        with self._locked():
            for data in newer:
                trusted, memory = self._read()
                new = next_root(trusted, data, str(self.folder))
                self._remember(data, new, _without_revoked(memory, new))
        return self.current(now)

    def update_from(self, folder: Path, now: datetime) -> TrustRoot:
        """Follow ``<version>.root.json`` in a folder, as far as they go.

        Raises:
            IdentityError: Those of `update`.
            UsageError: ST-USAG-002 for a file that cannot be read.
        """
        first = self._read()[0].version + 1
        return self.update(_published(folder, first), now)

    def floor(self, name: str) -> Floor | None:
        """The floor of something; None before it was seen.

        Raises:
            IdentityError: ST-IDEN-007, ST-IDEN-018.
        """
        return self._read()[1].floors.get(name)

    def raise_floor(self, name: str, floor: Floor) -> None:
        """Refuse what is below the floor, else remember it.

        Raises:
            IdentityError: ST-IDEN-017, ST-IDEN-007, ST-IDEN-018.
        """
        with self._locked():
            root, memory = self._read()
            old = memory.floors.get(name)
            if old is not None and (floor.value, floor.digest) == (old.value, old.digest):
                return
            if old is not None and floor.value <= old.value:
                again = "another one of the same number" if floor.value == old.value else "older"
                raise IdentityError(
                    "ST-IDEN-017",
                    f"{name}: number {floor.value} after number {old.value}: {again}",
                    str(self.folder / FLOORS_FILE),
                    "use the newest one; going back needs a waiver by the operators",
                )
            floors = {**memory.floors, name: floor}
            self._write(_Memory(version=root.version, floors=floors))

    def _read(self) -> tuple[TrustRoot, _Memory]:
        path = self.folder / ROOT_FILE
        if not path.exists() and not path.is_symlink():
            raise IdentityError(
                "ST-IDEN-007",
                "no trust root was pinned here",
                str(self.folder),
                "securetrain trust update DIR --pin FILE",
            )
        try:
            root = TrustRoot.parse_of_any_time(read_file(path, LIMIT), str(path))
            data = read_file(self.folder / FLOORS_FILE, LIMIT * 4)
            memory = canonical.decode(data, _Memory, where=FLOORS_FILE, canonical=True)
        except SecureTrainError as error:
            raise _unusable(error.what, str(self.folder)) from error
        # A crash between the two files leaves the floors one version behind, never ahead.
        if memory.version > root.version:
            raise _unusable(
                f"version {root.version} after version {memory.version} was trusted", str(path)
            )
        return root, _without_revoked(memory, root)

    def _remember(self, data: bytes, root: TrustRoot, memory: _Memory) -> None:
        floors = self.folder / FLOORS_FILE
        if not floors.exists():
            self._write(memory)
        write_atomic(self.folder / ROOT_FILE, data, mode=PRIVATE_FILE)
        self._write(msgspec.structs.replace(memory, version=root.version))

    def _write(self, memory: _Memory) -> None:
        write_atomic(self.folder / FLOORS_FILE, canonical.encode(memory), mode=PRIVATE_FILE)

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
    for version in range(first, first + MAX_STEPS):
        path = folder / published_name(version)
        if not path.exists():
            return
        yield read_file(path, LIMIT)


def _without_revoked(memory: _Memory, root: TrustRoot) -> _Memory:
    revoked = root.revoked.keys()
    floors = {
        name: floor for name, floor in memory.floors.items() if not revoked >= {*floor.key_ids}
    }
    return msgspec.structs.replace(memory, floors=floors)


def _unusable(what: str, where: str) -> IdentityError:
    return IdentityError(
        "ST-IDEN-018", what, where, "restore the folder, or pin the trust root again on purpose"
    )
