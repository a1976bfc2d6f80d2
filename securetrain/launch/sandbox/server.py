# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Starts workers for `enter`. The standard library only.

Rules:

1. what becomes of one connection is its own affair: an `enter` that is killed at any moment, a
   request that is none, no descriptor left: its worker is ended or not started, and the next one is
   served. The end of this process would be the end of every worker of the node, for good;
2. it ends with the launcher, which alone has the other end of its lifeline, and may ask there for
   sockets of this network namespace (`Sandbox.listen`, `Sandbox.connect`).
3. where ranks are kept apart, each is in a domain of its own before its program starts.
"""

import array
import json
import os
import select
import signal
import socket
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NoReturn

from securetrain.launch.sandbox.kernel import enter_domain

_HEADER: Final = struct.Struct("!I")
_ENDED: Final = struct.Struct("!II")
"""How a worker ended, and how long its error file is, which follows."""
_REQUEST_LIMIT: Final = 32 << 20
_STANDARD: Final = (0, 1, 2)
_ASKED_LIMIT: Final = 4096
_BACKLOG: Final = 512
_CONNECT_SECONDS: Final = 5.0
_ERROR_FILE: Final = "TORCHELASTIC_ERROR_FILE"
_ERROR_LIMIT: Final = 1 << 20
_FAILED: Final = "securetrain: the worker cannot be started: {}\n"


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
        self.launcher = socket.socket(fileno=lifeline)
        self.allowed = int(orders["launcher"])
        self.variables: dict[str, str] = orders["variables"]
        self.domain: dict[str, Any] = orders["domain"]
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
                    if not self._hear_launcher():
                        self._end()
                        return 0
                    continue
                if number == wake:
                    with suppress(BlockingIOError):
                        os.read(wake, 4096)
                elif number == self.listener.fileno():
                    self._accept()
                else:
                    self._hear(number)
            self._reap()

    def _hear_launcher(self) -> bool:
        """Hand the launcher a socket; False when it is gone."""
        asked = self.launcher.recv(_ASKED_LIMIT)
        if not asked:
            return False
        try:
            how, address, port = json.loads(asked)
            with _open(how, (address, port)) as made:
                socket.send_fds(self.launcher, [b"{}"], [made.fileno()])
        except (OSError, ValueError) as error:
            number = error.errno if isinstance(error, OSError) else None
            self.launcher.send(json.dumps({"errno": number, "why": str(error)}).encode())
        return True

    def _accept(self) -> None:
        try:
            connection, _ = self.listener.accept()
        except OSError:  # gone before it was served, or no descriptor is left: tried again
            return
        wanted = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        if struct.unpack("iII", wanted)[1] != self.allowed:
            connection.close()  # another user of this machine
            return
        self.waiting[connection.fileno()] = (connection, bytearray(), [])
        self.poll.register(connection.fileno(), select.POLLIN)

    def _hear(self, number: int) -> None:
        if number in self.running:
            worker = self.running[number]
            data = _received(worker.connection, 64)
            for wanted in data or bytes([signal.SIGKILL]):
                _signal(worker.pid, wanted)
            if not data:
                self.poll.unregister(number)  # its end is waited for by nobody
            return
        connection, text, files = self.waiting[number]
        data = _received(connection, 1 << 16, files)
        text += data
        length = _HEADER.unpack(text[:4])[0] if len(text) >= _HEADER.size else 0
        if not data or length > _REQUEST_LIMIT:
            self._forget(number)
        elif length and len(text) >= (end := length + _HEADER.size):
            request = _request(text[_HEADER.size : end], files)
            if request is None:
                self._forget(number)
                return
            del self.waiting[number]
            self._begin(connection, request, files, bytes(text[end:]))

    def _begin(
        self,
        connection: socket.socket,
        request: Mapping[str, Any],
        files: Sequence[int],
        signals: bytes,
    ) -> None:
        self.count += 1
        error_file = f"{self.folder}/error-{self.count}.json"
        try:
            pid = self._start(request, files, error_file)
        except OSError as error:  # the job has as many tasks as it may have
            with suppress(OSError, IndexError):
                os.write(files[2], _FAILED.format(error.strerror).encode())
            self._drop(connection, files)
            return
        for one in files:
            os.close(one)
        _tell(connection, pid)
        self.running[connection.fileno()] = Worker(pid, connection, error_file)
        for wanted in signals:
            _signal(pid, wanted)

    def _forget(self, number: int) -> None:
        connection, _, files = self.waiting.pop(number)
        self._drop(connection, files)

    def _drop(self, connection: socket.socket, files: Sequence[int]) -> None:
        self.poll.unregister(connection.fileno())
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
            _become_worker(request, files, variables, self.domain)
        except BaseException as error:  # noqa: BLE001 - the child must never return
            with suppress(OSError):
                os.write(2, _FAILED.format(error).encode())
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


def _open(how: str, place: tuple[str, int]) -> socket.socket:
    match how:
        case "listen":
            return socket.create_server(place, backlog=_BACKLOG)
        case "connect":
            return socket.create_connection(place, _CONNECT_SECONDS)
        case _:
            raise ValueError(f"no such request: {how}")


def _received(connection: socket.socket, most: int, files: list[int] | None = None) -> bytes:
    """Bytes, and descriptors where they are wanted; nothing when the other end is gone.

    One that is killed before it has read our answer resets the connection (unix(7)): gone as well.
    """
    try:
        if files is None:
            return connection.recv(most)
        room = socket.CMSG_SPACE(16 * array.array("i").itemsize)
        data, extra, _, _ = connection.recvmsg(most, room, socket.MSG_CMSG_CLOEXEC)
    except OSError:
        return b""
    for level, kind, numbers in extra:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            files += array.array("i", numbers[: len(numbers) // 4 * 4])
    return data


def _request(text: bytes | bytearray, files: Sequence[int]) -> dict[str, Any] | None:
    """A request of `enter`; None for anything else."""
    try:
        found = json.loads(text)
        is_one = (
            all(isinstance(word, str) for word in (*found["argv"], found["cwd"], *found["env"]))
            and isinstance(found["env"], dict)
            and len(found["argv"]) > 0
            and len(files) == len(_STANDARD) + len(found["inherited"])
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return found if is_one else None


def _become_worker(
    request: Mapping[str, Any],
    files: Sequence[int],
    variables: Mapping[str, str],
    domain: Mapping[str, Any],
) -> NoReturn:
    signal.set_wakeup_fd(-1)
    for one in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(one, signal.SIG_DFL)
    os.setsid()
    environment: dict[str, str] = request["env"]
    # What is not set stays so: TMPDIR, and HOME of a service. Ours are news.
    environment |= {
        name: value
        for name, value in variables.items()
        if name in environment or name.startswith("SECURETRAIN_")
    }
    for place in _STANDARD:
        os.dup2(files[place], place)
    for number, name in zip(files[len(_STANDARD) :], request["inherited"], strict=True):
        os.set_inheritable(number, True)
        environment[name] = str(number)
    os.umask(request["umask"])
    with suppress(OSError):
        os.sched_setaffinity(0, request["cpus"])
    os.chdir(request["cwd"])
    if domain:
        enter_domain(domain)
    os.execvpe(request["argv"][0], request["argv"], environment)  # noqa: S606 - no shell


def _tell(connection: socket.socket, pid: int) -> None:
    """Send a descriptor of the process: its number is another one outside.

    Without one `enter` ends, and the worker with it.
    """
    try:
        handle = os.pidfd_open(pid)
    except OSError:  # no descriptor is left
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        return
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [handle]))]
    with suppress(OSError):
        connection.sendmsg([b"p"], rights)
    os.close(handle)


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
    """To the whole process group, as torch's agent does it; it has none before its setsid(2)."""
    with suppress(ProcessLookupError, PermissionError):
        try:
            os.killpg(pid, number)
        except ProcessLookupError:
            os.kill(pid, number)
