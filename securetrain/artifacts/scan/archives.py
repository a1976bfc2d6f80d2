# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The members of archives, as windows: nothing is extracted to where somebody could find it.

Rules for zip archives, in order; torch's own reader and Python's differ in what they believe, so an
archive that is not one thing to both is refused (ST-SCAN-193 or 192):

1. the archive begins where the file begins, and every member's own header has the name and the
   method that the central directory gives it;
2. no two members have one name or share bytes;
3. members are stored or deflated; checksums are not looked at, because torch does not.

Sources: PKWARE APPNOTE.TXT 6.3.10, sections 4.3.7 and 4.3.12; the tar reader is Python's.
"""

import bz2
import gzip
import lzma
import re
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePosixPath
from typing import IO, Any, Final, TypeAlias

from securetrain.artifacts.scan.findings import MALFORMED, TWO_FORMATS
from securetrain.artifacts.scan.formats import Format
from securetrain.artifacts.scan.remarks import UnjudgedError
from securetrain.artifacts.scan.window import Window

MAX_MEMBERS: Final = 1_000_000
CHUNK: Final = 1 << 20
NUMPY_HEADER_LIMIT: Final = 1 << 20

_LOCAL: Final = 30
_UTF8: Final = 0x800
_ENCRYPTED: Final = 0x1
_OBJECT: Final = re.compile(rb"""['"][|<>=]?O\d*['"]""")
_READ_ERRORS: Final = (
    ValueError, TypeError, EOFError, OSError, IndexError, KeyError, NotImplementedError,
    OverflowError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, tarfile.TarError, RuntimeError,
)  # fmt: skip


class _Zlib:
    """A zlib stream, which joblib writes, as a file."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._machine = zlib.decompressobj()

    def read(self, size: int) -> bytes:
        """Up to `size` bytes; none at the end."""
        while not self._machine.eof:
            packed = self._machine.unconsumed_tail or self._file.read(CHUNK)
            try:
                data = self._machine.decompress(packed, size) if packed else b""
            except zlib.error as error:
                raise UnjudgedError(f"packed by zlib, or else: {error}") from error
            if not packed:
                raise UnjudgedError("packed by zlib, and cut short")
            if data:
                return data
        return b""


_OPENERS: Final[dict[Format, Callable[[IO[bytes]], Any]]] = {
    Format.GZIP: gzip.open,
    Format.BZIP2: bz2.open,
    Format.XZ: lzma.open,
    Format.ZLIB: _Zlib,
}


Take: TypeAlias = Callable[[int], None]
"""Counts unpacked bytes; raises `UnjudgedError` when there are too many."""


class ArchiveError(Exception):
    """An archive is not what it says."""

    def __init__(self, code: str, what: str) -> None:
        super().__init__(what)
        self.code = code


class Archive(StrEnum):
    """The maker of a zip archive."""

    TORCH = "torch.save"
    TORCHSCRIPT = "TorchScript"
    EXPORT = "torch.export"
    MAR = "TorchServe"
    OTHER = "something else"


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One member of an archive."""

    name: str
    window: Window | None = None
    is_raw: bool = False
    """Whether a loader takes it for plain numbers."""
    is_program: bool = False
    """Whether a loader takes it for TorchScript."""
    of: Archive = Archive.OTHER
    problem: str = ""
    """Why it cannot be judged."""


def zip_members(window: Window, take: Take) -> Iterator[Member]:
    """The members of a zip archive.

    Raises:
        ArchiveError: rules 1 and 2.
    """
    try:
        with zipfile.ZipFile(_as_file(window)) as archive:
            entries = archive.infolist()
    except _READ_ERRORS as error:
        raise ArchiveError(MALFORMED, f"not a sound zip archive: {error}") from error
    names = {entry.orig_filename for entry in entries}
    if len(entries) > MAX_MEMBERS or len(names) != len(entries):
        raise ArchiveError(MALFORMED, "two members of one name, or too many members")
    places = _places(window, entries)
    kind = _kind(names)
    for entry in entries:
        yield from _zip_member(entry, places[entry.header_offset], take, kind)


def _kind(names: set[str]) -> Archive:
    """The maker of an archive, told by members that only it writes."""
    for name in names:
        parts = PurePosixPath(name).parts
        if parts[1:] == ("archive_format",):
            return Archive.EXPORT
        if parts[-1:] == ("data.pkl",):
            code = any(PurePosixPath(other).parts[1:2] == ("code",) for other in names)
            return Archive.TORCHSCRIPT if code else Archive.TORCH
        if parts == ("MAR-INF", "MANIFEST.json"):
            return Archive.MAR
    return Archive.OTHER


def _places(window: Window, entries: list[zipfile.ZipInfo]) -> dict[int, Window]:
    """The place of each member's bytes, by the place of its header."""
    places: dict[int, Window] = {}
    end = 0
    for entry in sorted(entries, key=lambda entry: entry.header_offset):
        if (not places and entry.header_offset != 0) or entry.header_offset < end:
            raise ArchiveError(TWO_FORMATS, "bytes before the archive, or members that share bytes")
        start = _data_start(window, entry)
        try:
            places[entry.header_offset] = window.part(start, entry.compress_size)
        except ValueError as error:
            raise ArchiveError(MALFORMED, f"member {entry.orig_filename!r}: {error}") from error
        end = start + entry.compress_size
    return places


