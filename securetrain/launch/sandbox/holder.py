# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Holds the sandbox of one job on one node, and starts its workers. A program, run by path.

``python -I -S holder.py < orders.json``

The launcher sends orders (`sandbox.orders`), this program carries them out, in this order:

1. it dies with the launcher;
2. what will be shown is copied as detached mounts (open_tree(2)), read-only or writable, with the
   owner's id mapped to the job's user (mount_setattr(2)); nothing of the disk changes by that;
3. it enters the job's network namespace and makes mount, pid, ipc and uts namespaces (in a user
   namespace of its own when it is told to);
4. the whole tree becomes read-only, hidden folders become empty, what was copied gets its place;
5. it becomes the job's user, without capabilities and with no way to get any, puts itself under
   Landlock and seccomp, and only then accepts work: each request is a program with its arguments,
   environment and standard files (`enter`), and gets one process;
6. it is the first process of its pid namespace: however it ends, everything in it ends.

What could not be done is reported and never passed over: ``error`` when nothing was started,
``missing`` for a part that the launcher may do without. The standard library only: it starts in
milliseconds, and code that a worker could touch is not in it.
"""

import array
import ctypes
import errno
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NoReturn

CLONE_NEWNS: Final = 0x20000
CLONE_NEWUSER: Final = 0x10000000
CLONE_NEWPID: Final = 0x20000000
CLONE_NEWNET: Final = 0x40000000
"""linux/sched.h"""

_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
"""The same numbers on x86-64 and aarch64, as those of Landlock."""
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_AT_FDCWD, _AT_EMPTY_PATH, _AT_RECURSIVE = -100, 0x1000, 0x8000
_OPEN_TREE_FLAGS: Final = 1 | os.O_CLOEXEC
_MOVE_FROM_EMPTY: Final = 4
_RDONLY, _NOSUID, _NODEV, _IDMAP = 1, 2, 4, 0x100000
"""MOUNT_ATTR_*; the first three are those of mount(2) as well."""
_NOEXEC, _BIND_REMOUNT = 8, 32 | 4096
_REC, _PRIVATE = 1 << 14, 1 << 18
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP = 1, 4, 22
_PR_CAPBSET_DROP, _PR_SET_SUBREAPER, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT = 24, 36, 38, 47
_HEADER: Final = struct.Struct("!I")
_ENDED: Final = struct.Struct("!II")
"""How a worker ended, and how long its error file is, which follows."""
_REQUEST_LIMIT: Final = 32 << 20
_LAST_CAPABILITY: Final = 63
_ERROR_FILE: Final = "TORCHELASTIC_ERROR_FILE"
_ERROR_LIMIT: Final = 1 << 20

_libc: Final = ctypes.CDLL(None, use_errno=True)


class SetupError(Exception):
    """A step failed; the launcher decides what follows."""

    def __init__(self, stage: str, why: str) -> None:
        super().__init__(f"{stage}: {why}")
        self.stage = stage
        self.why = why


def main() -> int:
    """Set up, serve, end with the launcher."""
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    with os.fdopen(os.dup(0), "rb") as source:
        orders = json.load(source)
    nothing = os.open("/dev/null", os.O_RDWR)  # so that a worker's files get other numbers
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    status = int(orders["status"])
    try:
        return _isolated(orders, status)
    except SetupError as error:
        _say(status, {"error": error.why, "stage": error.stage})
    except (OSError, ValueError, KeyError) as error:
        _say(status, {"error": str(error), "stage": "orders"})
    return 1


def _isolated(orders: Mapping[str, Any], status: int) -> int:
    """Steps 2 and 3; the rest is done by the first process of the new pid namespace."""
    missing: list[str] = []
    for name, soft, hard in orders["limits"]:
        _, most = resource.getrlimit(name)
        high = hard if most == resource.RLIM_INFINITY else min(hard, most)
        resource.setrlimit(name, (min(soft, high), high))
    if orders["cgroup"]:
        with open(orders["cgroup"], "w") as file:  # noqa: PTH123
            file.write(str(os.getpid()))
    maps = {tuple(one): _id_map(one, orders["user"]) for one in orders["maps"]}
    _enter_namespaces(orders)
    if not orders["namespaces"]:
        prctl(_PR_SET_SUBREAPER, 1)
        return _inside(orders, status, maps, missing)
    first = os.fork()
    if first == 0:
        code = 1
        try:
            prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            code = _inside(orders, status, maps, missing)
        except SetupError as error:
            _say(status, {"error": error.why, "stage": error.stage})
        except (OSError, ValueError, KeyError) as error:
            _say(status, {"error": str(error), "stage": "mounts"})
        finally:
            os._exit(code)
    os.close(status)
    os.close(int(orders["socket"]))
    _, ended = os.waitpid(first, 0)
    return os.waitstatus_to_exitcode(ended) & 0xFF


def _inside(
    orders: Mapping[str, Any], status: int, maps: Mapping[Any, int], missing: list[str]
) -> int:
    if orders["namespaces"]:
        make_tree(orders, maps, missing)
    become(orders)
    restrict(orders, missing)
    _say(status, {"missing": missing})
    os.close(status)
    listener = socket.socket(fileno=int(orders["socket"]))
    return Server(listener, int(orders["lifeline"]), orders).serve()


# Namespaces and mounts.


def _enter_namespaces(orders: Mapping[str, Any]) -> None:
    try:
        if orders["netns"]:
            inside = os.open(orders["netns"], os.O_RDONLY | os.O_CLOEXEC)
            _call("setns", inside, CLONE_NEWNET)
            os.close(inside)
        if orders["namespaces"]:
            uid, gid = os.getuid(), os.getgid()
            _call("unshare", int(orders["namespaces"]))
            if orders["namespaces"] & CLONE_NEWUSER:
                _write("/proc/self/setgroups", "deny")
                _write("/proc/self/uid_map", f"{uid} {uid} 1")
                _write("/proc/self/gid_map", f"{gid} {gid} 1")
    except OSError as error:
        raise SetupError("namespaces", str(error)) from error


def make_tree(orders: Mapping[str, Any], maps: Mapping[Any, int], missing: list[str]) -> None:
    """Step 2 and 4.

    Raises:
        SetupError: At the stage ``mounts``, or ``idmap`` when owners cannot be mapped.
    """
    try:
        _call("mount", b"none", b"/", None, _REC | _PRIVATE, None)
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
                os.makedirs(os.path.dirname(place), exist_ok=True)  # noqa: PTH103, PTH120
                os.symlink(target, place)  # noqa: PTH211
        for place, text in orders["files"]:
            _show_text(place, text)
        for place in orders["blank"]:
            _show_text(place, "")
        for place, mode, mine in orders["folders"]:
            os.makedirs(place, mode, exist_ok=True)  # noqa: PTH103
            if mine and orders["user"]:
                os.chown(place, orders["user"]["uid"], orders["user"]["gid"])
        for place in orders["sealed"]:
            _call("mount", None, place.encode(), None, _BIND_REMOUNT | _RDONLY | _NOSUID, None)
        _make_proc(orders, missing)
        with suppress(OSError):
            os.chdir(orders["cwd"])
    except OSError as error:
        raise SetupError("mounts", str(error)) from error


def _id_map(one: Sequence[int], user: Mapping[str, Any]) -> int:
    """A user namespace in which an owner of the disk stands for the job's user; its descriptor."""
    pid = os.fork()
    if pid == 0:
        with suppress(OSError):
            _call("unshare", CLONE_NEWUSER)
            os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(1)
    try:
        _, state = os.waitpid(pid, os.WUNTRACED)
        if not os.WIFSTOPPED(state):
            raise SetupError("idmap", "no user namespace can be made")
        _write(f"/proc/{pid}/uid_map", id_lines(one[0], user["uid"]))
        _write(f"/proc/{pid}/gid_map", id_lines(one[1], user["gid"]))
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
        tree = _syscall(_OPEN_TREE, _AT_FDCWD, source, _OPEN_TREE_FLAGS | _AT_RECURSIVE)
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
    _syscall(_MOUNT_SETATTR, where, path, flags, given, len(given))


