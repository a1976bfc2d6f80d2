# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from securetrain.drills.process_tree import (
    Listener,
    _address,
    descendants,
    kill_tree,
    listeners,
    wait_until,
)

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


@pytest.mark.parametrize(
    ("text", "address", "loopback"),
    [
        ("0100007F", "127.0.0.1", True),
        ("00000000", "0.0.0.0", False),
        ("00000000000000000000000001000000", "::1", True),
        ("00000000000000000000000000000000", "::", False),
        ("0000000000000000FFFF00000100007F", "127.0.0.1", True),
    ],
)
@pytest.mark.skipif(sys.byteorder != "little", reason="the table is written for little endian")
def test_addresses_of_the_kernel_are_read(text, address, loopback):
    assert str(_address(text)) == address
    assert _address(text).is_loopback is loopback


def test_waiting_ends():
    assert wait_until(lambda: True, 0)
    assert not wait_until(lambda: False, 0.01, interval=0.001)
