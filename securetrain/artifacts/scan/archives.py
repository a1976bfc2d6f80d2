# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The members of archives, as windows: nothing is extracted to where somebody could find it.

Rules for zip archives, in order; torch's own reader and Python's differ in what they believe, so an
archive that is not one thing to both is refused (ST-SCAN-193 or 192):

1. the archive begins where the file begins, and every member's own header has the name and the
   method that the central directory gives it;
2. no two members have one name or share bytes;
3. members are stored or deflated; checksums are not looked at, because torch does not;
4. no member of any archive has a name that leads out of a folder, whoever unpacks it;
5. a member is of every maker's archive whose marks are there: it is plain numbers only if each
   takes it for them, and known only if one of them writes it (`_KNOWN`); an archive without members
   is none.

Sources: PKWARE APPNOTE.TXT 6.3.10, sections 4.3.7 and 4.3.12; the tar reader is Python's.
"""

import bz2
import lzma
import re
import tarfile
import tempfile
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import PurePosixPath, PureWindowsPath
from typing import IO, Any, Final, TypeAlias

from securetrain.artifacts.scan import programs
from securetrain.artifacts.scan.findings import (
    MALFORMED,
    OUTSIDE,
    TWO_FORMATS,
    Remark,
    UnjudgedError,
)
from securetrain.artifacts.scan.formats import CHUNK, Format, Window


class Archive(StrEnum):
    """The maker of a zip archive."""

    TORCH = "torch.save"
    TORCHSCRIPT = "TorchScript"
    EXPORT = "torch.export"
    MAR = "TorchServe"


MAX_MEMBERS: Final = 1_000_000
MAX_MEMORY: Final = 256 << 20
"""What unpacking may need."""

_LOCAL: Final = 30
_UTF8: Final = 0x800
_OLD_EXPORT: Final = "serialized_exported_program.json"
_GRAPH: Final = re.compile(
    r"(?:^|/)(?:models/[^/]+\.json|data/(?:weights|constants)/[^/]+\.json"
    r"|serialized_exported_program\.json)$",
    re.IGNORECASE,
)
_TORCHES: Final = frozenset({Archive.TORCH, Archive.TORCHSCRIPT})
_NEVER: Final = re.compile(r"(?!)")
_RAW: Final = {
    Archive.TORCH: re.compile(r"data/[^/]+"),
    Archive.TORCHSCRIPT: re.compile(r"(?:data|constants|traced_inputs)/[^/]+"),
    Archive.EXPORT: re.compile(r"data/(?:weights/weight|constants/tensor)_\d+"),
    Archive.MAR: _NEVER,
}
"""The members that each maker fills with plain numbers."""
_OF_TORCH: Final = (
    r"version|byteorder|\.data/[^/]+|\.format_version|\.storage_alignment|data\.pkl|data/[^/]+"
)
_KNOWN: Final = {
    Archive.TORCH: re.compile(_OF_TORCH),
    Archive.TORCHSCRIPT: re.compile(
        rf"{_OF_TORCH}|(?:constants|attributes|traced_inputs)\.pkl"
        r"|(?:constants|traced_inputs)/[^/]+"
        r"|code/.+\.(?:py|debug_pkl)|extra/.+|model\.json|debug_pkl/.+"
    ),
    Archive.EXPORT: re.compile(
        r"archive_format|archive_version|version|byteorder|\.data/[^/]+|models/[^/]+\.json|extra/.+"
        r"|data/(?:weights|constants|sample_inputs)/[^/]+|data/aotinductor/.+"
        r"|serialized_(?:state_dict|constants|example_inputs)\.pt"
    ),
    Archive.MAR: re.compile(".*", re.DOTALL),
}
"""The members that each maker writes, below the archive's own folder."""
_OLD_TAR: Final = frozenset({"pickle", "storages", "tensors"})
_ENCRYPTED: Final = 0x1
_READ_ERRORS: Final = (
    ValueError, TypeError, EOFError, OSError, IndexError, KeyError, NotImplementedError,
    OverflowError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, tarfile.TarError, RuntimeError,
)  # fmt: skip