def _make_empty(one: Mapping[str, Any]) -> None:
    place = one["place"]
    os.makedirs(place, exist_ok=True)  # noqa: PTH103
    flags = _NOSUID | (0 if one["device"] else _NODEV) | (0 if one["write"] else _NOEXEC)
    data = f"mode={one['mode']}" + (f",size={one['size']}" if one["size"] else "")
    if one["owner"]:
        data += f",uid={one['owner'][0]},gid={one['owner'][1]}"
    kind = one["type"].encode()
    _call("mount", kind, place.encode(), kind, flags, (one["data"] or data).encode())


def _put(place: str, one: Mapping[str, Any], tree: int) -> None:
    """Attach a copy; what it lies on is made when the folder above is one of ours."""
    if not os.path.lexists(place):
        os.makedirs(os.path.dirname(place), exist_ok=True)  # noqa: PTH103, PTH120
        if one["folder"]:
            os.mkdir(place, 0o755)  # noqa: PTH102
        else:
            os.close(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))
    where = place.encode("utf-8", "surrogateescape")
    _syscall(_MOVE_MOUNT, tree, b"", _AT_FDCWD, where, _MOVE_FROM_EMPTY)
    os.close(tree)


def _show_text(place: str, text: str) -> None:
    """A small file of our own in the place of one of the machine's."""
    if not os.path.exists(place):  # noqa: PTH110
        return
    ours = f"/run/.{os.path.basename(place)}"  # noqa: PTH119
    _write(ours, text)
    os.chmod(ours, 0o644)  # noqa: PTH101
    _call("mount", ours.encode(), place.encode(), None, 4096, None)
    _call("mount", None, place.encode(), None, _BIND_REMOUNT | _RDONLY | _NOSUID, None)
    os.unlink(ours)  # noqa: PTH108


