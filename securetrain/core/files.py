# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Safe files: bounded reads that follow no links, writes that are whole or absent.

Rules: what lies below a directory that is held is opened by its handle (`held`); sizes are checked
before memory is taken; reads open with O_NOFOLLOW and refuse anything but
a regular file; writes go to a temporary in the same directory, are fsynced and renamed; a directory
that must appear at once is built under a temporary name and renamed; nothing is overwritten unless
the caller says so.
"""

import fcntl
import grp
import json
import os
import pwd
import re
import stat
import unicodedata
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from io import BufferedWriter
from pathlib import Path
from typing import BinaryIO, Final

from securetrain.core.errors import UsageError, os_error
from securetrain.core.held import Folder, open_held

PRIVATE_DIR = 0o700
PRIVATE_FILE = 0o600
PUBLIC_FILE = 0o644
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_LINE_LIMIT: Final = 1 << 20
"""Of a diary's line."""
_LEAST_READ: Final = 1 << 16


def open_regular(path: Path, flags: int = os.O_RDONLY, mode: int = PRIVATE_FILE) -> int:
    """Open a regular file without following a link at its last component; returns a descriptor.

    Below a directory that is held, no link is followed at all.

    Raises:
        OSError: as `os.open`; ELOOP for a link.
        UsageError: ST-USAG-002 when it is not a regular file.
    """
    fd = open_held(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, mode)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise UsageError("ST-USAG-002", "not a regular file", str(path), "remove it")
    return fd


def open_own(path: Path, flags: int, mode: int = PRIVATE_FILE) -> int:
    """As `open_regular`, for a file that only this user writes, under the one name that it has.

    Raises:
        OSError: as `os.open`.
        UsageError: ST-USAG-002 when it is not a regular file, ST-USAG-018 when it is another
            user's, has a second name, or others may write to it.
    """
    fd = open_regular(path, flags, mode)
    info, what = os.fstat(fd), ""
    if info.st_uid != os.geteuid():
        what = f"it belongs to user {info.st_uid}"
    elif info.st_nlink != 1:
        what = f"it has {info.st_nlink} names, and one of them may be another's"
    elif who := writers(info):
        what = f"{who} may write to it"
    if what:
        os.close(fd)
        raise UsageError("ST-USAG-018", what, str(path), "put a file of your own in its place")
    return fd


def local_file(name: str) -> Path:
    """Return the path of this machine that somebody has named.

    Raises:
        UsageError: ST-USAG-001 for a URL, of which a path would make a folder ``s3:``.
    """
    if _URL.match(name):
        raise UsageError(
            "ST-USAG-001",
            "only files and directories of this machine can be named here",
            name,
            "name a path, and copy from or to the store; 'securetrain verify' reads stores itself",
        )
    return Path(name)


def read_file(path: Path, limit: int) -> bytes:
    """Read a whole regular file of at most `limit` bytes.

    Raises:
        UsageError: ST-USAG-002 when it cannot be read or is larger.
    """
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            data = read_at_most(file, limit + 1)
    except OSError as error:
        raise os_error(error, str(path)) from error
    if len(data) > limit:
        raise UsageError(
            "ST-USAG-002",
            f"larger than the limit of {limit} bytes",
            str(path),
            "check that it is the right file",
        )
    return data


def read_at_most(file: BinaryIO, limit: int) -> bytes:
    """Read at most so many bytes, and take no more memory than there are.

    A read takes the memory for all that it is asked for; a file of the kernel's says that it is
    empty, so that what is beyond the size is asked for too.
    """
    wanted = min(limit, max(os.fstat(file.fileno()).st_size, _LEAST_READ) + 1)
    data = file.read(wanted)
    while len(data) == wanted < limit:
        more = min(limit - wanted, wanted)
        data, wanted = data + file.read(more), wanted + more
    return data


def write_atomic(path: Path, data: bytes, *, mode: int = PUBLIC_FILE, replace: bool = True) -> None:
    """Write a file whole or not at all, replacing an older one unless told otherwise.

    Raises:
        UsageError: See `whole_file`.
    """
    with whole_file(path, mode=mode, replace=replace) as file:
        file.write(data)


@contextmanager
def whole_file(
    path: Path, *, mode: int = PUBLIC_FILE, replace: bool = True
) -> Iterator[BufferedWriter]:
    """A file to write, which appears under its name, fsynced, when the block has ended well.

    Raises:
        UsageError: ST-USAG-002 or ST-USAG-006 (disk full), ST-USAG-005 when it is there and is not
            to be replaced; nothing is left behind.
    """
    temporary = f".{path.name}.tmp-{os.urandom(6).hex()}"
    try:
        with Folder.opened(path.parent) as folder:
            fd = folder.create(temporary, mode)
            try:
                with os.fdopen(fd, "wb") as file:
                    yield file
                    file.flush()
                    os.fsync(file.fileno())
                folder.rename(temporary, path.name, replace=replace)
            except BaseException:
                with suppress(OSError):
                    folder.remove(temporary)
                raise
            folder.sync()
    except FileExistsError as error:
        raise UsageError(
            "ST-USAG-005",
            "already exists and is never overwritten",
            str(path),
            "choose another name",
        ) from error
    except OSError as error:
        raise os_error(error, str(path)) from error


