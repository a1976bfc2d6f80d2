# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Starts workers for `enter`. The standard library only."""

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

_HEADER: Final = struct.Struct("!I")
_ENDED: Final = struct.Struct("!II")
"""How a worker ended, and how long its error file is, which follows."""
_REQUEST_LIMIT: Final = 32 << 20
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
            _become_worker(request, files, variables)
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


def _become_worker(
    request: Mapping[str, Any], files: Sequence[int], variables: Mapping[str, str]
) -> NoReturn:
    signal.set_wakeup_fd(-1)
    for one in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(one, signal.SIG_DFL)
    os.setsid()
    environment: dict[str, str] = request["env"]
    # What is not set stays so: TMPDIR, and HOME of a service.
    environment |= {name: value for name, value in variables.items() if name in environment}
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


def _tell(connection: socket.socket, pid: int) -> None:
    """Send a descriptor of the process: its number is another one outside."""
    handle = os.pidfd_open(pid)
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
    """To the whole process group, as torch's agent does it."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)
