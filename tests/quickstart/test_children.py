# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from securetrain.core.errors import SecureTrainError
from securetrain.quickstart import children
from tests.vocabulary import is_running

ENVIRON = dict(os.environ)

# Stands in for the launcher: starts a grandchild in a session of its own, as torchelastic does.
FAKE = """
import os, subprocess, sys, time
grandchild = subprocess.Popen(
    [sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True
)
print("ready", os.getpid(), grandchild.pid, flush=True)
{then}
"""


def fake(then: str) -> list[str]:
    return [sys.executable, "-c", FAKE.format(then=then)]


def started(running: children.Child) -> list[int]:
    while not any("ready" in line for line in running.tail):
        assert running.running() or running.reader.is_alive()
        time.sleep(0.01)
    line = next(line for line in running.tail if "ready" in line)
    return [int(word) for word in line.split()[1:]]


def test_ctrl_c_leaves_no_process_behind(tmp_path):
    command = fake("time.sleep(600)")
    pids: list[int] = []
    with (  # noqa: PT012 - the block is what is interrupted
        pytest.raises(KeyboardInterrupt),
        children.child(command, tmp_path / "log", ENVIRON) as running,
    ):
        pids = started(running)
        assert all(is_running(pid) for pid in pids)
        raise KeyboardInterrupt
    assert not any(is_running(pid) for pid in pids)


def test_a_child_that_ignores_the_polite_signal_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(children, "POLITE_SECONDS", 0.2)
    command = fake("import signal; signal.signal(15, signal.SIG_IGN)\nprint('deaf', flush=True)\n"
                   "time.sleep(600)")  # fmt: skip
    with children.child(command, tmp_path / "log", ENVIRON) as running:
        pids = started(running)
        while "deaf" not in running.tail:
            time.sleep(0.01)
    assert not any(is_running(pid) for pid in pids)


def test_workers_that_outlive_their_launcher_are_killed(tmp_path):
    command = fake("os._exit(3)")
    with (  # noqa: PT012 - the pids are needed afterwards
        pytest.raises(SecureTrainError) as caught,
        children.child(command, tmp_path / "log", ENVIRON) as running,
    ):
        pids = started(running)
        running.wait(lambda: None, 0.01)
    assert caught.value.code == "ST-RUNT-004"
    assert "exit code 3" in caught.value.what
    assert not any(is_running(pid) for pid in pids)


def test_other_processes_are_left_alone(tmp_path):
    command = fake("os._exit(0)")
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        with children.child(command, tmp_path / "log", ENVIRON) as running:
            running.wait(lambda: None, 0.01)
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_the_childs_refusal_is_passed_on(tmp_path):
    command = fake(
        "print('error ST-NETW-001: no loopback\\n  where: policy\\n  fix:   use another')\n"
        "sys.exit(1)"
    )
    with (
        pytest.raises(SecureTrainError) as caught,
        children.child(command, tmp_path / "log", ENVIRON) as running,
    ):
        running.wait(lambda: None, 0.01)
    error = caught.value
    assert (error.code, error.what, error.where, error.fix) == (
        "ST-NETW-001", "no loopback", "policy", "use another",
    )  # fmt: skip


def test_a_workers_refusal_tells_more_than_the_launchers(tmp_path):
    command = fake(
        "print('ST-CKPT-170: another run\\n  where: step-1\\nnoise')\n"
        "print('error ST-RUNT-004: rank 1 failed'); sys.exit(1)"
    )
    with (
        pytest.raises(SecureTrainError) as caught,
        children.child(command, tmp_path / "log", ENVIRON) as running,
    ):
        running.wait(lambda: None, 0.01)
    assert (caught.value.code, caught.value.where) == ("ST-CKPT-170", "step-1")


def test_output_that_nobody_saw_above_is_in_the_log(tmp_path):
    command = fake(
        "print('error ST-RUNT-004: rank 0 ended\\n  where: its output above; --tee 3 keeps it')\n"
        "sys.exit(1)"
    )
    with (
        pytest.raises(SecureTrainError) as caught,
        children.child(command, tmp_path / "log", ENVIRON) as running,
    ):
        running.wait(lambda: None, 0.01)
    assert (caught.value.code, caught.value.where) == ("ST-RUNT-004", str(tmp_path / "log"))


def test_the_output_goes_to_the_log(tmp_path):
    command = fake("os._exit(0)")
    log = tmp_path / "log"
    with children.child(command, log, ENVIRON) as running:
        running.wait(lambda: None, 0.01)
    assert log.read_text().startswith("ready ")


def test_a_full_disk_under_the_log_does_not_hide_the_error():
    command = fake("print('error ST-USAG-006: no space left'); sys.exit(20)")
    with (
        pytest.raises(SecureTrainError) as caught,
        children.child(command, Path("/dev/full"), ENVIRON) as running,
    ):
        running.wait(lambda: None, 0.01)
    assert caught.value.code == "ST-USAG-006"