def remove_temporaries(path: Path) -> None:
    """Remove what deaths in `write_atomic` have left beside a file that nobody is writing.

    Raises:
        OSError: One cannot be removed.
    """
    ours = re.compile(re.escape(f".{path.name}.tmp-") + "[0-9a-f]{12}")
    for found in path.parent.iterdir() if path.parent.is_dir() else ():
        if ours.fullmatch(found.name):
            found.unlink()


def write_whole(path: Path, data: bytes, *, mode: int = PUBLIC_FILE) -> None:
    """`write_atomic`, or in place where only the file may be changed and not its folder.

    A sandbox shows some files alone: a reader of one may find it half-written.

    Raises:
        UsageError: ST-USAG-002 or ST-USAG-006.
    """
    if not os.access(path.parent, os.W_OK) and path.exists():
        write_in_place(path, data)
        return
    try:
        write_atomic(path, data, mode=mode)
    except UsageError as error:
        # access(2) does not know of Landlock, whose rules may be for the file alone.
        if not isinstance(error.__cause__, PermissionError) or not path.exists():
            raise
        write_in_place(path, data)


def write_in_place(path: Path, data: bytes) -> None:
    """Write into the file that is there, for who is shown that one; a reader may see a part.

    Raises:
        UsageError: ST-USAG-002 or ST-USAG-006.
    """
    try:
        with os.fdopen(open_regular(path, os.O_WRONLY), "wb") as file:
            file.write(data)
            file.truncate(len(data))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise os_error(error, str(path)) from error


def sync_dir(path: Path) -> None:
    """Make the names in a directory durable."""
    with Folder.opened(path) as folder:
        folder.sync()


def make_private_dir(path: Path) -> Path:
    """Create a directory that only this user can enter, or accept one that only it can change.

    Nothing that exists is changed, neither its mode nor its owner.

    Raises:
        UsageError: ST-USAG-018 when the one that exists is another user's, or others may write to
            it; ST-USAG-002 when it cannot be made.
    """
    make_missing_dir(path)
    try:
        info = path.stat()
    except OSError as error:
        raise os_error(error, str(path)) from error
    if info.st_uid != os.geteuid():
        raise UsageError("ST-USAG-018", f"it belongs to user {info.st_uid}", str(path))
    if who := writers(info):
        raise UsageError(
            "ST-USAG-018", f"{who} may write to it", str(path), f"type: chmod go-w {path}"
        )
    return path


def make_missing_dir(path: Path) -> Path:
    """Create a directory for this user alone, with its parents; one that exists stays as it is.

    For the folder above a file that a person named.

    Raises:
        UsageError: ST-USAG-002 when it cannot be made.
    """
    try:
        path.mkdir(mode=PRIVATE_DIR, parents=True, exist_ok=True)
    except OSError as error:
        raise os_error(error, str(path)) from error
    return path


def writers(info: os.stat_result) -> str:
    """Name who besides its owner may write to a file or directory; empty for nobody.

    A group that has the owner alone, as many systems make one for each user, is the owner.
    """
    if info.st_mode & stat.S_IWOTH:
        return "everybody"
    if info.st_mode & stat.S_IWGRP and not _is_group_of_one(info):
        return f"group {info.st_gid}"
    return ""


def _is_group_of_one(info: os.stat_result) -> bool:
    try:
        owner, group = pwd.getpwuid(info.st_uid), grp.getgrgid(info.st_gid)
    except KeyError:
        return False
    is_own = owner.pw_gid == group.gr_gid and owner.pw_name == group.gr_name
    return is_own and set(group.gr_mem) <= {owner.pw_name}


