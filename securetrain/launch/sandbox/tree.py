# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The mounts of a sandbox, for `holder`. The standard library only."""

import os
import signal
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from securetrain.launch.sandbox.kernel import (
    CLONE_NEWPID,
    CLONE_NEWUSER,
    SetupError,
    call,
    syscall,
    write,
)

_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
"""The same numbers on x86-64 and aarch64."""
_AT_FDCWD, _AT_EMPTY_PATH, _AT_RECURSIVE = -100, 0x1000, 0x8000
_OPEN_TREE_FLAGS: Final = 1 | os.O_CLOEXEC
_MOVE_FROM_EMPTY: Final = 4
_RDONLY, _NOSUID, _NODEV, _IDMAP = 1, 2, 4, 0x100000
"""MOUNT_ATTR_*; the first three are those of mount(2) as well."""
_NOEXEC, _BIND, _BIND_REMOUNT = 8, 4096, 32 | 4096
_REC, _PRIVATE = 1 << 14, 1 << 18


def make_tree(orders: Mapping[str, Any], maps: Mapping[Any, int], missing: list[str]) -> None:
    """Step 2 and 4.

    Raises:
        SetupError: At the stage ``mounts``, or ``idmap`` when owners cannot be mapped.
    """
    try:
        call("mount", b"none", b"/", None, _REC | _PRIVATE, None)
        copies = [_copy(one, maps, missing) for one in orders["binds"]]
        _set_attributes(_AT_FDCWD, b"/", _AT_RECURSIVE, _RDONLY | _NOSUID)
        steps: list[tuple[int, int, str, Any]] = [
            (one["place"].rstrip("/").count("/"), 0, one["place"], one) for one in orders["empty"]
        ]
        steps += [
            (one["place"].rstrip("/").count("/"), 1, one["place"], (one, copy))
            for one, copy in zip(orders["binds"], copies, strict=True)
            if copy is not None
        ]
        for _, kind, place, what in sorted(steps, key=lambda step: step[:3]):
            if kind == 0:
                _make_empty(what)
            else:
                _put(place, *what)
        for place, target in orders["links"]:
            with suppress(FileExistsError, OSError):
                os.makedirs(os.path.dirname(place), exist_ok=True)
                os.symlink(target, place)
        for place, text in orders["files"]:
            _show_text(place, text)
        for place in orders["blank"]:
            _show_text(place, "")
        for place, mode, mine in orders["folders"]:
            os.makedirs(place, mode, exist_ok=True)
            if mine and orders["user"]:
                os.chown(place, orders["user"]["uid"], orders["user"]["gid"])
        for place in orders["sealed"]:
            call("mount", None, place.encode(), None, _BIND_REMOUNT | _RDONLY | _NOSUID, None)
        _make_proc(orders, missing)
        os.chdir("/")
    except OSError as error:
        raise SetupError("mounts", str(error)) from error


def id_map(one: Sequence[int], user: Mapping[str, Any]) -> int:
    """A user namespace in which an owner of the disk stands for the job's user; its descriptor."""
    pid = os.fork()
    if pid == 0:
        with suppress(OSError):
            call("unshare", CLONE_NEWUSER)
            os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(1)
    try:
        _, state = os.waitpid(pid, os.WUNTRACED)
        if not os.WIFSTOPPED(state):
            raise SetupError("idmap", "no user namespace can be made")
        write(f"/proc/{pid}/uid_map", id_lines(one[0], user["uid"]))
        write(f"/proc/{pid}/gid_map", id_lines(one[1], user["gid"]))
        return os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise SetupError("idmap", str(error)) from error
    finally:
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def id_lines(owner: int, user: int) -> str:
    """The map in which an owner's files are the user's, and everybody else's stay theirs.

    Ids of the disk come first. The user's own on the disk are nobody's: two owners of one id would
    be one too many.
    """
    if owner == user:
        return "0 0 4294967295\n"
    low, high = sorted((owner, user))
    pieces = [(0, 0, low), (owner, user, 1)]
    pieces += [(low + 1, low + 1, high - low - 1), (high + 1, high + 1, 4294967294 - high)]
    return "".join(f"{a} {b} {count}\n" for a, b, count in pieces if count > 0)


