# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The holder starts the next worker, whatever became of the connection of the last one."""

import array
import json
import random
import select
import socket
import struct
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from securetrain.launch.sandbox import sandbox as sandbox_module
from securetrain.launch.sandbox.orders import orders
from tests.launch.sandbox.machine import lacking
from tests.vocabulary import needs, outcome
from tests.waiting import until

pytestmark = [pytest.mark.netns, needs(lacking)]

WORDS = {"argv": ["/bin/sleep", "600"], "env": {}, "cwd": "/", "umask": 0o22, "cpus": [0]}
WHOLE = {**WORDS, "inherited": []}


def packed(text):
    return struct.pack("!I", len(text)) + text


def connected(started):
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(f"\0{started.name}")
    return connection


def send(connection, data, files=(0, 1, 2)):
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))] if files else []
    connection.sendmsg([data], rights)


def still_starts(started):
    words = started.command([sys.executable, "-I", "-S", "-c", "raise SystemExit(5)"])
    done = outcome(words, cwd="/", env={})
    assert (done.returncode, done.stderr) == (5, "")


def test_one_who_is_killed_before_it_reads_which_process_is_its_own(sandbox):
    """The kernel resets a connection that is closed with bytes unread (unix(7): ECONNRESET)."""
    started = sandbox()
    with connected(started) as connection:
        send(connection, packed(json.dumps(WHOLE).encode()))
        assert select.select([connection], [], [], 60)[0]  # the worker runs, and nobody knows it
    still_starts(started)
    is_left_alone(started)


NONE = [
    (b"{", (0, 1, 2)),
    (b"[]", (0, 1, 2)),
    (b"[" * 100_000, (0, 1, 2)),
    (b'"\xff"', (0, 1, 2)),
    (json.dumps({**WHOLE, "env": []}).encode(), (0, 1, 2)),
    (json.dumps({**WHOLE, "argv": []}).encode(), (0, 1, 2)),
    (json.dumps({**WHOLE, "inherited": ["A"]}).encode(), (0, 1, 2)),
    (json.dumps({**WHOLE, "inherited": 1}).encode(), (0, 1, 2)),
    (json.dumps({"argv": ["/bin/true"]}).encode(), (0, 1, 2)),
    (json.dumps(WHOLE).encode(), ()),
    (json.dumps(WHOLE).encode(), (0,)),
]


def test_requests_that_are_none(sandbox):
    started = sandbox()
    for text, files in NONE:
        with connected(started) as connection:
            send(connection, packed(text), files)
            connection.settimeout(60)
            with suppress(ConnectionResetError):
                assert connection.recv(1) == b"", text[:80]
    still_starts(started)
    is_left_alone(started)


def test_lengths_that_no_request_has(sandbox):
    started = sandbox()
    for length in (0, 1 << 26, 0xFFFFFFFF):
        with connected(started) as connection:
            send(connection, struct.pack("!I", length) + b"x")
    still_starts(started)


def workers(started):
    """The processes that the holder has started, by the numbers of this machine."""
    first = children(started.process.pid)
    return [one for pid in first for one in children(pid)]


def children(pid):
    with suppress(FileNotFoundError):
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def is_left_alone(started):
    """Wait until no worker is left."""
    until(lambda: not workers(started), lambda: f"nobody asked for {workers(started)}")


def killed_at_any_time(started, chance, times):
    for _ in range(times):
        words = started.command(["/bin/sleep", "600"])
        with subprocess.Popen(words, cwd="/", stderr=subprocess.DEVNULL, env={}) as outer:
            time.sleep(chance.uniform(0.0, 0.06))
            outer.kill()
    still_starts(started)
    is_left_alone(started)


def test_outer_processes_are_killed_at_any_time(sandbox):
    killed_at_any_time(sandbox(), random.Random(), 8)


@pytest.mark.many
@pytest.mark.parametrize("seed", range(10))
def test_outer_processes_are_killed_at_many_times(sandbox, seed):
    killed_at_any_time(sandbox(), random.Random(seed), 100)


def test_an_end_of_the_holder_itself_is_said(sandbox, capfd, monkeypatch):
    """Its workers only find nobody there."""
    monkeypatch.setattr(
        sandbox_module, "orders", lambda *words: {**orders(*words), "launcher": "nobody"}
    )
    sandbox().process.wait(60)
    said = capfd.readouterr().err
    assert "securetrain: the sandbox ends, and every worker in it: ValueError(" in said
