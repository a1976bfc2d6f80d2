# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import os
import socket
import subprocess
import sys
from pathlib import Path

from securetrain.drills.process_tree import (
    Listener,
    descendants,
    is_loopback,
    kill_tree,
    listeners,
    wait_until,
)
from tests.tables import each

_PARENT = """\
import subprocess, sys, time
child = subprocess.Popen(["sleep", "600"], start_new_session=True)
print(child.pid, flush=True)
time.sleep(600)
"""


def test_a_tree_is_seen_and_killed_across_sessions():
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT], stdout=subprocess.PIPE, start_new_session=True
    )
    assert parent.stdout is not None
    with parent.stdout:
        child = int(parent.stdout.readline())
    assert descendants(parent.pid) == [parent.pid, child]
    kill_tree(parent)
    assert parent.returncode == -9
    assert wait_until(lambda: not Path(f"/proc/{child}/fd/0").exists(), 5)


def test_killing_a_process_that_has_ended_is_fine():
    process = subprocess.Popen(["true"])
    process.wait()
    kill_tree(process)


def test_only_the_ports_of_the_named_processes_count():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert Listener(port, loopback=True) in listeners([os.getpid()])
        assert listeners([]) == []
    assert port not in {listener.port for listener in listeners([os.getpid()])}


@each(
    "address, alone",
    ("127.0.0.1", True),
    ("127.9.9.9", True),
    ("::1", True),
    ("::ffff:127.0.0.1", True),
    ("0.0.0.0", False),
    ("::", False),
    ("::ffff:10.0.0.1", False),
)
def test_an_address_of_this_machine_alone(address, alone):
    assert is_loopback(address) is alone


def test_waiting_ends():
    assert wait_until(lambda: True, 0)
    assert not wait_until(lambda: False, 0.01, interval=0.001)
