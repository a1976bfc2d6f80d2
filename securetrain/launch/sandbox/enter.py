# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Has a program started in the job's sandbox, and stands for it outside. A program, run by path.

``python -I -S enter.py NAME [--hand FILE VARIABLE ...] -- PROGRAM ARGUMENT ...``

It sends the program, its environment, working directory and standard files to the holder that
listens at the abstract socket NAME. Then it stays: signals that it gets reach the worker's process
group, it ends as the worker ends, and when it is killed so is the worker. So torch's agent deals
with it as with the worker itself.

``--hand`` reads a small file that the worker cannot open, and lets the worker inherit a copy in
memory; VARIABLE has the number of its descriptor.
"""

import array
import json
import os
import resource
import signal
import socket
import struct
import sys
from collections.abc import Sequence
from contextlib import suppress

FAILED = 125

_HEADER = struct.Struct("!I")
_ENDED = struct.Struct("!II")
_HAND_LIMIT = 4096
_FORWARDED = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGCONT,
    signal.SIGWINCH,
)


def main(arguments: Sequence[str]) -> int:
    """Have it started, wait, end like it."""
    words = list(arguments)
    failed = "was not started in its sandbox"
    try:
        end = words.index("--")
        name, options, command = words[0], words[1:end], words[end + 1 :]
        hands = [(options[at + 1], options[at + 2]) for at in range(0, len(options), 3)]
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        connection.connect(f"\0{name}")
        _request(connection, command, hands)
        for number in _FORWARDED:
            signal.signal(number, lambda got, _frame: _forward(connection, got))
        handle = _handle(connection)  # kept: it says which process this one stands for
        failed = "has ended with its sandbox, whose launcher is gone"
        status = _answer(connection)
        os.close(handle)
    except (OSError, IndexError, ValueError) as error:
        sys.stderr.write(f"securetrain: the worker {failed}: {error}\n")
        return FAILED
    return _end(status)


def _request(
    connection: socket.socket, command: Sequence[str], hands: Sequence[tuple[str, str]]
) -> None:
    text = json.dumps(
        {
            "argv": list(command),
            "env": dict(os.environ),
            "cwd": os.getcwd(),
            "umask": _umask(),
            "cpus": sorted(os.sched_getaffinity(0)),
            "inherited": [variable for _, variable in hands],
        }
    ).encode()
    files = array.array("i", [0, 1, 2, *(_in_memory(file) for file, _ in hands)])
    first = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)]
    connection.sendmsg([_HEADER.pack(len(text))], first)
    connection.sendall(text)


def _handle(connection: socket.socket) -> int:
    """A descriptor of the worker (pidfd_open(2))."""
    word, extra, _, _ = connection.recvmsg(1, socket.CMSG_SPACE(array.array("i").itemsize))
    for level, kind, data in extra:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS) and word == b"p":
            return array.array("i", data)[0]
    raise OSError("the holder of the sandbox is gone")


def _answer(connection: socket.socket) -> int:
    """Return how it ended; what is in its error file goes where torch's agent looks."""
    status, length = _ENDED.unpack(_receive(connection, _ENDED.size))
    said = _receive(connection, length)
    place = os.environ.get("TORCHELASTIC_ERROR_FILE", "")
    if said and place:
        with suppress(OSError):
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            file = os.open(place, flags, 0o644)
            os.write(file, said)
            os.close(file)
    return int(status)


def _receive(connection: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        if not (more := connection.recv(length - len(data))):
            raise OSError("the holder of the sandbox is gone")
        data += more
    return data


def _forward(connection: socket.socket, number: int) -> None:
    with suppress(OSError):
        connection.send(bytes([number]))


def _end(status: int) -> int:
    if not os.WIFSIGNALED(status):
        return os.waitstatus_to_exitcode(status)
    number = os.WTERMSIG(status)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if number not in {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
    return 128 + number


def _in_memory(file: str) -> int:
    with open(file, "rb") as source:
        data = source.read(_HAND_LIMIT + 1)
    if not 0 < len(data) <= _HAND_LIMIT:
        raise ValueError(f"{file} has {len(data)} bytes, the limit is {_HAND_LIMIT}")
    descriptor = os.memfd_create("securetrain")
    os.write(descriptor, data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _umask() -> int:
    now = os.umask(0o077)
    os.umask(now)
    return now


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
