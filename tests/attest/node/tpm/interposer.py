# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Somebody between a node and its TPM: a proxy on the socket, who records and may alter."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

HEADER = 10
Alter = Callable[[int, bytes], bytes]
"""The TPM_CC of a command, and a message; returns what goes on."""


def as_it_is(_: int, message: bytes) -> bytes:
    return message


class Interposer:
    """Passes on one connection after another, message by message."""

    def __init__(self, target: str) -> None:
        self.record: list[bytes] = []
        self.commands: list[int] = []
        self.on_command: Alter = as_it_is
        self.on_response: Alter = as_it_is
        self._target = target

    @property
    def seen(self) -> bytes:
        """Everything that crossed, in both directions."""
        return b"".join(self.record)

    @contextlib.contextmanager
    def listening(self, path: Path) -> Iterator[str]:
        """The address to which the node is led."""
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            listener.listen()
            thread = threading.Thread(target=self._serve, args=(listener,), daemon=True)
            thread.start()
            yield f"unix:{path}"
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(30)

    def _serve(self, listener: socket.socket) -> None:
        # The node's socket ends when the test is over, or in the middle of what was altered.
        with contextlib.suppress(OSError, ConnectionError):
            while True:
                near, _ = listener.accept()
                with near, socket.socket(socket.AF_UNIX) as far:
                    far.connect(self._target.removeprefix("unix:"))
                    with contextlib.suppress(EOFError, OSError):
                        self._carry(near, far)

    def _carry(self, near: socket.socket, far: socket.socket) -> None:
        while True:
            command = message(near)
            code = int.from_bytes(command[6:HEADER], "big")
            self.commands.append(code)
            self.record.append(command)
            far.sendall(self.on_command(code, command))
            response = message(far)
            self.record.append(response)
            near.sendall(self.on_response(code, response))


def message(stream: socket.socket) -> bytes:
    head = exactly(stream, HEADER)
    return head + exactly(stream, int.from_bytes(head[2:6], "big") - HEADER)


def exactly(stream: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = stream.recv(size - len(data))
        if not piece:
            raise EOFError
        data += piece
    return data


def flipped(message: bytes, position: int, bit: int = 0) -> bytes:
    return message[:position] + bytes([message[position] ^ 1 << bit]) + message[position + 1 :]
