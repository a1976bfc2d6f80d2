# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A crowd: many addresses of this machine that hold connections and come back when pushed out.

Run as a program: ``crowd.py HOST PORT SOURCES``. Says ``ready`` when half of them have been pushed
out once, and ends with its input.
"""

import contextlib
import errno
import selectors
import socket
import sys
import threading


def crowd(host: str, port: int, sources: int) -> None:
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
        if not told and len(pushed) >= sources // 2:
            told = True
            sys.stdout.write("ready\n")
            sys.stdout.flush()


if __name__ == "__main__":
    crowd(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