def _make_proc(orders: Mapping[str, Any], missing: list[str]) -> None:
    if not orders["namespaces"] & CLONE_NEWPID:
        return
    flags = _NOSUID | _NODEV | _NOEXEC
    _call("mount", b"proc", b"/proc", b"proc", flags, None)
    for name in ("sys", "sysrq-trigger", "irq", "bus", "fs", "acpi", "scsi"):
        place = f"/proc/{name}"
        if not os.path.exists(place):  # noqa: PTH110
            continue
        try:
            _call("mount", place.encode(), place.encode(), None, 4096 | _REC, None)
            _call("mount", None, place.encode(), None, _BIND_REMOUNT | _RDONLY | flags, None)
        except OSError as error:
            missing.append(f"{place} is as the kernel shows it ({error.strerror})")


# The user, Landlock, seccomp.


def become(orders: Mapping[str, Any]) -> None:
    """Become the job's user, for ever and without capabilities.

    Raises:
        SetupError: At the stage ``user``.
    """
    try:
        for capability in range(_LAST_CAPABILITY + 1):
            if _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
                if ctypes.get_errno() == errno.EINVAL:
                    break  # past the last one that this kernel knows
                if os.geteuid() == 0:
                    raise _last_error("prctl")
        _libc.prctl(_PR_CAP_AMBIENT, 4, 0, 0, 0)
        if user := orders["user"]:
            os.setgroups(user["groups"])
            os.setresgid(user["gid"], user["gid"], user["gid"])
            os.setresuid(user["uid"], user["uid"], user["uid"])
        header = struct.pack("Ii", 0x20080522, 0)
        _call("capset", header, struct.pack("IIIIII", 0, 0, 0, 0, 0, 0))
        prctl(_PR_SET_NO_NEW_PRIVS, 1)
        prctl(_PR_SET_DUMPABLE, 0)
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # a change of user has cleared it
    except OSError as error:
        raise SetupError("user", str(error)) from error


