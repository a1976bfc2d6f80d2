# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Packages of RPM: an installed system's database, or ``.rpm`` files.

Rules:

1. a package's header lists its files with their digests, which are taken as they stand: SHA-256,
   SHA-384 or SHA-512. Files with older digests are left out and named;
2. the header of an ``.rpm`` file must be what its signature header says (SHA-256). Whether the
   package is its maker's is for ``rpmkeys --checksig``: whoever signs the list vouches for it;
3. the database is SQLite (``rpmdb.sqlite``, rpm 4.16 and newer). Older ones are refused by name;
4. a file that is not installed as its package says - changed, replaced or gone - keeps the
   package's digest: what lies there now is then not accepted, which is what a list is for.

Headers are read bounded: number and size before anything is taken, offsets inside of the store.

Source: rpm's ``docs/manual/format_*.md``, ``include/rpm/rpmtag.h``.
"""

import hashlib
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from struct import Struct
from struct import error as StructError
from tempfile import TemporaryDirectory
from typing import Final

from securetrain.attest.fleet.packages.listing import FileListing, clean, spellings, unusable
from securetrain.attest.fleet.packages.roots import Root
from securetrain.core.files import open_regular, read_at_most

DATABASES: Final = ("usr/lib/sysimage/rpm/rpmdb.sqlite", "var/lib/rpm/rpmdb.sqlite")
OLD_DATABASES: Final = ("var/lib/rpm/Packages", "var/lib/rpm/Packages.db")
_LEAD: Final = 96
_LEAD_MAGIC: Final = b"\xed\xab\xee\xdb"
_MAGIC: Final = b"\x8e\xad\xe8\x01\0\0\0\0"
_MAX_INDEX: Final = 1 << 16
_MAX_STORE: Final = 64 << 20
_MAX_FILES: Final = 1 << 20
_SIZES: Final = Struct(">II")
_INDEX: Final = Struct(">IIII")
_INT16, _INT32, _STRING, _STRINGS = 3, 4, 6, 8
_SHA256_HEADER: Final = 273
_NAME, _VERSION, _RELEASE, _ARCHITECTURE = 1000, 1001, 1002, 1022
_MODES, _DIGESTS, _FLAGS, _DIR_INDEXES, _BASE_NAMES, _DIR_NAMES = 1030, 1035, 1037, 1116, 1117, 1118
_ALGORITHM, _SIGNATURES = 5011, 5090
_ALGORITHMS: Final = {8: ("sha256", 64), 9: ("sha384", 96), 10: ("sha512", 128)}
"""Numbers of RFC 4880, 9.4, and digits of hex."""
_REGULAR: Final = 0o100000
_KIND: Final = 0o170000
_GHOST: Final = 1 << 6
_KEY_ID: Final = slice(6, 14)
"""Of an IMA signature in hex: type, version and hash come before it."""


class Header:
    """A package's header, of which values are read when they are asked for."""

    def __init__(self, data: bytes, where: str) -> None:
        """Read the index.

        Args:
            data: number of entries, size of the store, both; without the magic.
            where: names it in errors.

        Raises:
            UsageError: ST-USAG-008.
        """
        self._where = where
        try:
            count, size = _SIZES.unpack_from(data)
            if not 0 < count <= _MAX_INDEX or size > _MAX_STORE:
                raise self._bad(f"{count} entries in {size} bytes")
            entries = [
                _INDEX.unpack_from(data, _SIZES.size + number * _INDEX.size)
                for number in range(count)
            ]
        except StructError as error:
            raise self._bad(str(error)) from error
        self._index = {tag: (kind, offset, number) for tag, kind, offset, number in entries}
        start = _SIZES.size + count * _INDEX.size
        self.size = start + size
        """Bytes of `data` that are the header."""
        if len(data) < self.size:
            raise self._bad(f"{self.size - len(data)} bytes are missing")
        self._store = data[start : self.size]

    def texts(self, tag: int) -> list[str]:
        """The texts of a tag; none when it is not there."""
        found = self._index.get(tag)
        if found is None:
            return []
        kind, offset, count = found
        if kind not in {_STRING, _STRINGS} or count > _MAX_FILES:
            raise self._bad(f"tag {tag} is no text")
        texts = []
        for _ in range(1 if kind == _STRING else count):
            end = self._store.find(b"\0", offset)
            if not 0 <= offset <= end:
                raise self._bad(f"tag {tag} leads out of the header")
            texts.append(self._store[offset:end].decode("utf-8", "surrogateescape"))
            offset = end + 1
        return texts

    def numbers(self, tag: int) -> list[int]:
        """The numbers of a tag; none when it is not there."""
        found = self._index.get(tag)
        if found is None:
            return []
        kind, offset, count = found
        letter = {_INT16: "H", _INT32: "I"}.get(kind)
        if letter is None or count > _MAX_FILES:
            raise self._bad(f"tag {tag} is no number")
        try:
            return list(Struct(f">{count}{letter}").unpack_from(self._store, offset))
        except StructError as error:
            raise self._bad(f"tag {tag} leads out of the header") from error

    def list_files(self, listing: FileListing, root: Root | None) -> None:
        """List its files.

        Args:
            listing: takes them.
            root: where they are installed, so that links are followed; None for either place.

        Raises:
            UsageError: ST-USAG-008.
        """
        names, folders = self.texts(_BASE_NAMES), self.texts(_DIR_NAMES)
        places, digests = self.numbers(_DIR_INDEXES), self.texts(_DIGESTS)
        modes, flags = self.numbers(_MODES), self.numbers(_FLAGS)
        name = " ".join(
            "".join(self.texts(tag)) for tag in (_NAME, _VERSION, _RELEASE, _ARCHITECTURE)
        )
        listing.list_package(name)
        if not names:
            return
        if not len(names) == len(places) == len(digests) == len(modes) == len(flags):
            raise self._bad("its lists of files have several lengths")
        number = (self.numbers(_ALGORITHM) or [1])[0]
        if number not in _ALGORITHMS:
            listing.leave_out(f"{name}: the digests of its files are of algorithm {number}")
            return
        algorithm, digits = _ALGORITHMS[number]
        for base, place, digest, mode, flag in zip(
            names, places, digests, modes, flags, strict=True
        ):
            if mode & _KIND != _REGULAR or flag & _GHOST or not digest:
                continue
            if place >= len(folders) or "/" in base:
                raise self._bad(f"the file {base[:80]!r} is in no folder")
            path = clean(folders[place] + base)
            if path is None or len(digest) != digits or not _is_hex(digest):
                raise self._bad(f"the file {base[:80]!r} has no path or no digest")
            lies = [root.real(path)] if root is not None else spellings(path)
            for one in filter(None, lies):
                listing.add(one, f"{algorithm}:{digest}")
        self._count_signatures(listing)

    def _count_signatures(self, listing: FileListing) -> None:
        for signature in filter(None, self.texts(_SIGNATURES)):
            if not _is_hex(signature):
                raise self._bad("a file's signature is no hex")
            listing.signed_by[signature[_KEY_ID]] += 1

    def check(self, tag: int, data: bytes) -> None:
        """The SHA-256 at a tag must be that of the data.

        Raises:
            UsageError: ST-USAG-008.
        """
        if self.texts(tag) != [hashlib.sha256(data).hexdigest()]:
            raise self._bad("its SHA-256 is not there, or not that of its header")

    def _bad(self, what: str) -> Exception:
        return unusable(f"not a package's header: {what}", self._where, "get the package again")


