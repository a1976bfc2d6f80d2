# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Packages of Debian: an installed system, or ``.deb`` files.

Rules:

1. what dpkg has installed is in ``var/lib/dpkg``: ``status`` says which packages, ``info/*.list``
   which files, ``info/*.md5sums`` what they were. MD5 is good enough to see that a file changed,
   and not to vouch for one: the file itself is hashed, with SHA-256;
2. a file that is not what its package brought is left out and named. Configuration has no digest in
   ``md5sums``: it is listed as it is;
3. a file that another package has diverted lies where the diversion says.

Source: deb(5), dpkg-divert(1), dpkg(1).
"""

from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import IO, Final

from securetrain.attest.fleet.packages.listing import (
    FileListing,
    clean,
    digest_of,
    spellings,
    unusable,
)
from securetrain.attest.fleet.packages.roots import Root
from securetrain.attest.fleet.packages.tars import BROKEN, members
from securetrain.core.errors import UsageError
from securetrain.core.files import open_regular, read_file

STATUS: Final = "var/lib/dpkg/status"
_INFO: Final = "var/lib/dpkg/info"
_DIVERSIONS: Final = "var/lib/dpkg/diversions"
_STATUS_LIMIT: Final = 256 << 20
_LIST_LIMIT: Final = 64 << 20
_INSTALLED: Final = "install ok installed"
_MAGIC: Final = b"!<arch>\n"
_AR_HEADER: Final = 60
_MAX_NAME: Final = 200
"""Of a package, which is the beginning of a file's name."""
_CONTROL_LIMIT: Final = 1 << 20
_DATA: Final = {"data.tar": "", "data.tar.gz": "gz", "data.tar.xz": "xz", "data.tar.bz2": "bz2"}
_CONTROL: Final = {"control.tar": "", "control.tar.gz": "gz", "control.tar.xz": "xz"}


def list_installed(folder: Path, listing: FileListing) -> None:
    """List the files of the packages that are installed below a folder.

    Args:
        folder: the root of the system.
        listing: takes them.

    Raises:
        UsageError: ST-USAG-002 or 008.
    """
    root = Root(folder)
    diversions = _diversions(root.folder / _DIVERSIONS)
    installed = list(_installed(root.folder / STATUS))
    if not installed:
        raise unusable("no package is installed", str(folder / STATUS), "name the system's root")
    for name, version, architecture in installed:
        listing.list_package(f"{name} {version} {architecture}")
        _list_package(root, name, architecture, diversions, listing)


def _list_package(
    root: Root,
    name: str,
    architecture: str,
    diversions: dict[str, tuple[str, str]],
    listing: FileListing,
) -> None:
    info = root.folder / _INFO
    base = next(
        (one for one in (f"{name}:{architecture}", name) if (info / f"{one}.list").is_file()), None
    )
    if base is None:
        listing.leave_out(f"{name}: it has no list of files")
        return
    known = _md5sums(info / f"{base}.md5sums")
    text = _read(info / f"{base}.list", _LIST_LIMIT)
    for line in text.split("\n"):
        path = clean(line)
        if path is None:
            continue
        target, by = diversions.get(path, (path, name))
        lies = root.real(target if by != name else path)
        if lies is None or not root.is_file(lies):
            continue
        found = root.digests(lies)
        if found is None:
            listing.leave_out(f"{lies}: it cannot be read")
        elif known.get(path, found[1]) != found[1]:
            listing.leave_out(f"{lies}: it is not what {name} has installed")
        else:
            listing.add(lies, found[0])


def _installed(path: Path) -> Iterator[tuple[str, str, str]]:
    for stanza in _read(path, _STATUS_LIMIT).split("\n\n"):
        fields = dict(
            line.split(": ", 1) for line in stanza.split("\n") if ": " in line and line[0] != " "
        )
        if fields.get("Status") == _INSTALLED:
            name = fields.get("Package", "")
            architecture = fields.get("Architecture", "")
            whole = f"{name}:{architecture}"
            if not name or "/" in whole or len(whole.encode(errors="replace")) > _MAX_NAME:
                raise unusable(f"a package is called {name[:80]!r}", str(path), "repair it")
            yield name, fields.get("Version", ""), architecture


def _diversions(path: Path) -> dict[str, tuple[str, str]]:
    if not path.is_file():
        return {}
    lines = _read(path, _LIST_LIMIT).split("\n")
    threes = zip(lines[::3], lines[1::3], lines[2::3], strict=False)
    found = {}
    for diverted, target, by in threes:
        if (cleaned := clean(target)) is not None:
            found[diverted] = (cleaned, by)
    return found


def _md5sums(path: Path) -> dict[str, str]:
    if not path.is_file():
        return {}
    lines = (line.split("  ", 1) for line in _read(path, _LIST_LIMIT).split("\n") if "  " in line)
    return {f"/{name.removeprefix('./')}": digest for digest, name in lines}


def _read(path: Path, limit: int) -> str:
    return read_file(path, limit).decode("utf-8", "surrogateescape")


# --- .deb files ----------------------------------------------------------------------------------


def list_deb(path: Path, listing: FileListing) -> None:
    """List the files that a package would install.

    Raises:
        UsageError: ST-USAG-002 or 008.
    """
    with open(open_regular(path), "rb") as file:  # noqa: PTH123 - opened without following links
        if file.read(len(_MAGIC)) != _MAGIC:
            raise unusable("not a Debian package", str(path), "name a .deb file")
        seen = False
        for name, size in _parts(file, str(path)):
            start = file.tell()
            if name in _CONTROL and size <= _CONTROL_LIMIT:
                listing.list_package(_control(file.read(size), _CONTROL[name], str(path)))
            elif name.startswith("data.tar"):
                if name not in _DATA:
                    raise unusable(
                        f"its files are in {name}",
                        str(path),
                        "unpack it with dpkg-deb, or list an installed system (--dpkg ROOT)",
                    )
                seen = True
                _list_data(_Part(file, size), _DATA[name], str(path), listing)
            file.seek(start + size + size % 2)
        if not seen:
            raise unusable("it has no files", str(path), "name a .deb file")


def _parts(file: IO[bytes], where: str) -> Iterator[tuple[str, int]]:
    while header := file.read(_AR_HEADER):
        size = header[48:58].strip()
        if len(header) != _AR_HEADER or header[58:] != b"`\n" or not size.isdigit():
            raise unusable("a part of it has no header", where, "get the package again")
        yield header[:16].decode("ascii", "replace").strip().rstrip("/"), int(size)


class _Part:
    """A stretch of a file."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file, self._left = file, size

    def read(self, size: int = -1) -> bytes:
        """Read at most that many bytes."""
        wanted = self._left if size < 0 else min(size, self._left)
        data = self._file.read(wanted)
        self._left -= len(data)
        return data


def _list_data(file: "_Part", compression: str, where: str, listing: FileListing) -> None:
    digests: dict[str, str] = {}
    for member, content in members(file, where, compression):  # type: ignore[arg-type]
        path = clean(member.name)
        if path is None:
            if member.isreg() or member.islnk():
                raise unusable(f"a file is called {member.name[:80]!r}", where, "get it again")
            continue
        if member.islnk():
            target = clean(member.linkname)
            digest = digests.get(target or "")
        elif content is not None:
            digest = digest_of(content, member.size)[0]
        else:
            continue
        if digest is None:
            raise unusable(f"{path} is a link to a file that is not there", where, "get it again")
        digests[path] = digest
        for one in spellings(path):
            listing.add(one, digest)


def _control(data: bytes, compression: str, where: str) -> str:
    for member, content in members(BytesIO(data), where, compression):
        if content is None or clean(member.name) != "/control":
            continue
        if member.size > _CONTROL_LIMIT:
            break
        try:
            text = content.read(_CONTROL_LIMIT).decode("utf-8", "replace")
        except BROKEN as error:
            raise unusable(f"its control file: {error}", where, "get the package again") from error
        fields = dict(line.split(": ", 1) for line in text.split("\n") if ": " in line)
        return " ".join(fields.get(key, "?") for key in ("Package", "Version", "Architecture"))
    raise UsageError("ST-USAG-008", "it has no control file", where, "get the package again")