def _data_start(window: Window, entry: zipfile.ZipInfo) -> int:
    header = window.peek(entry.header_offset, _LOCAL)
    if len(header) < _LOCAL or not header.startswith(b"PK\x03\x04"):
        raise ArchiveError(MALFORMED, f"member {entry.orig_filename!r} has no header of its own")
    flags = int.from_bytes(header[6:8], "little")
    method = int.from_bytes(header[8:10], "little")
    name_length = int.from_bytes(header[26:28], "little")
    extra_length = int.from_bytes(header[28:30], "little")
    raw_name = window.peek(entry.header_offset + _LOCAL, name_length)
    name = raw_name.decode("utf-8" if flags & _UTF8 else "cp437", "replace")
    if name != entry.orig_filename or method != entry.compress_type:
        raise ArchiveError(
            TWO_FORMATS, f"{entry.orig_filename!r} in the directory is {name!r} in its own header"
        )
    return entry.header_offset + _LOCAL + name_length + extra_length


def _zip_member(
    entry: zipfile.ZipInfo, place: Window, take: Take, kind: Archive
) -> Iterator[Member]:
    name = entry.orig_filename
    parts = PurePosixPath(name).parts
    program = kind is Archive.TORCHSCRIPT and parts[1:2] == ("code",) and name.endswith(".py")
    if entry.is_dir() and entry.file_size == 0:
        return
    if entry.flag_bits & _ENCRYPTED:
        yield Member(name=name, of=kind, problem="encrypted")
    elif _is_raw(kind, parts):
        yield Member(name=name, of=kind, is_raw=True)
    elif entry.compress_type == zipfile.ZIP_STORED:
        yield Member(name=name, of=kind, window=place, is_program=program)
    elif entry.compress_type == zipfile.ZIP_DEFLATED:
        with _spool(_inflate(place), take) as inner:
            yield Member(name=name, of=kind, window=inner, is_program=program)
    else:
        yield Member(name=name, of=kind, problem=f"packed by method {entry.compress_type}")


def _is_raw(kind: Archive, parts: tuple[str, ...]) -> bool:
    """Tell whether torch takes a member for plain numbers."""
    match kind:
        case Archive.TORCH | Archive.TORCHSCRIPT:
            folders = ("data", "constants") if kind is Archive.TORCHSCRIPT else ("data",)
            known = len(parts) == 3 and parts[1] in folders
            return known or parts[1:] in ((".format_version",), (".storage_alignment",))
        case Archive.EXPORT:
            weights = parts[1:3] in (("data", "weights"), ("data", "constants"))
            return weights and parts[-1].startswith(("weight_", "tensor_"))
        case _:
            return False


def tar_members(window: Window) -> Iterator[Member]:
    """The members of a tar archive; links and devices cannot be judged.

    Raises:
        ArchiveError: it is malformed.
    """
    try:
        with tarfile.open(fileobj=_as_file(window), mode="r:") as archive:
            for count, entry in enumerate(archive):
                if count >= MAX_MEMBERS:
                    raise ArchiveError(MALFORMED, f"more than {MAX_MEMBERS} members")
                if entry.isreg() and not entry.issparse():
                    yield Member(name=entry.name, window=window.part(entry.offset_data, entry.size))
                elif not entry.isdir():
                    yield Member(name=entry.name, problem="a link, a device or a sparse file")
    except _READ_ERRORS as error:
        raise ArchiveError(MALFORMED, f"not a sound tar archive: {error}") from error


@contextmanager
def unpack(window: Window, kind: Format, take: Take) -> Iterator[Window]:
    """The content of a compressed file.

    Raises:
        ArchiveError: it is malformed.
        UnjudgedError: it is too large.
    """
    reader = _OPENERS[kind](_as_file(window))
    with _spool(iter(lambda: reader.read(CHUNK), b""), take) as inner:
        yield inner


def numpy_pickle(window: Window) -> int | None:
    """The offset of the pickle of an array of objects; None for an array of numbers.

    Source: NEP 1, the NPY format.

    Raises:
        UnjudgedError: the header is malformed.
    """
    head = window.peek(0, 12)
    wide = head[6:7] != b"\x01"
    start = 12 if wide else 10
    length = int.from_bytes(head[8:start], "little")
    if len(head) < 12 or length > NUMPY_HEADER_LIMIT or start + length > window.size:
        raise UnjudgedError("a numpy array whose header is malformed")
    header = window.peek(start, length)
    return start + length if _OBJECT.search(header) else None


def _inflate(window: Window) -> Iterator[bytes]:
    machine = zlib.decompressobj(-zlib.MAX_WBITS)
    at = 0
    while at < window.size and not machine.eof:
        packed = window.peek(at, CHUNK)
        at += len(packed)
        yield machine.decompress(packed, CHUNK)
        while machine.unconsumed_tail:
            yield machine.decompress(machine.unconsumed_tail, CHUNK)


@contextmanager
def _spool(pieces: Iterator[bytes], take: Take) -> Iterator[Window]:
    """Unpacked bytes in a file without a name."""
    with tempfile.TemporaryFile() as file:
        try:
            for piece in pieces:
                take(len(piece))
                file.write(piece)
        except _READ_ERRORS as error:
            raise ArchiveError(MALFORMED, f"it cannot be unpacked: {error}") from error
        file.flush()
        yield Window.whole(file.fileno())


def _as_file(window: Window) -> IO[bytes]:
    """The window as the file object that the standard library asks for."""
    fresh: Any = window.part(0, window.size)
    return fresh  # type: ignore[no-any-return]