def list_rpm(path: Path, listing: FileListing) -> None:
    """List the files that a package would install.

    Raises:
        UsageError: ST-USAG-002 or 008.
    """
    where = str(path)
    with open(open_regular(path), "rb") as file:  # noqa: PTH123 - opened without following links
        data = read_at_most(file, _LEAD + 3 * _MAX_STORE)
    if data[:4] != _LEAD_MAGIC:
        raise unusable("not an RPM package", where, "name an .rpm file")
    signature, end = _header(data, _LEAD, where)
    start = end + -end % 8
    header, end = _header(data, start, where)
    signature.check(_SHA256_HEADER, data[start:end])
    header.list_files(listing, None)


def _header(data: bytes, start: int, where: str) -> tuple[Header, int]:
    body = start + len(_MAGIC)
    if data[start:body] != _MAGIC:
        raise unusable("not an RPM package: a header is missing", where, "get the package again")
    header = Header(data[body:], where)
    return header, body + header.size


def list_installed(folder: Path, listing: FileListing) -> None:
    """List the files of the packages that are installed below a folder.

    Raises:
        UsageError: ST-USAG-002 or 008.
    """
    root = Root(folder)
    database = next(
        (root.folder / name for name in DATABASES if (root.folder / name).is_file()), None
    )
    if database is None:
        old = next((name for name in OLD_DATABASES if (root.folder / name).exists()), "")
        raise unusable(
            f"the database {old} is of an older format" if old else "it has no database of rpm",
            str(folder),
            "convert it: rpmdb --rebuilddb with rpm 4.16 or newer" if old else "name its root",
        )
    for number, blob in _rows(database):
        if number == 0:
            continue  # the next free number, not a package
        Header(blob, f"{database}: package {number}").list_files(listing, root)


def _rows(database: Path) -> Iterator[tuple[int, bytes]]:
    try:
        with TemporaryDirectory() as folder:
            # A copy, with what was written and is not in the database yet: another root's files are
            # not written to, and opening them for reading alone would.
            copy = Path(folder) / database.name
            shutil.copyfile(database, copy)
            log = database.with_name(f"{database.name}-wal")
            if log.is_file():
                shutil.copyfile(log, copy.with_name(log.name))
            yield from _copied(copy)
    except (sqlite3.Error, OSError) as error:
        raise unusable(f"not rpm's database: {error}", str(database), "name its root") from error


def _copied(database: Path) -> Iterator[tuple[int, bytes]]:
    with closing(sqlite3.connect(database)) as opened:
        for number, blob in opened.execute("SELECT hnum, blob FROM Packages ORDER BY hnum"):
            if not isinstance(number, int) or not isinstance(blob, bytes):
                raise unusable("a row is no package", str(database), "repair the database")
            yield number, blob


def _is_hex(digits: str) -> bool:
    return set(digits) <= set("0123456789abcdef")