def _copy(one: Mapping[str, Any], maps: Mapping[Any, int], missing: list[str]) -> int | None:
    """A detached copy of what is at a path, with its rights; None when it is gone."""
    source = one["source"].encode("utf-8", "surrogateescape")
    attributes = _NOSUID | (0 if one["write"] else _RDONLY) | (0 if one["device"] else _NODEV)
    try:
        tree = syscall(_OPEN_TREE, _AT_FDCWD, source, _OPEN_TREE_FLAGS | _AT_RECURSIVE)
    except FileNotFoundError:
        return None
    _set_attributes(tree, b"", _AT_EMPTY_PATH | _AT_RECURSIVE, attributes)
    if not one["map"]:
        return tree
    space = maps[tuple(one["map"])]
    try:
        try:
            _set_attributes(tree, b"", _AT_EMPTY_PATH | _AT_RECURSIVE, _IDMAP, space)
        except OSError:  # another file system lies in it, which cannot
            _set_attributes(tree, b"", _AT_EMPTY_PATH, _IDMAP, space)
    except OSError as error:
        if one["write"]:
            why = f"{one['source']}: its owner cannot be mapped ({error.strerror})"
            raise SetupError("idmap", why) from error
        missing.append(f"{one['source']} is shown with its own owners ({error.strerror})")
    return tree


def _set_attributes(
    where: int, path: bytes, flags: int, attributes: int, user_namespace: int = 0
) -> None:
    given = struct.pack("QQQQ", attributes, 0, 0, user_namespace)
    syscall(_MOUNT_SETATTR, where, path, flags, given, len(given))


def _make_empty(one: Mapping[str, Any]) -> None:
    place = one["place"]
    os.makedirs(place, exist_ok=True)
    flags = _NOSUID | (0 if one["device"] else _NODEV) | (0 if one["write"] else _NOEXEC)
    data = f"mode={one['mode']}" + (f",size={one['size']}" if one["size"] else "")
    if one["owner"]:
        data += f",uid={one['owner'][0]},gid={one['owner'][1]}"
    kind = one["type"].encode()
    call("mount", kind, place.encode(), kind, flags, (one["data"] or data).encode())


def _put(place: str, one: Mapping[str, Any], tree: int) -> None:
    """Attach a copy; what it lies on is made when the folder above is one of ours."""
    if not os.path.lexists(place):
        os.makedirs(os.path.dirname(place), exist_ok=True)
        if one["folder"]:
            os.mkdir(place, 0o755)
        else:
            os.close(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))
    where = place.encode("utf-8", "surrogateescape")
    syscall(_MOVE_MOUNT, tree, b"", _AT_FDCWD, where, _MOVE_FROM_EMPTY)
    os.close(tree)


def _show_text(place: str, text: str) -> None:
    """A small file of our own in the place of one of the machine's."""
    if not os.path.exists(place):
        return
    ours = f"/run/.{os.path.basename(place)}"
    write(ours, text)
    os.chmod(ours, 0o644)
    call("mount", ours.encode(), place.encode(), None, _BIND, None)
    call("mount", None, place.encode(), None, _BIND_REMOUNT | _RDONLY | _NOSUID, None)
    os.unlink(ours)


def _make_proc(orders: Mapping[str, Any], missing: list[str]) -> None:
    if not orders["namespaces"] & CLONE_NEWPID:
        return
    flags = _NOSUID | _NODEV | _NOEXEC
    call("mount", b"proc", b"/proc", b"proc", flags, None)
    for name in ("sys", "sysrq-trigger", "irq", "bus", "fs", "acpi", "scsi"):
        place = f"/proc/{name}"
        if not os.path.exists(place):
            continue
        try:
            call("mount", place.encode(), place.encode(), None, _BIND | _REC, None)
            call("mount", None, place.encode(), None, _BIND_REMOUNT | _RDONLY | flags, None)
        except OSError as error:
            missing.append(f"{place} is as the kernel shows it ({error.strerror})")