def restrict(orders: Mapping[str, Any], missing: list[str]) -> None:
    """Put this process, and so every worker, under Landlock and seccomp.

    Raises:
        SetupError: At the stage ``landlock`` or ``seccomp``.
    """
    if rules := orders["landlock"]:
        try:
            _landlock(rules, missing)
        except OSError as error:
            raise SetupError("landlock", str(error)) from error
    if code := bytes.fromhex(orders["seccomp"]):
        buffer = ctypes.create_string_buffer(code)
        program = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(buffer))
        try:
            prctl(_PR_SET_SECCOMP, 2, program)
        except OSError as error:
            raise SetupError("seccomp", str(error)) from error


def _landlock(rules: Mapping[str, Any], missing: list[str]) -> None:
    handled = struct.pack("QQQ", rules["handled"], 0, rules["scoped"])[: rules["size"]]
    ruleset = _syscall(_LANDLOCK_CREATE, handled, len(handled), 0)
    for path, folder_rights, file_rights in rules["rules"]:
        try:
            where = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError as error:
            if error.errno not in {errno.ENOENT, errno.EACCES}:
                missing.append(f"Landlock: {path}: {error.strerror}")
            continue
        is_folder = os.path.isdir(path)  # noqa: PTH112
        rights = folder_rights if is_folder else file_rights
        if rights:
            _syscall(_LANDLOCK_ADD, ruleset, 1, struct.pack("=Qi", rights, where), 0)
        os.close(where)
    _syscall(_LANDLOCK_RESTRICT, ruleset, 0)
    os.close(ruleset)


# Work.


class Worker:
    """A process that was started for a connection."""

    def __init__(self, pid: int, connection: socket.socket, error_file: str) -> None:
        self.pid = pid
        self.connection = connection
        self.error_file = error_file


