# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A crowd: many addresses of this machine that hold connections and come back when pushed out.

``python -m securetrain.drills.crowd HOST PORT SOURCES TOLD``. Says ``ready`` when TOLD of them
have been pushed out once, and ends with its input.
"""

import contextlib
import errno
import selectors
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def held_by_a_crowd(
    address: tuple[str, int], sources: int, *, pushes: bool = True
) -> Iterator[None]:
    """Have so many addresses at a port, in a process of their own, until the block ends.

    Args:
        address: The port.
        sources: So many.
        pushes: Whether the port pushes out, and half of them have been before the block begins.
    """
    host, port = address
    told_after = sources // 2 if pushes else 0
    numbers = map(str, (port, sources, told_after))
    with subprocess.Popen(
        [sys.executable, "-m", __name__, host, *numbers],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as attacker:
        assert attacker.stdin is not None
        assert attacker.stdout is not None
        try:
            if attacker.stdout.readline() != "ready\n":
                raise OSError("the crowd never came to the port")
            yield
        finally:
            attacker.stdin.close()


def crowd(host: str, port: int, sources: int, told_after: int) -> None:
    """Hold one connection from each source, and open it again as soon as it ends."""
    over = threading.Event()

    def until_told() -> None:
        sys.stdin.read()
        over.set()

    threading.Thread(target=until_told, daemon=True).start()
    selector = selectors.DefaultSelector()
    pushed: set[int] = set()
    told = False

    def open_from(n: int) -> None:
        sock = socket.socket()
        sock.setblocking(False)
        sock.bind((f"127.1.{n // 250}.{n % 250 + 1}", 0))
        if sock.connect_ex((host, port)) not in {0, errno.EINPROGRESS}:
            sock.close()
            return
        selector.register(sock, selectors.EVENT_READ, n)

    for n in range(sources):
        open_from(n)
    while not over.is_set():
        for key, _ in selector.select(0.2):
            sock = key.fileobj
            assert isinstance(sock, socket.socket)
            selector.unregister(sock)
            with contextlib.suppress(OSError):
                sock.close()
            pushed.add(key.data)
            open_from(key.data)
        if not told and len(pushed) >= told_after:
            told = True
            sys.stdout.write("ready\n")
            sys.stdout.flush()


if __name__ == "__main__":
    crowd(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
