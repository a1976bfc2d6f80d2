# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The end of workers, as torch's agent brings it about."""

import functools
import os
import signal
import subprocess
from types import SimpleNamespace

import pytest

from securetrain.launch.agent.elastic_agent import _close


@pytest.mark.parametrize("reaped", [False, True])
def test_a_worker_that_ends_just_before_it_is_told_to_is_no_error(reaped):
    with subprocess.Popen(["/bin/true"], start_new_session=True) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        if reaped:
            process.wait()
            with pytest.raises(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        assert closed(process, signal.SIGTERM) == (set(), set())


def test_a_worker_that_runs_was_told_and_then_killed():
    with subprocess.Popen(["/bin/sleep", "60"], start_new_session=True) as process:
        process.send_signal(signal.SIGSTOP)
        # Of two signals that wait, the kernel hands over the one with the lower number first.
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        assert closed(process, signal.SIGTERM) == ({process.pid}, set())
        assert closed(process, signal.SIGKILL) == ({process.pid}, {process.pid})
        assert process.wait() == -signal.SIGKILL


def closed(process, number):
    told, killed = set[int](), set[int]()
    close = functools.partial(send, process.pid)
    _close(SimpleNamespace(proc=process), close, told, killed, number)
    return told, killed


def send(group, *, death_sig):
    """Torch's own way."""
    os.killpg(group, death_sig)