class Server:
    """Starts workers for `enter`, hands signals on to them, and tells how they ended."""

    def __init__(self, listener: socket.socket, lifeline: int, orders: Mapping[str, Any]) -> None:
        self.listener = listener
        self.lifeline = lifeline
        self.allowed = int(orders["launcher"])
        self.variables: dict[str, str] = orders["variables"]
        self.waiting: dict[int, tuple[socket.socket, bytearray, list[int]]] = {}
        self.running: dict[int, Worker] = {}
        """By the descriptor of the connection."""
        self.folder = str(orders["errors"])
        self.count = 0
        self.poll = select.poll()

    def serve(self) -> int:
        """Until the launcher is gone."""
        wake, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        for number in (self.listener.fileno(), self.lifeline, wake):
            self.poll.register(number, select.POLLIN)
        while True:
            for number, _ in self.poll.poll():
                if number == self.lifeline:
                    self._end()
                    return 0
                if number == wake:
                    with suppress(BlockingIOError):
                        os.read(wake, 4096)
                elif number == self.listener.fileno():
                    self._accept()
                else:
                    self._hear(number)
            self._reap()

    def _accept(self) -> None:
        connection, _ = self.listener.accept()
        wanted = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        if struct.unpack("iII", wanted)[1] != self.allowed:
            connection.close()  # another user of this machine
            return
        self.waiting[connection.fileno()] = (connection, bytearray(), [])
        self.poll.register(connection.fileno(), select.POLLIN)

    def _hear(self, number: int) -> None:
        if number in self.running:
            worker = self.running[number]
            data = worker.connection.recv(64)
            for wanted in data or bytes([signal.SIGKILL]):
                _signal(worker.pid, wanted)
            if not data:
                self.poll.unregister(number)  # its end is waited for by nobody
            return
        connection, text, files = self.waiting[number]
        room = socket.CMSG_SPACE(16 * array.array("i").itemsize)
        data, extra, _, _ = connection.recvmsg(1 << 16, room, socket.MSG_CMSG_CLOEXEC)
        for level, kind, numbers in extra:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                files += array.array("i", numbers[: len(numbers) // 4 * 4])
        text += data
        length = _HEADER.unpack(text[:4])[0] if len(text) >= _HEADER.size else 0
        if not data or length > _REQUEST_LIMIT:
            self._forget(number)
        elif length and len(text) >= (end := length + _HEADER.size):
            del self.waiting[number]
            request = json.loads(text[_HEADER.size : end])
            self.count += 1
            error_file = f"{self.folder}/error-{self.count}.json"
            pid = self._start(request, files, error_file)
            for one in files:
                os.close(one)
            self.running[number] = Worker(pid, connection, error_file)
            for wanted in text[end:]:
                _signal(pid, wanted)

    def _forget(self, number: int) -> None:
        connection, _, files = self.waiting.pop(number)
        self.poll.unregister(number)
        connection.close()
        for one in files:
            os.close(one)

    def _start(self, request: Mapping[str, Any], files: Sequence[int], error_file: str) -> int:
        variables = dict(self.variables)
        if _ERROR_FILE in request["env"]:
            variables[_ERROR_FILE] = error_file
        pid = os.fork()
        if pid:
            return pid
        try:
            _become_worker(request, files, variables)
        except BaseException as error:  # noqa: BLE001 - the child must never return
            with suppress(OSError):
                os.write(2, f"securetrain: the worker cannot be started: {error}\n".encode())
        os._exit(127)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for number, worker in list(self.running.items()):
                if worker.pid == pid:
                    del self.running[number]
                    with suppress(KeyError, OSError):
                        self.poll.unregister(number)
                    with suppress(OSError):
                        said = _read_bounded(worker.error_file)
                        worker.connection.sendall(_ENDED.pack(status, len(said)) + said)
                    worker.connection.close()

    def _end(self) -> None:
        for worker in self.running.values():
            _signal(worker.pid, signal.SIGKILL)


def _become_worker(
    request: Mapping[str, Any], files: Sequence[int], variables: Mapping[str, str]
) -> NoReturn:
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    os.setsid()
    environment = {**request["env"], **variables}
    for place, number in enumerate(files[:3]):
        os.dup2(number, place)
    for number, name in zip(files[3:], request["inherited"], strict=True):
        os.set_inheritable(number, True)
        environment[name] = str(number)
    os.umask(request["umask"])
    with suppress(OSError):
        os.sched_setaffinity(0, request["cpus"])
    os.chdir(request["cwd"])
    os.execvpe(request["argv"][0], request["argv"], environment)  # noqa: S606 - no shell


def _read_bounded(path: str) -> bytes:
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(file, _ERROR_LIMIT)
    finally:
        os.close(file)


def _signal(pid: int, number: int) -> None:
    """To the whole process group, as torch's agent does it."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


# System calls.


def prctl(option: int, value: int | bytes, second: bytes | int = 0) -> None:
    """prctl(2)."""
    if _libc.prctl(option, *(_word(one) for one in (value, second, 0, 0))) != 0:
        raise _last_error("prctl")


def _call(name: str, *arguments: bytes | int | None) -> None:
    if getattr(_libc, name)(*map(_word, arguments)) != 0:
        raise _last_error(name, *arguments)


def _syscall(number: int, *arguments: bytes | int) -> int:
    done = _libc.syscall(ctypes.c_long(number), *map(_word, arguments))
    if done < 0:
        raise _last_error(f"system call {number}", *arguments)
    return int(done)


def _word(value: bytes | int | None) -> Any:
    return ctypes.c_long(value) if isinstance(value, int) else value


def _last_error(name: str, *arguments: bytes | int | None) -> OSError:
    number = ctypes.get_errno()
    words = [one.decode("utf-8", "replace") for one in arguments if isinstance(one, bytes)]
    shown = [one for one in words if one.startswith("/")]
    return OSError(number, os.strerror(number), " ".join([name, *shown]))


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:  # noqa: PTH123 - pathlib is not worth its import here
        file.write(text)


def _say(status: int, what: Mapping[str, Any]) -> None:
    with suppress(OSError):
        os.write(status, json.dumps(what).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main())
