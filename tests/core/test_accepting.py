# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import errno
import json
import socket
import subprocess
import sys
import threading
from unittest.mock import create_autospec

import pytest

from securetrain.core import connections

# Has no descriptor left when the second connection comes, and one again a moment later.
SERVED = """
import json, os, resource, socket, sys, threading, time
from securetrain.core import connections
def plain(listener):
    while True:
        try:
            yield listener.accept()
        except OSError:
            return
accept = {"plain": plain, "ours": connections}[sys.argv[1]]
listener = socket.create_server(("127.0.0.1", 0))
served, kept, clients = [], [], []
def serve():
    for connection, _ in accept(listener):
        served.append(connection)
thread = threading.Thread(target=serve, daemon=True)
thread.start()
def connect():
    clients.append(socket.create_connection(listener.getsockname()))
def wait(wanted):
    deadline = time.monotonic() + 60
    while len(served) < wanted and thread.is_alive() and time.monotonic() < deadline:
        time.sleep(0.01)
connect()
wait(1)
late = [socket.socket(), socket.socket()]  # the kernel has a descriptor ready for the first
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
try:
    while True:
        kept.append(os.dup(0))
except OSError:
    pass
for one in late:
    one.connect(listener.getsockname())
    time.sleep(0.3)
for one in kept:
    os.close(one)
wait(3)
print(json.dumps(len(served)))
"""


@pytest.mark.parametrize(("accepting", "served"), [("plain", 2), ("ours", 3)])
def test_a_moment_without_descriptors_does_not_end_a_service(accepting, served):
    words = [sys.executable, "-c", SERVED, accepting]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert json.loads(done.stdout) == served, done.stderr


@pytest.mark.parametrize("end", ["shutdown", "close"])
def test_the_end_of_a_listener_ends_it(end):
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=lambda: list(connections(listener)))
    if end == "close":
        listener.close()
    thread.start()
    if end == "shutdown":
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(60)
    assert not thread.is_alive()
    listener.close()


def test_what_concerns_one_connection_is_passed_over():
    answers = [OSError(errno.ECONNABORTED, "gone"), ("one", "there"), OSError(errno.EBADF, "")]
    listener = create_autospec(socket.socket, instance=True)
    listener.accept.side_effect = answers
    assert list(connections(listener)) == answers[1:2]
