# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Who stands behind a connection when a process has ended, or when there is none."""

import os
import socket

import pytest

from securetrain.core.errors import RuntimeRefusal
from securetrain.launch.signing.peers import Worker, identify, stood_for


@pytest.fixture
def worker():
    """This process, as if it were rank 3."""
    handle = os.pidfd_open(os.getpid())
    yield Worker(pid=77, rank=3, local_rank=0, world_size=4, round=1, handle=handle)
    os.close(handle)


def test_a_descriptor_of_no_process_stands_for_nobody(tmp_path, worker):
    """The kernel says 0 of a process out of sight, and -1 of one that has ended."""
    folder = tmp_path / "77" / "fdinfo"
    folder.mkdir(parents=True)
    lines = ("pos:\t0\nPid:\t-1\n", "Pid:\t0\nNSpid:\t0\n", "Pid:\t1\n", "pos:\t5\nNSpid:\t6\n")
    for number, text in enumerate((*lines, "flags:\t02\nPid:\t4242\nNSpid:\t4242\t9\n")):
        (folder / str(number)).write_text(text)
    assert stood_for({77: worker}, tmp_path) == {4242: worker}


def test_the_id_of_a_process_that_has_ended_is_nobodys(tmp_path, worker):
    """Another may have it by now: the worker of that id runs, who connected does not."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        pid = os.fork()
        if pid == 0:
            socket.socket(socket.AF_UNIX).connect(str(tmp_path / "s"))
            os._exit(0)
        os.waitpid(pid, 0)
        peer, _ = listener.accept()
        with peer, pytest.raises(RuntimeRefusal) as caught:
            identify(peer, {pid: worker})
    assert caught.value.code == "ST-RUNT-030"