_MACHINES: Final[dict[Format, Callable[[], Any]]] = {
    Format.GZIP: lambda: zlib.decompressobj(16 + zlib.MAX_WBITS),
    Format.BZIP2: bz2.BZ2Decompressor,
    Format.XZ: lambda: lzma.LZMADecompressor(memlimit=MAX_MEMORY),
    Format.ZLIB: zlib.decompressobj,
}
"""What unpacks one stream; a file may be several, one behind the other."""


def _unpacked(window: Window, kind: Format) -> Iterator[bytes]:
    """The bytes of a compressed file, in bounded pieces."""
    machine, packed, at = _MACHINES[kind](), b"", 0
    while packed or at < window.size:
        if not packed:
            packed = window.peek(at, CHUNK)
            at += len(packed)
        yield machine.decompress(packed, CHUNK)
        packed = getattr(machine, "unconsumed_tail", b"")
        while not packed and not machine.eof and not getattr(machine, "needs_input", True):
            yield machine.decompress(b"", CHUNK)
        if machine.eof:
            # What is no stream any more is padding to the programs that unpack it.
            packed = machine.unused_data
            if kind is Format.ZLIB or not (packed or window.peek(at, 1)).strip(b"\0"):
                return
            machine = _MACHINES[kind]()
    if not machine.eof:
        raise EOFError("cut short")


Take: TypeAlias = Callable[[int], None]
"""Counts unpacked bytes; raises `UnjudgedError` when there are too many."""


class ArchiveError(Exception):
    """An archive is not what it says."""

    def __init__(self, code: str, what: str) -> None:
        super().__init__(what)
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One member of an archive."""

    name: str
    window: Window | None = None
    is_raw: bool = False
    """Whether loaders take it for plain numbers, and nothing else."""
    is_known: bool = True
    """Whether the maker of the archive writes members of that name."""
    judge: Callable[[Window], Iterator[Remark]] | None = None
    """What judges it, when its place in the archive decides that and not its bytes."""
    scripted: bool = False
    """Whether it is in an archive of TorchScript, whose classes are its own."""
    storages: Mapping[str, int] | None = None
    """The storages of tensors that a pickle of torch's may name, with their bytes, by key."""
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
    if not entries:
        raise UnjudgedError("an archive without members")
    sizes = {entry.orig_filename: entry.file_size for entry in entries}
    if len(entries) > MAX_MEMBERS or len(sizes) != len(entries):
        raise ArchiveError(MALFORMED, "two members of one name, or too many members")
    places = _places(window, entries)
    lower = {name.lower() for name in sizes}
    kinds = _kinds(lower)
    if kinds and len(lower) != len(sizes):
        raise ArchiveError(MALFORMED, "two members of one name to torch, which knows no case")
    folders: dict[str, dict[str, int]] = defaultdict(dict)
    for name, size in sizes.items():
        folder, _, key = name.rpartition("/")
        folders[folder][key] = size
    for entry in entries:
        check_name(entry.orig_filename)
        folder, _, base = entry.orig_filename.rpartition(".")
        is_index = base == "pkl" and folder.endswith(("/data", "/constants")) and kinds & _TORCHES
        for member in _zip_member(entry, places[entry.header_offset], take, kinds):
            yield replace(member, storages=folders[folder] if is_index else None)


def check_name(name: str) -> None:
    """Rule 4.

    Raises:
        ArchiveError: it leads out of a folder.
    """
    path = PureWindowsPath(name)
    if path.anchor or ".." in path.parts or "\0" in name:
        raise ArchiveError(OUTSIDE, f"member {name[:200]!r} leads out of a folder")