@contextmanager
def locked(path: Path, *, mode: int = PRIVATE_FILE) -> Iterator[None]:
    """Hold the one lock of a file, which is made and stays; others wait for it.

    Raises:
        UsageError: ST-USAG-002 when the file cannot be made or opened.
    """
    try:
        fd = open_held(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    except OSError as error:
        raise os_error(error, str(path)) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


@contextmanager
def staged_dir(final: Path, *, mode: int = 0o755) -> Iterator[Path]:
    """Build a directory under a temporary name; it appears at `final` when the block ends well.

    Raises:
        UsageError: ST-USAG-005 when `final` exists, ST-USAG-002/006 on I/O errors.
    """
    if final.exists() or final.is_symlink():
        what = "already exists and is never overwritten"
        raise UsageError("ST-USAG-005", what, str(final), "choose another name")
    staging = final.with_name(f"{final.name}.tmp-{os.urandom(6).hex()}")
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        staging.mkdir(mode=mode)
        try:
            yield staging
            commit_dir(staging, final)
        except BaseException:
            import shutil  # noqa: PLC0415 - it brings three ways to compress

            shutil.rmtree(staging, ignore_errors=True)
            raise
    except OSError as error:
        raise os_error(error, str(final)) from error


def commit_dir(staging: Path, final: Path) -> None:
    """Make a finished directory durable and rename it to its final name, which must be free."""
    for entry in walk(staging):
        fd = os.open(staging / entry.name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    for folder in (staging, *(p for p in staging.rglob("*") if p.is_dir())):
        sync_dir(folder)
    if final.exists() or final.is_symlink():
        raise UsageError("ST-USAG-005", "already exists", str(final), "choose another name")
    staging.rename(final)
    sync_dir(final.parent)


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A regular file below a root: its name with forward slashes, and its size in bytes."""

    name: str
    size: int
    changed: int = field(default=0, compare=False)
    """The time of its last change, in nanoseconds, as the kernel keeps it; 0 where nobody knows."""


@dataclass(frozen=True, slots=True)
class UnsafeEntry:
    """Something below a root that no signed directory may hold."""

    name: str
    reason: str


def walk(root: Path) -> list[FileEntry]:
    """Every regular file below `root`, sorted by name.

    Raises:
        UsageError: ST-USAG-002 naming the first link, special file or unsafe name.
    """
    files, unsafe = survey(root)
    for entry in unsafe:
        raise UsageError("ST-USAG-002", entry.reason, str(root / entry.name), "remove or rename it")
    return files


def survey(root: Path, but: Collection[str] = ()) -> tuple[list[FileEntry], list[UnsafeEntry]]:
    """Sort everything below `root`, but some names, into regular files and what is refused.

    Refused are links (hard links too), special files, empty directories, names that are not NFC or
    hold a backslash, colon, control character or surrogate, and names that differ in case only.
    """
    files: list[FileEntry] = []
    unsafe: list[UnsafeEntry] = []
    folded: set[str] = set()
    folders = [""]
    for above in folders:
        with Folder.opened(root / above) as folder, os.scandir(folder.handle) as entries:
            found = sorted((one.name, one.stat(follow_symlinks=False)) for one in entries)
        if not found and above:
            unsafe.append(UnsafeEntry(above, "an empty directory"))
        for own, info in found:
            name = f"{above}/{own}" if above else own
            if name in but:
                continue
            reason = unsafe_name(own) or _unsafe_kind(info)
            if name.casefold() in folded:
                reason = "two names that differ in case only"
            folded.add(name.casefold())
            if stat.S_ISDIR(info.st_mode):
                folders.append(name)
            elif not reason:
                files.append(FileEntry(name, info.st_size, info.st_ctime_ns))
            if reason:
                unsafe.append(UnsafeEntry(name, reason))
    files.sort(key=lambda entry: entry.name)
    unsafe.sort(key=lambda entry: entry.name)
    return files, unsafe


def unsafe_name(name: str) -> str:
    """Explain why one path component is not allowed in a signed directory; empty when it is."""
    if name in {"", ".", ".."} or "/" in name:
        return "not a plain file name"
    if "\\" in name or ":" in name or not name.isprintable():
        return "a name with a backslash, colon or unprintable character"
    if not name.isascii() and unicodedata.normalize("NFC", name) != name:
        return "a name that is not in Unicode NFC form"
    if len(name.encode("utf-8", "surrogatepass")) > 255:
        return "a name longer than 255 bytes"
    return ""


def _unsafe_kind(info: os.stat_result) -> str:
    if stat.S_ISDIR(info.st_mode):
        return ""
    if stat.S_ISLNK(info.st_mode):
        return "a symbolic link"
    if not stat.S_ISREG(info.st_mode):
        return "a special file"
    if info.st_nlink > 1:
        return "a hard link"
    return ""


def drop_lines_after(path: Path, step: int, field: tuple[str, ...] = ("step",)) -> None:
    """Keep the whole lines of a JSONL file whose `field` is at most `step`.

    The file is the run's own diary and proves nothing, so lines that cannot be read are dropped.
    """
    try:
        with os.fdopen(open_regular(path), encoding="utf-8", errors="replace") as file:
            lines = iter(lambda: file.readline(_LINE_LIMIT), "")
            kept = [line for line in lines if _is_kept(line, step, field)]
    except FileNotFoundError:
        return
    except OSError as error:
        raise os_error(error, str(path)) from error
    write_whole(path, "".join(kept).encode())


def _is_kept(line: str, step: int, field: tuple[str, ...]) -> bool:
    try:
        number = json.loads(line)
        for name in field:
            number = number[name]
    except (ValueError, KeyError, TypeError, RecursionError):
        return False
    return line.endswith("\n") and isinstance(number, int) and number <= step