def _kinds(names: set[str]) -> frozenset[Archive]:
    """The makers whose marks are among names in lower case: torch's reader knows no case."""
    paths = [PurePosixPath(name).parts for name in names]
    found = set()
    if any(path[1:] in (("archive_format",), ("archive_version",)) or path[-1:] == (_OLD_EXPORT,)
           for path in paths):  # fmt: skip
        found.add(Archive.EXPORT)
    if ("mar-inf", "manifest.json") in paths:
        found.add(Archive.MAR)
    if any(path[1:] == ("data.pkl",) for path in paths):
        code = any(path[1:2] == ("code",) for path in paths)
        found.add(Archive.TORCHSCRIPT if code else Archive.TORCH)
    return frozenset(found)


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
    entry: zipfile.ZipInfo, place: Window, take: Take, kinds: frozenset[Archive]
) -> Iterator[Member]:
    name = entry.orig_filename
    inner = "/".join(PurePosixPath(name).parts[1:])
    scripted = Archive.TORCHSCRIPT in kinds
    judge: Callable[[Window], Iterator[Remark]] | None = None
    if scripted and re.fullmatch(r"code/.+\.py", inner, re.IGNORECASE | re.DOTALL):
        judge = programs.script_remarks
    elif Archive.EXPORT in kinds and _GRAPH.search(name):
        judge = programs.graph_remarks
    known = not kinds or any(_KNOWN[kind].fullmatch(inner) for kind in kinds)
    member = Member(
        name=name, is_known=known or name == _OLD_EXPORT, judge=judge, scripted=scripted
    )
    stored = entry.compress_type == zipfile.ZIP_STORED
    if entry.is_dir() and entry.file_size == 0:
        return
    if stored and entry.file_size != entry.compress_size:
        what = f"member {name!r} of {entry.file_size} bytes in {entry.compress_size}"
        raise ArchiveError(MALFORMED, what)
    if entry.flag_bits & _ENCRYPTED:
        yield replace(member, problem="encrypted")
    elif kinds and all(_RAW[kind].fullmatch(inner) for kind in kinds):
        take(0 if stored else entry.file_size)
        yield replace(member, is_raw=True, window=place if stored else None)
    elif stored:
        yield replace(member, window=place)
    elif entry.compress_type == zipfile.ZIP_DEFLATED:
        with _spool(_inflate(place), take) as unpacked:
            yield replace(member, window=unpacked)
    else:
        yield replace(member, problem=f"packed by method {entry.compress_type}")


def tar_members(window: Window) -> Iterator[Member]:
    """The members of a tar archive; links and devices cannot be judged.

    Raises:
        ArchiveError: it is malformed.
    """
    try:
        with tarfile.open(fileobj=_as_file(window), mode="r:") as archive:
            count, old = 0, set[str]()
            for count, entry in enumerate(archive, 1):
                archive.members.clear()  # type: ignore[attr-defined] # it keeps all, and needs none
                old |= _OLD_TAR & {entry.name}
                check_name(entry.name)
                if count > MAX_MEMBERS:
                    raise ArchiveError(MALFORMED, f"more than {MAX_MEMBERS} members")
                if entry.isreg() and not entry.issparse():
                    yield Member(name=entry.name, window=window.part(entry.offset_data, entry.size))
                elif not entry.isdir():
                    yield Member(name=entry.name, problem="a link, a device or a sparse file")
        if not count:
            raise UnjudgedError("an archive without members")
        if old == _OLD_TAR:
            # Pickles stand between the numbers of its members, and are not all found.
            raise UnjudgedError("an archive of a torch before 0.2")
    except _READ_ERRORS as error:
        raise ArchiveError(MALFORMED, f"not a sound tar archive: {error}") from error


@contextmanager
def unpack(window: Window, kind: Format, take: Take) -> Iterator[Window]:
    """The content of a compressed file.

    Raises:
        ArchiveError: it is malformed.
        UnjudgedError: it is too large.
    """
    with _spool(_unpacked(window, kind), take) as inner:
        yield inner


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
